"""What decides what a reader sees cannot be changed in the catalog without a finding of ``verify``.

The cases come from the schema itself: each column of each table, changed in one row in several ways; rows taken out, or
put in once more. A new column is covered, or is listed here with the reason why it decides nothing.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Boolean, Column, Integer, LargeBinary, Table

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import IntegrityError, OperatorError
from tailrace.eventstore.maintenance.files import fold, seal, tiers
from tailrace.eventstore.maintenance.retention import plan
from tailrace.eventstore.model.time import to_micros
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.state.state import state
from tailrace.eventstore.store import Store
from tests.eventstore.integrity.every_table import LAST, SETTINGS, fill_every_table
from tests.eventstore.shop import CUSTOMERS, ORDERS, at, content

WORK = "work under way, or a record for people: no reader's rows depend on it"
NOT_READ = {
    "leases": WORK,
    "upkeep": WORK,
    "runs": WORK,
    "terms": "fences of upkeep, which only grow",
    "requests": WORK,
    "loads": WORK,
    "load_ranges": WORK,
    "set_aside": WORK,
    "kept_frames": WORK,
    "refused": WORK,
    "archiving": WORK,
    "partitions": "what capture remembers of policies; no reader's rows depend on it",
    "publications": "what was sent elsewhere; compared with the chain when publishing starts",
    "parked_keys": "what waits to be sent elsewhere; no reader's rows depend on it",
    "moved": "opening is refused, or the marker of the segments refuses it",
}
"""Tables that verification does not look at row by row."""

SHOWN = {
    "log": {"created_at": "shown", "needs": "which code may open it"},
    "sources": {
        "term": "a fence",
        "last_append": "a fence",
        "system_id": "compared with the server when capture starts",
        "timeline": "compared with the server when capture starts",
        "repairing": "compared with the slot when capture starts",
        "slot": "of the server",
        "publication": "of the server",
    },
    "topics": {"published": "compared with the server when capture starts"},
    "generations": {
        "checked": "found again",
        "frozen_at": "found again",
        "parity": "compared again",
        "taken_at": "shown only when promoted",
    },
    "live": {"previous_generation": "where a rollback goes; it is asked for"},
    "epochs": {"append_id": "names the blob; without one it names nothing"},
    "retired": {
        "number": "readers that began later need no file of before",
        "bytes": "shown",
        "retired_at": "how long it stays",
    },
    "redactions": {"erased_at": "shown"},
    "archived": {"archived_at": "shown"},
}
"""Columns that do not decide what a reader sees, and why."""

MAY_BE_MORE = {
    "sources.commit_lsn": "ahead of the last epoch it goes without rows; capture compares it with the slot",
    "sources.end_lsn": "as commit_lsn",
    "sources.through_lsn": "idle keepalives move it",
    "segments.last_lsn": "a bound: a larger one makes readers look for what is not there",
}
"""Numbers that are found when they are too small alone, and why."""

MAY_BE_LESS = {
    "sources.through_lsn": "capture takes again what follows",
    "segments.first_epoch": "a bound: a smaller one makes readers look for what is not there",
    "segments.first_lsn": "as first_epoch",
}
"""Numbers that are found when they are too large alone, and why."""

NOT_PROVEN = {
    "epochs.topics": "one more makes readers look for what is not there",
    "segments.origin": "how a file was made; nothing covers an entry when those behind it are gone",
}
"""Columns that are found when no row of ours could have the value, and not always for one that might be there."""

MAY_BE_FORGOTTEN = {
    "derived": "old steps are forgotten; the next one has the hash of the last of them",
    "generations": "projections are dropped",
    "live": "a projection that was never promoted",
    "retired": "the file is removed as one that nothing names",
    "archived": "an archive may be given up",
    "state_runs": "runs are a shorter way, and made again; not the one at a topic's start",
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store that nobody changed."""
    root = tmp_path_factory.mktemp("filled")
    with pytest.MonkeyPatch.context() as patch, Store.open(SETTINGS, create=True, root=root) as opened:
        patch.setattr(seal, "CHUNK_EPOCHS", 2)
        patch.setattr(fold, "CHUNK", 2)
        patch.setattr(tiers, "FAN_IN", 3)
        patch.setattr(plan, "now_micros", lambda: to_micros(at(LAST)))
        fill_every_table(opened)
        assert opened.verify(archives=True).findings == ()
    return root


@pytest.fixture
def store(filled: Path, tmp_path: Path) -> Iterator[Store]:
    """A copy of it."""
    root = shutil.copytree(filled, tmp_path / "store")
    with Store.open(SETTINGS, root=root) as opened:
        yield opened


def database(store: Store) -> sqlite3.Connection:
    """As somebody opens it who knows nothing of Tailrace."""
    assert isinstance(store.catalog.path, Path)
    return sqlite3.connect(store.catalog.path, isolation_level=None)


def covered(but: Collection[str] = ()) -> list[Table]:
    return [table for table in tables.metadata.sorted_tables if table.name not in {*NOT_READ, *but}]


def rows_of(sql: sqlite3.Connection, table: Table) -> list[tuple[int, Sequence[Any]]]:
    """Rows with their numbers."""
    found = sql.execute(f"SELECT rowid, * FROM {table.name} ORDER BY rowid").fetchall()  # noqa: S608
    assert found, f"the store has no row of {table.name}"
    return [(rowid, values) for rowid, *values in found]


def wrong_values(kind: object, value: Any) -> Iterator[Any]:
    """What no row of ours has there, and what one might have."""
    if value is None:
        return
    yield None
    if isinstance(kind, Boolean):
        yield 1 - value
    elif isinstance(kind, LargeBinary):
        yield bytes(value) + b"x"
    elif isinstance(value, int):
        yield value + 1
        yield -7 - value
    else:
        yield f"{value}x"
        if value.strip()[:1] not in ("[", "{"):
            return
        yield "{]"
        yield from (json.dumps(changed, separators=(",", ":")) for changed in _changed(value))


def _changed(text: str) -> Iterator[Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return
    if isinstance(value, list) and value:
        yield value[1:]
        first = value[0]
        yield [first + 1 if isinstance(first, int) else [first], *value[1:]]
    elif isinstance(value, dict):
        yield dict(list(value.items())[1:])


def valid_values(table: Table, column: Column[Any], value: Any, others: Sequence[Any]) -> Iterator[Any]:
    """What other rows have there, and what differs in one leaf alone."""
    yield from list(dict.fromkeys(other for other in others if other != value and other is not None))[:2]
    if isinstance(value, int) and not isinstance(column.type, Boolean):
        yield value - 1
    if isinstance(value, str) and value[:1] in ("[", "{"):
        with suppress(ValueError):
            parsed = json.loads(value)
            for leaf in _paths(parsed)[:: max(1, len(_paths(parsed)) // 4)]:
                yield json.dumps(_with_other_leaf(parsed, leaf), ensure_ascii=False, separators=(",", ":"))


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, Mapping):
        return [each for name, inner in value.items() for each in _paths(inner, (*path, name))]
    if isinstance(value, list):
        return [each for at, inner in enumerate(value) for each in _paths(inner, (*path, at))]
    return [path]


def _with_other_leaf(value: Any, path: tuple[Any, ...]) -> Any:
    if not path:
        return (
            not value
            if isinstance(value, bool)
            else value + 1
            if isinstance(value, int)
            else f"{value or ''}x"
        )
    copied = dict(value) if isinstance(value, Mapping) else list(value)
    copied[path[0]] = _with_other_leaf(value[path[0]], path[1:])
    return copied


def outcome(store: Store) -> str:
    """What verification says; the name of the error that stops it."""
    try:
        found = store.verify(quick=True, archives=True).findings or store.verify(archives=True).findings
        return "found" if found else "nothing"
    except OperatorError as error:
        return "found" if "archive" in error.message or "archived" in error.message else error.message
    except (Exception, SystemError) as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"


def changes(sql: sqlite3.Connection, *, valid: bool, but: Collection[str] = ()) -> Iterator[str]:
    """Each change of a value that is to be found, while it is made."""
    for table in covered(but):
        rows = rows_of(sql, table)
        rowid, values = rows[len(rows) // 2]
        for at_column, (column, value) in enumerate(zip(table.c, values, strict=True)):
            name = f"{table.name}.{column.name}"
            if column.name in SHOWN.get(table.name, {}):
                continue
            moves = list(table.primary_key) == [column] and type(column.type) is Integer  # it is the rowid
            wrongs = (
                valid_values(table, column, value, [each[at_column] for _, each in rows])
                if valid
                else wrong_values(column.type, value)
            )
            for wrong in wrongs:
                numbers = isinstance(wrong, int) and isinstance(value, int) and wrong >= 0
                if numbers and name in (MAY_BE_MORE if wrong > value else MAY_BE_LESS):
                    continue
                if valid and name in NOT_PROVEN:
                    continue
                change = f"UPDATE {table.name} SET {column.name} = ? WHERE rowid = ?"  # noqa: S608
                with suppress(sqlite3.IntegrityError):  # what the database refuses is not there
                    sql.execute(change, (wrong, rowid))
                    yield f"{name} = {wrong!r:.60} for {value!r:.60}"
                    sql.execute(change, (value, wrong if moves else rowid))


def missed(store: Store, *, valid: bool) -> list[str]:
    with closing(database(store)) as sql:
        found = [
            f"{each}: {said:.80}" for each in changes(sql, valid=valid) if (said := outcome(store)) != "found"
        ]
    assert store.verify(archives=True).findings == ()
    return found


def test_a_value_that_was_changed_in_the_catalog_is_found(store: Store) -> None:
    found = missed(store, valid=False)
    assert not found, "\n" + "\n".join(found)


@pytest.mark.slow
def test_a_value_that_might_be_there_is_found_in_the_place_of_another(store: Store) -> None:
    found = missed(store, valid=True)
    assert not found, "\n" + "\n".join(found)


def test_a_row_that_was_taken_out_of_the_catalog_is_found(store: Store) -> None:
    missed = []
    with closing(database(store)) as sql:
        for table in covered(MAY_BE_FORGOTTEN):
            rows = rows_of(sql, table)
            for rowid, values in (rows[len(rows) // 2], rows[-1]):
                sql.execute(f"DELETE FROM {table.name} WHERE rowid = ?", (rowid,))  # noqa: S608
                if (said := outcome(store)) != "found":
                    missed.append(f"{table.name} {values!r:.60}: {said:.80}")
                marks = ", ".join("?" * len(values))
                sql.execute(f"INSERT INTO {table.name} VALUES ({marks})", values)  # noqa: S608
    assert not missed, "\n" + "\n".join(missed)
    assert store.verify(archives=True).findings == ()


def test_what_a_followers_epoch_or_a_topics_start_lacks_is_found_by_verify_and_by_readers_of_the_state(
    store: Store,
) -> None:
    with closing(database(store)) as sql:
        held = sql.execute(
            "SELECT e.epoch, e.topics FROM epochs e JOIN segments s ON e.epoch BETWEEN s.first_epoch AND s.last_epoch"
            " WHERE s.sealed AND s.last_epoch > s.first_epoch AND e.topics LIKE '%,' || s.topic_id || ',%'"
        ).fetchall()
        assert held, "the store has no epoch whose rows are in a file of several"
        for epoch, topics in held:
            sql.execute("UPDATE epochs SET topics = ',' WHERE epoch = ?", (epoch,))
            assert {each.place for each in store.verify().findings} == {f"epoch {epoch}"}
            sql.execute("UPDATE epochs SET topics = ? WHERE epoch = ?", (topics, epoch))

        topic, name, start = sql.execute(
            "SELECT t.id, t.name, o.start_epoch FROM topics t JOIN topic_offsets o ON o.topic_id = t.id"
            " WHERE o.start_epoch > 0"
        ).fetchone()
        sql.execute(
            "DELETE FROM state_runs WHERE topic_id = ? AND epoch = ? AND after_epoch = 0", (topic, start)
        )
        (found,) = store.verify(quick=True).findings
        assert found.place == name and "with 0 rows of state" in found.detail
        with pytest.raises(IntegrityError, match=f"state_runs: topic_id {topic}"):
            _state(store, TopicId.parse(name), None)


def test_a_row_that_is_there_twice_under_another_key_is_found(store: Store) -> None:
    missed = []
    with closing(database(store)) as sql:
        for table in covered({"sources"}):  # one without an epoch decides nothing
            _, values = rows_of(sql, table)[-1]
            for column, wrong in _other_keys(table, values):
                copied = [
                    wrong if each is column else value for each, value in zip(table.c, values, strict=True)
                ]
                marks = ", ".join("?" * len(values))
                with suppress(sqlite3.IntegrityError):  # what the database refuses is not there
                    added = sql.execute(f"INSERT INTO {table.name} VALUES ({marks})", copied).lastrowid  # noqa: S608
                    if (said := outcome(store)) != "found":
                        missed.append(f"{table.name}.{column.name} = {wrong!r:.40}: {said:.80}")
                    sql.execute(f"DELETE FROM {table.name} WHERE rowid = ?", (added,))  # noqa: S608
    assert not missed, "\n" + "\n".join(missed)
    assert store.verify(archives=True).findings == ()


def _other_keys(table: Table, values: Sequence[Any]) -> Iterator[tuple[Column[Any], Any]]:
    for column, value in zip(table.c, values, strict=True):
        if column.primary_key:
            yield column, value + 100 if isinstance(value, int) else f"{value}x"
            if isinstance(value, int) and value > 1:
                yield column, value - 1


NOT_SEEN = {
    "topics.name": "there is no topic of the name that is asked for; which ones there were only ``verify`` knows",
    "segments.first_epoch": "a bound of what is read; ``verify`` compares it with the rows",
    "segments.last_epoch": "as first_epoch",
    "epoch_files.last_epoch": "a bound of look-ups; ``verify`` compares it with the epochs",
    "epoch_files.spans": "as last_epoch",
    "epochs.hash": "``verify`` compares it with the row and the hash before",
    "generations.projection": "as topics.name",
    "generations.state": "``verify`` compares it with the table live",
}
"""What readers cannot see without reading more than they need."""

READ = (
    "topics", "topic_schemas", "topic_offsets", "incomplete", "segments", "state_runs", "epochs", "epoch_files",
    "blobs", "generations", "derived",
)  # fmt: skip


def rows_seen(store: Store) -> object:
    """What readers of rows get: members, schemas, rows."""
    members = {info.id.text: (info.kind, info.partitioning, info.complete_since) for info in store.topics()}
    return members, [(store.schemas(topic), content(store, topic)) for topic in (ORDERS, CUSTOMERS)]


def moments_seen(store: Store) -> object:
    """What readers of states, of moments and of results get, and followers."""
    states = [_state(store, ORDERS, None), _state(store, CUSTOMERS, LAST)]
    moments: list[object] = [store.cut(at(LAST + 3)), store.cut(at(LAST - 4)), store.cut(f"0/{LAST - 4:X}")]
    moments.append(content(store, cut=store.cut(LAST + 4)))
    epochs = [(each.epoch, each.hash) for each in store.follow(after_epoch=LAST - 2, timeout=0)]
    return states, moments, epochs, store.derived.generations("totals"), store.steps.list("totals", 1)


def _state(store: Store, topic: TopicId, epoch: int | None) -> object:
    found = state(store, topic, store.cut(epoch), on_unreadable="text")
    return sorted(str(row) for table in found for row in table.to_pylist())


def other_readings(
    store: Store, seen: Callable[[Store], object], *, valid: bool, every: int = 1
) -> list[str]:
    """Changes after which readers got something else; of each ``every``-th."""
    before, numbers = seen(store), count()
    missed = []
    with closing(database(store)) as sql:
        but = {table.name for table in covered()} - set(READ)
        for change in changes(sql, valid=valid, but=but):
            if change.split(" ")[0] in NOT_SEEN or next(numbers) % every:
                continue
            try:
                if seen(store) != before:
                    missed.append(f"{change}: other rows")
            except IntegrityError:
                pass
            except (Exception, SystemError) as error:  # noqa: BLE001
                missed.append(f"{change}: {error!r:.90}")
    assert seen(store) == before
    return missed


def test_readers_of_a_changed_catalog_get_the_same_rows_or_an_integrity_error(store: Store) -> None:
    missed = other_readings(store, rows_seen, valid=False, every=4)
    assert not missed, "\n" + "\n".join(missed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seen", "valid"),
    [(rows_seen, False), (rows_seen, True), (moments_seen, False), (moments_seen, True)],
    ids=["rows", "rows, by valid values", "states and moments", "states and moments, by valid values"],
)
def test_readers_get_the_same_states_and_moments_or_an_integrity_error(
    store: Store, seen: Callable[[Store], object], valid: bool
) -> None:
    missed = other_readings(store, seen, valid=valid)
    assert not missed, "\n" + "\n".join(missed)


def test_a_head_that_was_kept_elsewhere_is_compared(store: Store) -> None:
    kept = [(epoch.epoch, epoch.hash) for epoch in store.epochs()]
    for head in (kept[0], kept[-1]):
        assert store.verify(quick=True, head=head).findings == ()
    number, digest = kept[3]
    for other in ((number, "0" * 64), (number + 1, digest), (len(kept) + 1, digest)):
        (found,) = store.verify(quick=True, head=other).findings
        assert found.place == f"epoch {other[0]}"
