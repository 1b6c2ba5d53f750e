"""What decides what a reader sees cannot be changed in the catalog without a finding of ``verify``.

The cases come from the schema itself: each column of each table, changed in one row in several ways; rows taken out. A
new column is covered, or is listed here with the reason why it decides nothing, or what does not show it yet.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Boolean, Integer, LargeBinary, Table

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.integrity.findings import Finding
from tailrace.eventstore.maintenance.files import fold, seal, tiers
from tailrace.eventstore.metadata.generations import NewGeneration
from tailrace.eventstore.metadata.projection_steps import NewStep
from tailrace.eventstore.settings import UpkeepSettings
from tailrace.eventstore.store import Store
from tests.eventstore.maintenance.files.test_seal import fill
from tests.eventstore.shop import CUSTOMERS, ORDERS, content
from tests.fixtures.stores import StoreFactory, one_catalog

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
    "partitions": "what capture protects from now on; no reader's rows depend on it",
    "archiving": WORK,
    "retired": "files that no reader gets",
    "moved": "opening is refused, or the marker of the segments refuses it",
    "archived": "looked at with its archive",
    "redactions": "of no row here",
    "state_runs": "of no row here",
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
    },
    "live": {"previous_generation": "where a rollback goes; it is asked for"},
    "epochs": {"append_id": "names the blob; without one it names nothing"},
}
"""Columns that do not decide what a reader sees, or are not proven yet, and why."""

MAY_BE_MORE = {
    "sources.commit_lsn": "ahead of the last epoch it goes without rows; capture compares it with the slot",
    "sources.end_lsn": "as commit_lsn",
    "sources.through_lsn": "idle keepalives move it",
    "segments.last_lsn": "a bound: a larger one makes readers look for what is not there",
}
"""Numbers that are found when they are too small alone, and why."""

MAY_BE_FORGOTTEN = {"derived": "old steps are forgotten; the sink's fence holds the hash of the last"}


@pytest.fixture
def store(new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Folded epochs, merged, sealed and large files, blobs, a state run, a new version, a generation with two steps."""
    monkeypatch.setattr(seal, "CHUNK_EPOCHS", 2)
    monkeypatch.setattr(fold, "CHUNK", 4)
    monkeypatch.setattr(tiers, "FAN_IN", 3)
    opened = new_store(inline_bytes=3500, upkeep=UpkeepSettings(keep_seconds=0, keep_epochs=4))
    fill(opened, 12)
    opened.seal(10)
    opened.merge()
    opened.fold()
    built = NewGeneration("totals", "f", '{"kind": "own"}', ("id",), b"", 4, 0)
    opened.derived.create_generation(built)
    for first, last in ((0, 5), (5, 9)):
        opened.steps.commit(NewStep("totals", 1, first, last, "full", [], 0))
    opened.derived.promote("totals", 1, None)
    assert opened.verify().findings == ()
    return opened


def database(store: Store) -> sqlite3.Connection:
    """As somebody opens it who knows nothing of Tailrace."""
    assert isinstance(store.catalog.path, Path)
    return sqlite3.connect(store.catalog.path, isolation_level=None)


def covered() -> list[Table]:
    return [table for table in tables.metadata.sorted_tables if table.name not in NOT_READ]


def wrong_values(kind: object, value: Any) -> Iterator[Any]:
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
        yield from (json.dumps(changed) for changed in _changed(value))


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


def findings(store: Store) -> tuple[Finding, ...]:
    return store.verify(quick=True).findings or store.verify().findings


def outcome(store: Store) -> str:
    """What verification says; the name of the error that stops it."""
    try:
        return "found" if findings(store) else "nothing"
    except (Exception, SystemError) as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"


@one_catalog
def test_a_value_that_was_changed_in_the_catalog_is_found(store: Store) -> None:
    missed = []
    with closing(database(store)) as sql:
        for table in covered():
            rows = sql.execute(f"SELECT rowid, * FROM {table.name} ORDER BY rowid").fetchall()  # noqa: S608
            assert rows, f"the store has no row of {table.name}"
            rowid, *values = rows[len(rows) // 2]
            for column, value in zip(table.c, values, strict=True):
                if column.name in SHOWN.get(table.name, {}):
                    continue
                moves = (
                    list(table.primary_key) == [column] and type(column.type) is Integer
                )  # it is the rowid
                for wrong in wrong_values(column.type, value):
                    if f"{table.name}.{column.name}" in MAY_BE_MORE and wrong == value + 1:
                        continue
                    change = f"UPDATE {table.name} SET {column.name} = ? WHERE rowid = ?"  # noqa: S608
                    with suppress(sqlite3.IntegrityError):  # what the database refuses is not there
                        sql.execute(change, (wrong, rowid))
                        if (said := outcome(store)) != "found":
                            missed.append(f"{table.name}.{column.name} = {wrong!r:.40}: {said:.80}")
                        sql.execute(change, (value, wrong if moves else rowid))
                left = store.verify(quick=True).findings
                assert left == (), f"{table.name}.{column.name}: {left}"
    assert not missed, "\n" + "\n".join(missed)
    assert store.verify().findings == ()


@one_catalog
def test_a_row_that_was_taken_out_of_the_catalog_is_found(store: Store) -> None:
    missed = []
    with closing(database(store)) as sql:
        for table in covered():
            if table.name in MAY_BE_FORGOTTEN:
                continue
            rows = sql.execute(f"SELECT rowid, * FROM {table.name} ORDER BY rowid").fetchall()  # noqa: S608
            for rowid, *values in (rows[len(rows) // 2], rows[-1]):
                sql.execute(f"DELETE FROM {table.name} WHERE rowid = ?", (rowid,))  # noqa: S608
                if (said := outcome(store)) != "found":
                    missed.append(f"{table.name} {values!r:.60}: {said:.80}")
                marks = ", ".join("?" * len(values))
                sql.execute(f"INSERT INTO {table.name} VALUES ({marks})", values)  # noqa: S608
    assert not missed, "\n" + "\n".join(missed)
    assert store.verify().findings == ()


NOT_SEEN = {
    "topics.name": "there is no topic of the name that is asked for; which ones there were only ``verify`` knows",
    "segments.first_epoch": "a bound of what is read; ``verify`` compares it with the rows",
}
"""What readers cannot see without reading more than they need."""

READ = ("topics", "topic_schemas", "topic_offsets", "segments", "epochs", "blobs")


def seen(store: Store) -> object:
    """What readers get: members, schemas, rows."""
    members = {info.id.text: (info.kind, info.partitioning) for info in store.topics()}
    rows = [content(store, topic) for topic in (ORDERS, CUSTOMERS)]
    return members, [store.schemas(topic) for topic in (ORDERS, CUSTOMERS)], rows


@one_catalog
def test_readers_of_a_changed_catalog_get_the_same_rows_or_an_integrity_error(store: Store) -> None:
    before = seen(store)
    missed = []
    with closing(database(store)) as sql:
        for table in (table for table in covered() if table.name in READ):
            rows = sql.execute(f"SELECT rowid, * FROM {table.name} ORDER BY rowid").fetchall()  # noqa: S608
            rowid, *values = rows[len(rows) // 2]
            for column, value in zip(table.c, values, strict=True):
                if f"{table.name}.{column.name}" in NOT_SEEN:
                    continue
                moves = (
                    list(table.primary_key) == [column] and type(column.type) is Integer
                )  # it is the rowid
                for wrong in wrong_values(column.type, value):
                    change = f"UPDATE {table.name} SET {column.name} = ? WHERE rowid = ?"  # noqa: S608
                    with suppress(sqlite3.IntegrityError):  # what the database refuses is not there
                        sql.execute(change, (wrong, rowid))
                        try:
                            if seen(store) != before:
                                missed.append(f"{table.name}.{column.name} = {wrong!r:.40}: other rows")
                        except IntegrityError:
                            pass
                        except (Exception, SystemError) as error:  # noqa: BLE001
                            missed.append(f"{table.name}.{column.name} = {wrong!r:.40}: {error!r:.90}")
                        sql.execute(change, (value, wrong if moves else rowid))
    assert not missed, "\n" + "\n".join(missed)
    assert seen(store) == before


@one_catalog
def test_a_head_that_was_kept_elsewhere_is_compared(store: Store) -> None:
    kept = [(epoch.epoch, epoch.hash) for epoch in store.epochs()]
    for head in (kept[0], kept[-1]):
        assert store.verify(quick=True, head=head).findings == ()
    number, digest = kept[3]
    for other in ((number, "0" * 64), (number + 1, digest), (len(kept) + 1, digest)):
        (found,) = store.verify(quick=True, head=other).findings
        assert found.place == f"epoch {other[0]}"
