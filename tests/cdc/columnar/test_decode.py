"""Blocks to rows: what each message becomes, the same whatever way it takes, and never a wrong row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cdc.columnar.decode import DecodedEpoch
from tailrace.cdc.columnar.values import LoadStamp, loaded_rows
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.stream.assemble import Assembler
from tailrace.cdc.wire import pgoutput as pg
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.keys import hash_texts
from tailrace.eventstore.model.schema import EVENT_SCHEMA, MESSAGE_SCHEMA, change_schema
from tailrace.eventstore.model.topic import TopicId
from tests.cdc.messages import (
    DATE,
    EVENT_ROW,
    EVENTS,
    FULL,
    HUGE,
    INT8,
    KEYED,
    SOURCE,
    TEXT,
    N,
    Stream,
    Table,
    U,
    decoder,
)

PLAIN = {"_before": "none", "before": None, "_unchanged": None, "_moved_from": None, "_raw": None}


def decode(stream: Stream, *tables: Table) -> DecodedEpoch:
    return decoder(*(tables or (KEYED, FULL))).decode(stream.block())


def rows(decoded: DecodedEpoch, topic: TopicId) -> list[dict[str, Any]]:
    found = []
    for part in decoded.rows:
        part.rows.validate(full=True)
        if part.topic == topic:
            found += part.rows.to_pylist()
    return found


def one_transaction(table: Table, *messages: pg.PgOutput) -> list[dict[str, Any]]:
    stream = Stream()
    stream.transaction(table.relation, *messages)
    return rows(decode(stream), table.topic)


def test_an_insert_is_a_create_with_everything_the_log_needs() -> None:
    stream = Stream()
    lsn = stream.transaction(KEYED.relation, pg.Insert(KEYED.relid, (b"7", b"", N)))
    decoded = decode(stream)
    (part,) = decoded.rows
    assert part.rows.schema.equals(change_schema(KEYED.topic_schema), check_metadata=True)
    assert (part.topic, part.version) == (KEYED.topic, 1)
    assert part.rows.to_pylist() == [
        {
            "_hash": hash_texts([b"7"]),
            "_op": "c",
            "_lsn": lsn,
            "_txn": stream.xid,
            "_ordinal": 0,
            "_commit_ts": datetime(2000, 1, 1, tzinfo=UTC) + timedelta(seconds=stream.xid),
            "key": {"id": 7},
            "after": {"id": 7, "note": "", "due": None},
            **PLAIN,
        }
    ]
    assert not decoded.new_schemas
    assert not decoded.changes
    assert not decoded.ignored
    assert not decoded.control


def test_an_update_without_old_row_keeps_the_key() -> None:
    (row,) = one_transaction(KEYED, pg.Update(KEYED.relid, (b"7", b"x", b"2026-11-20")))
    assert (row["_op"], row["key"], row["after"]["due"]) == ("u", {"id": 7}, date(2026, 11, 20))
    assert {name: row[name] for name in PLAIN} == PLAIN


def test_an_unchanged_cell_is_marked_and_not_null() -> None:
    (row,) = one_transaction(KEYED, pg.Update(KEYED.relid, (b"7", U, N)))
    assert (row["after"], row["_unchanged"]) == ({"id": 7, "note": None, "due": None}, [2])


def test_an_insert_may_leave_a_cell_unknown() -> None:
    """A row filter turns an update into an insert, without the values that did not change."""
    (row,) = one_transaction(KEYED, pg.Insert(KEYED.relid, (b"7", b"x", U)))
    assert (row["_op"], row["_unchanged"]) == ("c", [3])


def test_an_unchanged_cell_is_taken_from_a_full_old_row() -> None:
    (row,) = one_transaction(FULL, pg.Update(FULL.relid, (b"7", U), old=(b"7", b"long")))
    assert (row["_op"], row["after"], row["_unchanged"]) == ("u", {"id": 7, "note": "long"}, None)
    assert (row["before"], row["_before"]) == ({"id": 7, "note": "long"}, "full")


def test_an_old_key_that_did_not_change_is_no_key_change() -> None:
    """Sent when a key value is TOASTed; the new row may then leave it out."""
    (row,) = one_transaction(KEYED, pg.Update(KEYED.relid, (U, b"x", N), key=(b"7", N, N)))
    assert (row["_op"], row["key"], row["after"]["id"], row["_unchanged"]) == ("u", {"id": 7}, 7, None)
    assert (row["before"], row["_before"]) == ({"id": 7, "note": None, "due": None}, "key")


def test_a_key_change_is_a_delete_and_a_create_that_names_the_old_key() -> None:
    gone, made = one_transaction(KEYED, pg.Update(KEYED.relid, (b"8", U, N), key=(b"7", N, N)))
    assert (gone["_op"], gone["key"], gone["_hash"]) == ("d", {"id": 7}, hash_texts([b"7"]))
    assert (gone["after"], gone["before"], gone["_before"]) == (
        None,
        {"id": 7, "note": None, "due": None},
        "key",
    )
    assert (gone["_moved_from"], gone["_unchanged"]) == (None, None)
    assert (made["_op"], made["key"], made["_hash"]) == ("c", {"id": 8}, hash_texts([b"8"]))
    assert (made["_moved_from"], made["_unchanged"]) == ({"id": 7}, [2])
    assert (made["before"], made["_before"]) == (None, "none")
    assert [gone["_ordinal"], made["_ordinal"]] == [0, 1]


def test_a_key_change_under_full_is_found_by_comparing() -> None:
    gone, made = one_transaction(FULL, pg.Update(FULL.relid, (b"8", U), old=(b"7", b"x")))
    assert (gone["_op"], gone["before"], gone["_before"]) == ("d", {"id": 7, "note": "x"}, "full")
    assert (made["after"], made["_moved_from"]) == ({"id": 8, "note": "x"}, {"id": 7})


def test_cells_of_an_old_key_that_are_no_key_are_unknown_not_null() -> None:
    (row,) = one_transaction(KEYED, pg.Delete(KEYED.relid, key=(b"7", b"should not be here", N)))
    assert (row["before"], row["_before"]) == ({"id": 7, "note": None, "due": None}, "key")


def test_a_delete_under_full_keeps_the_whole_old_row() -> None:
    (row,) = one_transaction(FULL, pg.Delete(FULL.relid, old=(b"7", b"x")))
    assert (row["_op"], row["key"], row["after"]) == ("d", {"id": 7}, None)
    assert (row["before"], row["_before"]) == ({"id": 7, "note": "x"}, "full")


def test_nothing_of_a_deleted_row_lies_underneath_its_missing_after_image() -> None:
    stream = Stream()
    stream.transaction(KEYED.relation, pg.Delete(KEYED.relid, key=(b"7", N, N)))
    (part,) = decode(stream).rows
    after = part.rows["after"].combine_chunks()
    assert all(after.field(number).null_count == 1 for number in range(3))


def test_a_truncate_is_one_row_in_each_of_its_topics() -> None:
    stream = Stream()
    stream.transaction(
        KEYED.relation,
        FULL.relation,
        pg.Insert(FULL.relid, (b"1", N)),
        pg.Truncate((KEYED.relid, FULL.relid), cascade=False, restart_identity=False),
        pg.Insert(KEYED.relid, (b"1", N, N)),
    )
    decoded = decode(stream)
    (first, created) = rows(decoded, KEYED.topic)
    (_, second) = rows(decoded, FULL.topic)
    for row, ordinal in ((first, 1), (second, 2)):
        assert (row["_op"], row["_hash"], row["_ordinal"]) == ("t", 0, ordinal)
        assert (row["key"], row["after"], row["before"]) == (None, None, None)
    assert (created["_op"], created["_ordinal"]) == ("c", 3)


def test_cells_that_do_not_fit_are_kept_as_text_beside_the_row() -> None:
    stream = Stream()
    by_day = Table(5, "days", [("day", DATE, -1, True), ("note", TEXT, -1, False)])
    stream.transaction(
        by_day.relation,
        pg.Insert(5, (b"infinity", b"\xff")),
        pg.Update(5, (b"2026-11-20", b"x"), key=(b"infinity", N)),
    )
    created, gone, moved = rows(decode(stream, by_day), by_day.topic)
    assert (created["key"], created["after"]) == ({"day": None}, {"day": None, "note": None})
    assert created["_raw"] == [(1, b"infinity"), (2, b"\xff")]
    assert (gone["key"], gone["_raw"]) == ({"day": None}, [(1, b"infinity"), (-1, b"infinity")])
    assert gone["_hash"] == created["_hash"] == hash_texts([b"infinity"])
    assert (moved["_moved_from"], moved["_raw"]) == ({"day": None}, [(-1, b"infinity")])


def test_messages_of_applications_become_rows_and_ours_are_handed_over() -> None:
    stream = Stream()
    lsn = stream.transaction(
        pg.Message(True, 1, "audit", b"\0\xff"),
        pg.Message(True, 1, "tailrace.mark", b"7"),
        pg.Message(False, 1, "audit", b"lost"),
        pg.Message(True, 1, "tailraced", b""),
    )
    decoded = decode(stream)
    topic = TopicId.messages(SOURCE)
    assert decoded.new_schemas == [(topic, MESSAGE_SCHEMA)]
    first, second = rows(decoded, topic)
    assert (first["_op"], first["key"], first["_hash"]) == ("m", {"prefix": "audit"}, hash_texts(["audit"]))
    assert first["after"] == {"prefix": "audit", "content": b"\0\xff"}
    assert (second["after"], second["_ordinal"]) == ({"prefix": "tailraced", "content": b""}, 1)
    (mark,) = decoded.control
    assert (mark.prefix, mark.content, mark.commit_lsn, mark.ordinal) == ("tailrace.mark", b"7", lsn, 1)


def test_events_go_to_the_topic_of_their_category() -> None:
    stream = Stream()
    stream.transaction(
        EVENTS.relation,
        pg.Insert(EVENTS.relid, EVENT_ROW),
        pg.Insert(EVENTS.relid, (b"Zahlung \xc3\xa4", *EVENT_ROW[1:])),
        pg.Insert(EVENTS.relid, EVENT_ROW),
    )
    order, other = TopicId.events(SOURCE, "order"), TopicId.events(SOURCE, "Zahlung ä")
    decoded = decode(stream)
    assert decoded.new_schemas == [(order, EVENT_SCHEMA), (other, EVENT_SCHEMA)]
    first, third = rows(decoded, order)
    assert first["key"] == {"stream": "order-7"}
    assert first["after"] == {
        "stream": "order-7",
        "version": 3,
        "type": "Placed",
        "schema_version": 1,
        "data": '{"total": 5}',
        "metadata": None,
        "event_id": "0b7f",
        "recorded_at": datetime(2026, 11, 20, 10, 0, 0, 500_000, tzinfo=UTC),
    }
    assert (first["_op"], first["_hash"]) == ("c", hash_texts(["order-7"]))
    assert [first["_ordinal"], third["_ordinal"]] == [0, 2]
    assert len(rows(decoded, other)) == 1


def test_known_categories_are_not_new() -> None:
    known = decoder()
    stream = Stream()
    for number in range(2):
        stream.transaction(EVENTS.relation, pg.Insert(EVENTS.relid, EVENT_ROW))
        assert len(known.decode(stream.block()).new_schemas) == 1 - number


def test_what_events_must_not_do_is_counted_and_leaves_no_row() -> None:
    stream = Stream()
    stream.transaction(
        EVENTS.relation,
        pg.Update(EVENTS.relid, EVENT_ROW),
        pg.Delete(EVENTS.relid, key=EVENT_ROW),
        pg.Delete(EVENTS.relid, key=EVENT_ROW),
        pg.Truncate((EVENTS.relid,), cascade=False, restart_identity=False),
    )
    decoded = decode(stream)
    assert not decoded.rows
    assert decoded.ignored == {"event updated": 1, "event deleted": 2, "events truncated": 1}


def test_an_events_table_of_another_shape_is_an_operators_matter() -> None:
    stream = Stream()
    strange = Table(9, "events", EVENTS.columns[1:], schema="tailrace")
    stream.transaction(strange.relation, pg.Insert(9, EVENT_ROW[1:]))
    with pytest.raises(OperatorError, match="no column category"):
        decode(stream)


def test_an_event_beside_a_row_of_its_transaction_shares_its_order() -> None:
    stream = Stream()
    stream.transaction(
        KEYED.relation,
        EVENTS.relation,
        pg.Insert(KEYED.relid, (b"7", N, N)),
        pg.Insert(EVENTS.relid, EVENT_ROW),
    )
    decoded = decode(stream)
    (row,), (event,) = rows(decoded, KEYED.topic), rows(decoded, TopicId.events(SOURCE, "order"))
    assert row["_lsn"] == event["_lsn"]
    assert (row["_ordinal"], event["_ordinal"]) == (0, 1)


def test_origins_types_and_stray_aborts_leave_no_row() -> None:
    stream = Stream()
    stream.transaction(pg.Origin(1, "o"), pg.Type(9, "public", "mood"), pg.StreamAbort(1, 2))
    assert not decode(stream).rows


# --- against the reference decoder, by a model that is slow and plain ---

KEYS = [b"1", b"2", b"3", b"-9223372036854775808"]
NOTES = [b"", b"x", "ä€😀".encode(), b"\xff\xfe", b"NULL"]
DAYS = [b"2026-11-20", b"infinity", b"0044-03-15 BC", b"0001-01-01"]
keys = st.sampled_from(KEYS)
notes = st.one_of(st.just(N), st.sampled_from(NOTES))
days = st.one_of(st.just(N), st.sampled_from(DAYS))
keyed_rows = st.tuples(keys, notes, days)
full_rows = st.tuples(keys, notes)
unsent = st.just(U)

changes: st.SearchStrategy[pg.PgOutput] = st.one_of(
    st.builds(pg.Insert, st.just(KEYED.relid), keyed_rows),
    st.builds(pg.Insert, st.just(FULL.relid), full_rows),
    st.builds(pg.Update, st.just(KEYED.relid), st.tuples(keys, notes | unsent, days | unsent)),
    st.builds(
        pg.Update,
        st.just(KEYED.relid),
        st.tuples(keys | unsent, notes | unsent, days),
        key=st.tuples(keys, st.just(N), st.just(N)),
    ),
    st.builds(
        pg.Update, st.just(FULL.relid), st.tuples(keys | unsent, notes | unsent), old=st.tuples(keys, notes)
    ),
    st.builds(pg.Delete, st.just(KEYED.relid), key=st.tuples(keys, st.just(N), st.just(N))),
    st.builds(pg.Delete, st.just(FULL.relid), old=full_rows),
    st.builds(
        pg.Truncate,
        st.sampled_from([(KEYED.relid,), (KEYED.relid, FULL.relid)]),
        st.booleans(),
        st.just(False),
    ),
    st.builds(pg.Message, st.just(True), st.just(1), st.sampled_from(["a", "b"]), st.binary(max_size=3)),
)


@dataclass
class Model:
    """Rows as the reference decoder's messages say, one dict at a time."""

    rows: dict[TopicId, list[dict[str, Any]]] = field(default_factory=dict)
    lsn: int = 0
    xid: int = 0
    ordinal: int = 0

    def take(self, frame: bytes) -> None:
        match pg.decode(frame):
            case pg.Begin(lsn, _, xid):
                self.lsn, self.xid, self.ordinal = lsn, xid, 0
            case pg.Insert(relid, new):
                self.add(self.table(relid), "c", new)
            case pg.Update(relid, new, key, old):
                self.update(self.table(relid), new, key, old)
            case pg.Delete(relid, key, old):
                self.add(self.table(relid), "d", None, key=key, old=old)
            case pg.Truncate(relids):
                for relid in relids:
                    self.add(self.table(relid), "t", None)
            case pg.Message(True, _, prefix, content):
                row = {"prefix": prefix, "content": content}
                self.emit(TopicId.messages(SOURCE), {"_op": "m", "key": {"prefix": prefix}, "after": row})

    def table(self, relid: int) -> Table:
        return KEYED if relid == KEYED.relid else FULL

    def update(self, table: Table, new: pg.Tuple, key: pg.Tuple | None, old: pg.Tuple | None) -> None:
        before = old or key
        if before is not None:
            new = tuple(before[at] if cell is U and (old or at == 0) else cell for at, cell in enumerate(new))
        if before is None or before[0] == new[0]:
            self.add(table, "u", new, key=key, old=old)
        else:
            self.add(table, "d", None, key=key, old=old)
            self.add(table, "c", new, moved=before)

    def add(
        self,
        table: Table,
        op: str,
        new: pg.Tuple | None,
        key: pg.Tuple | None = None,
        old: pg.Tuple | None = None,
        moved: pg.Tuple | None = None,
    ) -> None:
        raw: list[tuple[int, bytes]] = []
        before = old or key
        identity = new or before
        row: dict[str, Any] = {"_op": op, "_before": "full" if old else "key" if key else "none"}
        row["after"] = image(table, new, raw) if new else None
        row["key"] = {"id": int(identity[0])} if identity else None  # type: ignore[arg-type]
        row["before"] = image(table, before, raw, -1) if before else None
        row["_moved_from"] = {"id": int(moved[0])} if moved else None  # type: ignore[arg-type]
        row["_unchanged"] = [at for at, cell in enumerate(new or (), 1) if cell is U] or None
        row["_raw"] = raw or None
        self.emit(table.topic, row)

    def emit(self, topic: TopicId, row: dict[str, Any]) -> None:
        key = row["key"]
        digest = hash_texts([str(*key.values())]) if key else 0
        stamp = {"_lsn": self.lsn, "_txn": self.xid, "_ordinal": self.ordinal, "_hash": digest}
        self.rows.setdefault(topic, []).append({**PLAIN, **row, **stamp})
        self.ordinal += 1


READ: dict[int, Callable[[bytes], object]] = {
    INT8: int,
    TEXT: bytes.decode,
    DATE: lambda day: date.fromisoformat(day.decode()),
}


def image(table: Table, cells: pg.Tuple, raw: list[tuple[int, bytes]], sign: int = 1) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for at, ((name, oid, _, _), cell) in enumerate(zip(table.columns, cells, strict=True), 1):
        value: Any = None
        if isinstance(cell, bytes):
            try:
                value = READ[oid](cell)
            except ValueError:
                raw.append((sign * at, cell))
        values[name] = value
    return values


def comparable(decoded: list[DecodedEpoch]) -> dict[TopicId, list[dict[str, Any]]]:
    found: dict[TopicId, list[dict[str, Any]]] = {}
    for epoch in decoded:
        for part in epoch.rows:
            for row in part.rows.drop_columns(["_commit_ts"]).to_pylist():
                found.setdefault(part.topic, []).append(row)
    return found


transactions = st.lists(st.lists(changes, max_size=8), min_size=1, max_size=5)


def build(content: list[list[pg.PgOutput]]) -> Stream:
    stream = Stream()
    for number, messages in enumerate(content):
        announced = [KEYED.relation, FULL.relation] if number == 0 else []
        stream.transaction(*announced, *messages)
    return stream


@given(transactions)
def test_rows_are_what_the_reference_decoder_says(content: list[list[pg.PgOutput]]) -> None:
    stream = build(content)
    model = Model()
    for frame in stream.frames:
        model.take(frame)
    assert comparable([decode(stream)]) == model.rows


@given(transactions, st.integers(40, 200))
def test_parts_of_a_huge_transaction_give_the_same_rows_as_the_whole(
    content: list[list[pg.PgOutput]], epoch_bytes: int
) -> None:
    stream = build(content)
    assembler = Assembler(epoch_bytes, HUGE, 0)
    parts, decoded = decoder(KEYED, FULL), []
    for frame in stream.frames:
        assembler.feed(frame)
        if assembler.full or assembler.oversized:
            block = assembler.cut()
            if block is not None:
                decoded.append(parts.decode(block))
        if assembler.oversized:
            decoded.append(parts.decode(assembler.spill()))
    last = assembler.cut()
    if last is not None:
        decoded.append(parts.decode(last))
    assert comparable(decoded) == comparable([decode(stream)])


@given(st.lists(keyed_rows, min_size=1, max_size=20))
def test_a_first_load_gives_the_rows_that_the_stream_gives(content: list[tuple[pg.Cell, ...]]) -> None:
    stream = Stream()
    lsn = stream.transaction(KEYED.relation, *(pg.Insert(KEYED.relid, row) for row in content))
    (streamed,) = decode(stream).rows
    columns = [[None if cell is N else cell for cell in column] for column in zip(*content, strict=True)]
    for kind in (pa.binary(), pa.large_binary()):
        loaded = loaded_rows(
            [pa.array(column, kind) for column in columns],
            KEYED.topic_schema,
            Policies(),
            LoadStamp(lsn=lsn, txn=stream.xid, commit_ts=946_684_800_000_000 + stream.xid * 1_000_000),
        )
        loaded.validate(full=True)
        differing = ["_op"]
        assert loaded.drop_columns(differing).equals(
            streamed.rows.drop_columns(differing), check_metadata=True
        )
        assert set(loaded["_op"].to_pylist()) == {"r"}
