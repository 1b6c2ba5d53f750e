"""The state of a history is what the table holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.eventstore.errors import IntegrityError, UsageError
from tailrace.eventstore.model.schema import Column, TopicSchema, change_schema
from tailrace.eventstore.segment import row_order, segment
from tailrace.eventstore.segment.segment import read_segment
from tailrace.eventstore.state import assembly
from tailrace.eventstore.state.bucket_passes import FoldLimits, bucket_passes
from tailrace.eventstore.state.compaction import compact
from tailrace.eventstore.state.input import StateInput
from tailrace.eventstore.state.row_layout import Layout
from tailrace.eventstore.state.state import partition_reader
from tailrace.eventstore.storage import LocalStorage, Storage
from tests.eventstore.bucket_state import compute_state, readable_state
from tests.eventstore.histories import BODY, EXTRA, FIRST, ID, SIZE, History, Row, state_input
from tests.support.memory_storage import MemoryStorage

NOWHERE = Path("/nonexistent")
KEYS = st.integers(0, 5)
TEXTS = st.sampled_from([None, "", "a", "b", "c", "ü"])
CELLS = st.fixed_dictionaries({"body": TEXTS, "extra": TEXTS})
UNSENT = st.lists(st.sampled_from(["body", "extra"]), unique=True)
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            KEYS,
            st.fixed_dictionaries({"body": TEXTS, "extra": TEXTS}),
            UNSENT,
            st.none() | KEYS,
        ),
        st.tuples(st.just("move"), KEYS, KEYS, UNSENT),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.just("truncate")),
        st.tuples(st.just("cut")),
        st.tuples(st.just("add_column")),
    ),
    max_size=40,
)


def history_of(steps: list[tuple[Any, ...]], hash_modulus: int) -> History:
    history = History(hash_modulus)
    for name, *arguments in steps:
        getattr(history, name)(*arguments)
    return history


def rows_of(wanted: StateInput) -> list[Row]:
    tables = [readable_state(NOWHERE, wanted, bucket) for bucket in range(wanted.buckets)]
    return [row for table in tables for row in table.to_pylist()]


def contents(rows: list[Row]) -> dict[int, Row]:
    """Rows by key; two rows of one key would be a lie."""
    assert len({row["id"] for row in rows}) == len(rows)
    return {
        row["id"]: {name: cell for name, cell in row.items() if name != "id" and name[0] != "_"}
        for row in rows
    }


@given(STEPS, st.sampled_from([0, 2]), st.sampled_from([1, 3]), st.sampled_from([1, 2]))
def test_the_state_of_any_history_is_the_table(
    steps: list[tuple[Any, ...]], hash_modulus: int, partitions: int, split: int
) -> None:
    history = history_of(steps, hash_modulus)
    wanted = history.state_input(partitions, split)
    assert contents(rows_of(wanted)) == history.contents()


@given(STEPS, st.integers(1, 4))
def test_folding_early_changes_nothing(steps: list[tuple[Any, ...]], fold_rows: int) -> None:
    wanted = history_of(steps, 2).state_input(1, 1)

    def changes() -> Iterator[tuple[TopicSchema, pa.Table]]:
        return ((wanted.versions[ref.version], read_segment(NOWHERE, ref)) for ref in wanted.refs)

    once = compact(changes(), wanted.layout)
    folded = compact(changes(), wanted.layout, fold_rows=fold_rows)
    assert folded.equals(once)


@given(STEPS, st.sampled_from([0, 2]), st.sampled_from([1, 3]), st.integers(1, 4))
def test_a_partition_that_has_no_room_for_its_state_is_folded_in_several_passes(
    steps: list[tuple[Any, ...]], hash_modulus: int, partitions: int, fold_rows: int
) -> None:
    wanted = history_of(steps, hash_modulus).state_input(partitions, 4)
    read = partition_reader(LocalStorage(NOWHERE), wanted, wanted.layout)
    every = range(wanted.buckets)
    expected = pa.concat_tables(bucket_state(wanted, bucket) for bucket in every)
    for kept_bytes in (1, 1 << 30):
        found = bucket_passes(
            read, wanted.layout, wanted.bucket_layout, every, limits=FoldLimits(fold_rows, kept_bytes)
        )
        tables = [compactor.finish() for compactor in found]
        assert partitions <= len(tables) <= wanted.buckets
        order = [("_hash", "ascending"), ("id", "ascending")]
        assert pa.concat_tables(tables).sort_by(order).equals(expected.sort_by(order))


def bucket_state(wanted: StateInput, bucket: int) -> pa.Table:
    """The state of one bucket, without what only rows of other keys know."""
    read = partition_reader(LocalStorage(NOWHERE), wanted, wanted.layout)
    (compactor,) = bucket_passes(read, wanted.layout, wanted.bucket_layout, range(bucket, bucket + 1))
    return compactor.finish()


def test_a_history_is_decoded_once_unless_its_state_is_too_large() -> None:
    """As many passes as buckets only when each bucket fills the room by itself."""
    history = History(0)
    for step in range(400):
        history.put(step % 40, {"body": f"b{step}", "extra": "x" * 50})
    wanted = history.state_input(1, 8)
    read = partition_reader(LocalStorage(NOWHERE), wanted, wanted.layout)

    def count(kept_bytes: int) -> int:
        found = bucket_passes(
            read, wanted.layout, wanted.bucket_layout, range(8), limits=FoldLimits(50, kept_bytes)
        )
        tables = [compactor.finish() for compactor in found]
        assert sum(table.num_rows for table in tables) == 40
        return len(tables)

    assert count(1 << 20) == 1
    assert 1 < count(3000) < 8
    assert count(1) == 8


def in_files(wanted: StateInput, storage: Storage) -> StateInput:
    """The same rows in files of very small row groups."""
    refs = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "ROWS_PER_OWN_GROUP", 2)
        patch.setattr(segment, "ROWS_PER_GROUP", 3)
        for number, ref in enumerate(wanted.refs):
            with pa.ipc.open_stream(ref.inline) as reader:
                rows = reader.read_all()
            counts = tuple((piece.partition, piece.rows) for piece in ref.ranges)
            arranged = row_order.ArrangedRows(rows, None, counts, None, None)
            made = segment.write_arranged(storage, ref.topic, ref.version, arranged, f"{number}")
            refs.append(replace(ref, path=made.path, inline=None, bytes=made.bytes, checksum=made.checksum))
    return replace(wanted, refs=tuple(refs))


@given(STEPS, st.sampled_from([1, 3]), st.sampled_from([1, 2]), st.sampled_from([1, 5, 1 << 20]))
def test_files_of_which_only_what_matters_is_read_give_the_same(
    steps: list[tuple[Any, ...]], partitions: int, split: int, fold_rows: int
) -> None:
    """Texts come as codes of several dictionaries, and columns that say nothing are not read."""
    wanted = history_of(steps, 0).state_input(partitions, split)
    storage = MemoryStorage()
    files = in_files(wanted, storage)
    for bucket in range(wanted.buckets):
        assert compute_state(storage, files, bucket).equals(compute_state(NOWHERE, wanted, bucket))
    found, expected = (
        [
            compactor.required_rows()
            for compactor in bucket_passes(
                partition_reader(storage, each, each.layout),
                each.layout,
                each.bucket_layout,
                range(each.buckets),
                limits=FoldLimits(fold_rows),
                later=True,
            )
        ]
        for each in (files, wanted)
    )
    assert [(kept.offsets.tolist(), moves) for kept, moves in found] == [
        (kept.offsets.tolist(), moves) for kept, moves in expected
    ]


@given(STEPS)
def test_state_is_in_the_order_of_the_log_and_each_row_carries_its_position(
    steps: list[tuple[Any, ...]],
) -> None:
    wanted = history_of(steps, 2).state_input(1, 1)
    table = compute_state(NOWHERE, wanted, 0)
    offsets = table["_offset"].to_pylist()
    assert offsets == sorted(offsets)
    written = {}
    for ref in wanted.refs:
        for row in read_segment(NOWHERE, ref).to_pylist():
            written[row["_offset"]] = row
    for row in table.to_pylist():
        change = written[row["_offset"]]
        assert (change["key"]["id"], change["_lsn"], change["_epoch"]) == (
            row["id"],
            row["_lsn"],
            row["_epoch"],
        )


@pytest.mark.parametrize("partitions", [1, 5])
def test_unsent_cells_are_found_through_a_chain_of_key_changes(partitions: int) -> None:
    history = History()
    for key in range(3):
        history.put(key, {"body": f"b{key}", "extra": f"e{key}"})
    history.cut()
    for step in range(4):
        for key in range(3):
            history.move(key + 10 * step, key + 10 * (step + 1), ["body", "extra"] if step % 2 else ["body"])
        history.put(40, {"extra": "in between"}, ["body"])
        history.put(0, {"body": "a new row under the first key", "extra": None})
    found = contents(rows_of(history.state_input(partitions, 1)))
    assert found == history.contents()
    assert found[41]["body"] == "b1"


def test_a_plain_sql_definition_gives_the_same(tmp_path: Path) -> None:
    history = History()
    for step in range(3000):
        key = step * 7919 % 501
        if step % 11 == 10:
            history.delete(key)
        else:
            history.put(key, {"body": f"b{step}", "extra": None if step % 3 else f"e{step}"})
        if step % 400 == 399:
            history.cut()
    wanted = history.state_input(4, 1)
    changes = pa.concat_tables(read_segment(tmp_path, ref) for ref in wanted.refs)
    connection = duckdb.connect()
    connection.register("changes", changes)
    expected = connection.sql(
        """select key.id as id, last.after.body as body, last.after.extra as extra from (
             select key, arg_max({'op': _op, 'after': after}, (_epoch, _offset)) as last from changes group by key)
           where last.op <> 'd' order by id"""
    ).to_arrow_table()
    connection.close()
    actual = pa.concat_tables(readable_state(tmp_path, wanted, bucket) for bucket in range(4))
    assert actual.select(["id", "body", "extra"]).sort_by("id").to_pylist() == expected.to_pylist()


def change(op: str, key: int | None, after: Row | None, hash_: int = 1, **more: Any) -> Row:
    empty = dict.fromkeys(change_schema(FIRST).names)
    row = {"_hash": hash_, "_op": op, "_lsn": 10, "_txn": 1, "_ordinal": more.pop("ordinal", 0)}
    return empty | row | {"key": {"id": key}, "after": after} | more


def state_rows(*epochs: tuple[TopicSchema, list[Row]]) -> list[Row]:
    rows: list[Row] = compute_state(NOWHERE, state_input(epochs, 1), 0).to_pylist()
    return rows


def test_a_value_that_was_never_sent_is_unknown_and_not_null() -> None:
    (row,) = state_rows((FIRST, [change("u", 1, {"id": 1, "body": None, "extra": "x"}, _unchanged=[2])]))
    assert row["_unknown"] == [2]
    assert row["extra"] == "x"


def test_an_unknown_cell_holds_nothing_of_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.eventstore.state.compaction.JOINED_BYTES", 1)  # each epoch's rows lie apart
    known = change("c", 1, {"id": 1, "body": "another row's", "extra": None}, hash_=1)
    unsent = change("u", 2, {"id": 2, "body": None, "extra": None}, hash_=2, _unchanged=[2])
    rows = state_rows((FIRST, [known]), (FIRST, [unsent]))
    assert [(row["body"], row["_unknown"]) for row in rows] == [("another row's", None), (None, [2])]


def test_rows_of_which_a_column_passes_arrows_limit_are_put_together_in_halves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes = [
        change("c", 1, {"id": 1, "body": "one", "extra": None}, hash_=1),
        change("u", 2, {"id": 2, "body": None, "extra": None}, hash_=2, _unchanged=[2]),
        change("c", 3, {"id": 3, "body": "three", "extra": None}, hash_=3),
        change("u", 4, {"id": 4, "body": None, "extra": None}, hash_=4, _unchanged=[2]),
    ]
    expected = state_rows((FIRST, changes))
    put = assembly._cells

    def limited(pieces: Any, gather: Any, rows: Any) -> Any:
        if len(rows) > 1:
            raise pa.ArrowCapacityError("as if they were 2 GiB")
        return put(pieces, gather, rows)

    monkeypatch.setattr(assembly, "_cells", limited)
    assert state_rows((FIRST, changes)) == expected


def test_a_delete_ends_what_is_known_of_a_key() -> None:
    rows = [
        change("c", 1, {"id": 1, "body": "old", "extra": None}),
        change("d", 1, None),
        change("u", 1, {"id": 1, "body": None, "extra": None}, _unchanged=[2]),
    ]
    (row,) = state_rows((FIRST, rows))
    assert (row["body"], row["_unknown"]) == (None, [2])


def test_a_key_change_whose_delete_is_not_in_the_log_leaves_the_cell_unknown() -> None:
    created = change("c", 2, {"id": 2, "body": None, "extra": None}, _unchanged=[2], _moved_from={"id": 1})
    (row,) = state_rows((FIRST, [created]))
    assert row["_unknown"] == [2]


def test_a_cell_the_type_cannot_hold_keeps_its_text_also_through_unchanged_updates_and_key_changes() -> None:
    rows = [
        change(
            "c",
            1,
            {"id": 1, "body": None, "extra": "x"},
            hash_=1,
            ordinal=1,
            _raw=[(2, b"infinity"), (-3, b"no")],
        ),
        change("u", 1, {"id": 1, "body": None, "extra": "y"}, hash_=1, ordinal=2, _unchanged=[2]),
        change("d", 1, None, hash_=1, ordinal=3),
        change(
            "c", 9, {"id": 9, "body": None, "extra": "z"}, 2, ordinal=4, _unchanged=[2], _moved_from={"id": 1}
        ),
    ]
    (before,) = state_rows((FIRST, rows[:2]))
    assert (before["_raw"], before["extra"]) == ([(2, b"infinity")], "y")
    (after,) = state_rows((FIRST, rows))
    assert (after["id"], after["_raw"], after["_unknown"]) == (9, [(2, b"infinity")], None)


def test_key_cells_that_only_raw_can_tell_apart_are_different_keys() -> None:
    rows = [
        change("c", None, {"id": None, "body": "a", "extra": None}, _raw=[(1, b"infinity")]),
        change("c", None, {"id": None, "body": "b", "extra": None}, _raw=[(1, b"-infinity")]),
        change("u", None, {"id": None, "body": "c", "extra": None}, _raw=[(1, b"infinity")]),
    ]
    assert sorted(row["body"] for row in state_rows((FIRST, rows))) == ["b", "c"]


def test_equal_rows_of_a_table_without_a_key_are_counted() -> None:
    columns = (
        Column(1, "name", 25, key=True),
        Column(2, "tags", 1009, key=True),
        Column(3, "ratio", 701, key=True),
    )
    schema = TopicSchema(version=1, columns=columns, bag=True)

    def row(op: str, name: str | None, tags: list[str | None] | None, ratio: float | None) -> Row:
        cells = {"name": name, "tags": tags, "ratio": ratio}
        return change(op, None, None if op == "d" else cells) | {"key": cells}

    rows = [
        row("c", "a", ["x", None], 0.5),
        row("c", "a", ["x"], 0.5),
        row("c", None, ["x"], float("nan")),
        row("c", None, None, None),
        row("c", None, None, None),
        row("d", None, ["x"], float("nan")),
        row("d", "a", ["x"], 0.5),
    ]
    found = [(r["name"], r["tags"], r["ratio"]) for r in state_rows((schema, rows))]
    assert sorted(found, key=repr) == [("a", ["x", None], 0.5), (None, None, None), (None, None, None)]
    with pytest.raises(IntegrityError, match="lost more rows"):
        state_rows((schema, [*rows, row("d", "a", ["x"], 0.5)]))


@given(
    changes=st.lists(
        st.sampled_from(["c", "c", "r", "d", "u", "t"]).flatmap(lambda op: st.tuples(st.just(op), KEYS))
    ),
    fold_rows=st.sampled_from([1, 3, 1 << 20]),
)
def test_the_state_of_a_bag_is_the_rows_that_are_left(changes: list[tuple[str, int]], fold_rows: int) -> None:
    """Also when keys share a hash, and however early what cannot matter any more is dropped."""
    schema = TopicSchema(version=1, columns=(Column(1, "n", 23, key=True),), bag=True)
    places = [pa.field("_offset", pa.int64()), pa.field("_epoch", pa.int64())]
    stored = pa.schema([*change_schema(schema), *places])
    left: Counter[int] = Counter()
    tables = []
    for offset, (op, n) in enumerate(changes):
        if op == "t":
            left.clear()
        elif op in "cr":
            left[n] += 1
        elif not left[n]:
            continue
        elif op == "d":
            left[n] -= 1
        cells = None if op == "t" else {"n": n}
        row = change(op, None, cells if op in "cru" else None, hash_=n % 2) | {
            "key": cells, "_offset": offset, "_epoch": 1, "_lsn": offset, "_ordinal": 0,
        }  # fmt: skip
        tables.append((schema, pa.Table.from_pylist([row], schema=stored)))
    found = compact(tables, Layout.of(schema), fold_rows=fold_rows)
    assert Counter(found["n"].to_pylist()) == +left


def with_column(column: Column, **changes: Any) -> TopicSchema:
    columns = tuple(
        Column(**{name: getattr(c, name) for name in Column.__slots__} | changes) if c is column else c
        for c in FIRST.columns
    )
    return TopicSchema(version=2, columns=columns)


def test_a_renamed_column_is_the_same_column() -> None:
    renamed = with_column(BODY, name="content")
    old = change("c", 1, {"id": 1, "body": "kept", "extra": None})
    new = change("c", 2, {"id": 2, "content": "new", "extra": None}, hash_=2)
    rows = state_rows((FIRST, [old]), (renamed, [new]))
    assert [row["content"] for row in rows] == ["kept", "new"]


def test_a_widened_key_stays_the_same_key() -> None:
    narrow = TopicSchema(version=1, columns=(Column(1, "id", 23, type_name="integer", key=True), BODY, EXTRA))
    wide = TopicSchema(version=2, columns=FIRST.columns)
    old = change("c", 1, {"id": 1, "body": "old", "extra": None})
    new = change("u", 1, {"id": 1, "body": "new", "extra": None})
    (row,) = state_rows((narrow, [old]), (wide, [new]))
    assert row["body"] == "new"


@pytest.mark.parametrize(
    ("oid", "typmod", "body", "new"),
    [
        (23, -1, "12", 12),
        (1082, -1, "2024-02-29", date(2024, 2, 29)),
    ],
)
def test_a_type_change_without_an_exact_cast_keeps_the_older_text(
    oid: int, typmod: int, body: str, new: object
) -> None:
    """Text to anything: what Postgres made of it by USING is not known here."""
    changed = with_column(BODY, type_oid=oid, typmod=typmod)
    old = change("c", 1, {"id": 1, "body": body, "extra": None})
    null = change("c", 3, {"id": 3, "body": None, "extra": None}, hash_=3)
    after = change("c", 2, {"id": 2, "body": new, "extra": None}, hash_=2)
    first, third, second = state_rows((FIRST, [old, null]), (changed, [after]))
    assert (first["body"], first["_raw"]) == (None, [(2, body.encode())])
    assert (second["body"], second["_raw"]) == (new, None)
    assert (third["body"], third["_raw"]) == (None, None)


def test_values_out_of_the_range_of_the_new_type_keep_their_text() -> None:
    wide = TopicSchema(version=1, columns=(ID, Column(2, "n", 20)))
    narrow = TopicSchema(version=2, columns=(ID, Column(2, "n", 21)))
    old = change("c", 1, {"id": 1, "n": 70_000})
    new = change("c", 2, {"id": 2, "n": 7}, hash_=2)
    first, second = state_rows((wide, [old]), (narrow, [new]))
    assert (first["n"], first["_raw"]) == (None, [(2, b"70000")])
    assert (second["n"], second["_raw"]) == (7, None)


def test_rows_of_a_former_key_do_not_matter_once_they_are_read_again() -> None:
    rekeyed = TopicSchema(version=2, columns=(replace(ID, key=False), replace(BODY, key=True), EXTRA))
    old = [change("c", 1, {"id": 1, "body": "a", "extra": None}), change("d", 1, None)]
    again = [
        change("t", None, None, hash_=0),
        change("r", None, {"id": 1, "body": "a", "extra": "x"}, hash_=7) | {"key": {"body": "a"}},
        change("r", None, {"id": 1, "body": "b", "extra": None}, hash_=8) | {"key": {"body": "b"}},
    ]
    rows = state_rows((FIRST, old), (rekeyed, again))
    assert [(row["body"], row["id"], row["extra"]) for row in rows] == [("a", 1, "x"), ("b", 1, None)]


def test_rows_of_a_former_type_do_not_matter_once_they_are_read_again() -> None:
    """After ALTER TYPE … USING the topic is truncated and read again: the rows from before are gone."""
    changed = with_column(BODY, type_oid=23, type_name="integer")
    old = change("c", 1, {"id": 1, "body": "twelve", "extra": None})
    again = change("r", 1, {"id": 1, "body": 12, "extra": None})
    (row,) = state_rows((FIRST, [old]), (changed, [change("t", None, None, hash_=0), again]))
    assert (row["body"], row["_raw"]) == (12, None)


@pytest.mark.parametrize(
    ("oid", "fill", "value"),
    [
        (16, "t", True),
        (17, "\\x00ff", b"\x00\xff"),
        (20, "-5", -5),
        (701, "NaN", None),
        (1082, "2024-02-29", "2024-02-29"),
        (1083, "04:05:06.5", "04:05:06.500000"),
        (1114, "2024-02-29 04:05:06.25", "2024-02-29 04:05:06.250000"),
        (1184, "2024-02-29 04:05:06.25+00", "2024-02-29 04:05:06.250000+00:00"),
        (1009, '{a,NULL,"b,\\"c",""}', ["a", None, 'b,"c', ""]),
        (1007, "{}", []),
        (25, "plain", "plain"),
    ],
)
def test_rows_older_than_a_column_have_its_default(oid: int, fill: str, value: object) -> None:
    wider = TopicSchema(version=2, columns=(ID, BODY, EXTRA, Column(5, "more", oid, fill=fill)))
    old = change("c", 1, {"id": 1, "body": None, "extra": None})
    new = change("c", 2, {"id": 2, "more": None}, hash_=2)
    row = state_rows((FIRST, [old]), (wider, [new]))[0]
    cell = row["more"]
    if oid == 701:
        assert cell != cell
    else:
        assert (str(cell) if oid in (1082, 1083, 1114, 1184) else cell) == value
    assert row["_raw"] is None


@pytest.mark.parametrize(("oid", "fill"), [(1082, "infinity"), (1007, "{{1},{2}}"), (1083, "24:00:00")])
def test_a_default_the_type_cannot_hold_is_kept_as_text(oid: int, fill: str) -> None:
    wider = TopicSchema(version=2, columns=(ID, BODY, EXTRA, Column(5, "more", oid, fill=fill)))
    old = change("c", 1, {"id": 1, "body": None, "extra": None}, _raw=[(2, b"odd")])
    new = change("c", 2, {"id": 2, "more": None}, hash_=2)
    first, second = state_rows((FIRST, [old]), (wider, [new]))
    assert first["_raw"] == [(2, b"odd"), (5, fill.encode())]
    assert second["_raw"] is None


def test_a_topic_without_a_key_has_no_state() -> None:
    keyless = TopicSchema(version=1, columns=(BODY, EXTRA))
    with pytest.raises(UsageError, match="without a key"):
        compact([], Layout.of(keyless))


def test_only_the_wanted_columns_and_the_key_come_back() -> None:
    layout = Layout.of(TopicSchema(version=2, columns=(BODY, ID, SIZE)), ["size"])
    assert [column.name for column in layout.columns] == ["id", "size"]
    assert layout.required_columns(FIRST)[-1] == "key.id"
