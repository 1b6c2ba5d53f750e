"""Rows found in a block, turned column by column into one Arrow table of ``change_schema`` per topic version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.cdc.columnar.relations import EventsRoute, TableRoute
from tailrace.cdc.columnar.scan import ScanResult
from tailrace.cdc.columnar.values import raw_column, struct_of, type_columns
from tailrace.cdc.kernels import rows as kernels
from tailrace.cdc.kernels.key_hash import hash_keys
from tailrace.cdc.kernels.rows import Cells, Ints, Ints32
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.wire.buffer import HINT
from tailrace.cdc.wire.replication import UNIX_EPOCH_MICROS
from tailrace.eventstore.errors import ProtocolError
from tailrace.eventstore.model import keys
from tailrace.eventstore.model.epoch import TopicRows
from tailrace.eventstore.model.schema import EVENT_SCHEMA, MESSAGE_SCHEMA, TopicSchema, change_schema
from tailrace.eventstore.model.topic import Op, TopicId

Raw = dict[int, list[tuple[int, bytes]]]
Places = NDArray[np.intp]

OPS = (Op.READ, Op.CREATE, Op.UPDATE, Op.DELETE, Op.TRUNCATE, Op.MESSAGE)  # by the kernels' numbers
_OP_NAMES = pa.array([op.value for op in OPS], pa.string())
_BEFORE_NAMES = pa.array(["none", "key", "full"], pa.string())
_KEY_BYTES = 256  # of most keys
_NO_POLICIES = Policies()
_ORDINAL_MASK = (1 << kernels.STAMP_SHIFT) - 1


def table_rows(
    scan: ScanResult, at: Places, route: TableRoute, policies: Policies, *, unsent: bool
) -> TopicRows:
    """The rows ``at`` of a table. ``unsent``: some have cells that were not sent."""
    builder = _Builder(scan, at, route.topic, route.schema, route.schema.places, policies)
    return builder.finish(unsent=unsent)


def event_rows(scan: ScanResult, at: Places, route: EventsRoute, source: str) -> Iterator[TopicRows]:
    """The rows ``at`` of the events table, by category; categories in the order in which they first appear.

    Raises ProtocolError on an event without category.
    """
    categories = _texts(scan, scan.rows.first[at], route.category)
    codes = categories.dictionary_encode()
    names = codes.dictionary.to_pylist()
    if categories.null_count or b"" in names:
        raise ProtocolError("an event without category", hint=HINT)
    numbers = codes.indices.to_numpy()
    for number, name in enumerate(names):
        try:
            topic = TopicId.events(source, name.decode())
        except UnicodeDecodeError:
            raise ProtocolError("an event's category is not UTF-8", hint=HINT) from None
        builder = _Builder(scan, at[numbers == number], topic, EVENT_SCHEMA, route.cells)
        yield builder.finish(unsent=False)


def message_rows(
    topic: TopicId, messages: Sequence[tuple[bytes, bytes]], stamps: Sequence[int], transactions: Ints
) -> TopicRows:
    """Logical messages as rows, given as (prefix, content in hex) with their stamps."""
    return _told_rows(topic, MESSAGE_SCHEMA, kernels.MESSAGE_OP, messages, stamps, transactions)


def emitted_rows(
    topic: TopicId, events: Sequence[tuple[bytes, ...]], stamps: Sequence[int], transactions: Ints
) -> TopicRows:
    """Events that were emitted, given as the texts of their columns with their stamps."""
    return _told_rows(topic, EVENT_SCHEMA, kernels.CREATE, events, stamps, transactions)


def one_each(parts: Sequence[TopicRows]) -> list[TopicRows]:
    """Rows of a topic that come in several parts as one, in the order of their places."""
    found: dict[tuple[TopicId, int], list[TopicRows]] = {}
    for part in parts:
        found.setdefault((part.topic, part.version), []).append(part)
    return [
        mine[0]
        if len(mine) == 1
        else TopicRows(
            topic,
            version,
            pa.concat_tables([part.rows for part in mine]).sort_by(
                [("_lsn", "ascending"), ("_ordinal", "ascending")]
            ),
        )
        for (topic, version), mine in found.items()
    ]


def _told_rows(
    topic: TopicId,
    schema: TopicSchema,
    op: int,
    told: Sequence[tuple[bytes, ...]],
    stamps: Sequence[int],
    transactions: Ints,
) -> TopicRows:
    """Rows that no table has, by the texts of all their columns."""
    count, width = len(told), len(schema.columns)
    texts = [text for cells in told for text in cells]
    sizes = np.array([len(text) for text in texts], np.int32)
    rows = kernels.Rows(
        route=np.zeros(count, np.int32),
        op=np.full(count, op, np.uint8),
        known=np.zeros(count, np.uint8),
        stamp=np.array(stamps, np.int64),
        first=np.arange(0, width * count, width, dtype=np.int32),
        old=np.full(count, -1, np.int32),
    )
    cells = Cells((np.cumsum(sizes) - sizes).astype(np.int32), sizes)
    found = ScanResult(np.frombuffer(b"".join(texts), np.uint8), rows, cells, transactions)
    return _Builder(found, np.arange(count), topic, schema, range(width)).finish(unsent=False)


def deleted_rows(
    topic: TopicId,
    schema: TopicSchema,
    policies: Policies,
    rows: Sequence[Sequence[bytes | None]],
    stamps: Sequence[int],
    transaction: tuple[int, int, int],
) -> TopicRows:
    """Deletes of rows whose key is known: a cell per column of the schema, None outside of the key.
    ``transaction``: commit LSN, xid, commit time (µs since 2000-01-01 UTC)."""
    count, width = len(rows), len(schema.columns)
    texts = [text for row in rows for text in row]
    sizes = np.array([kernels.NULL if text is None else len(text) for text in texts], np.int32)
    ends = np.cumsum(np.maximum(sizes, 0))
    first = np.arange(0, count * width, width, dtype=np.int32)
    found = ScanResult(
        np.frombuffer(b"".join(text or b"" for text in texts), np.uint8),
        kernels.Rows(
            route=np.zeros(count, np.int32),
            op=np.full(count, kernels.DELETE, np.uint8),
            known=np.full(count, kernels.BEFORE_KEY, np.uint8),
            stamp=np.array(stamps, np.int64),
            first=first,
            old=first,
        ),
        Cells((ends - np.maximum(sizes, 0)).astype(np.int32), sizes),
        np.array([transaction], np.int64),
    )
    return _Builder(found, np.arange(count), topic, schema, range(width), policies).finish(unsent=False)


class _Builder:
    """Columns of some rows. ``places``: where a row's cells, as the server sends them, have the schema's columns."""

    def __init__(
        self,
        scan: ScanResult,
        at: Places,
        topic: TopicId,
        schema: TopicSchema,
        places: Sequence[int],
        policies: Policies = _NO_POLICIES,
    ) -> None:
        rows = scan.rows
        self._found = scan
        self._topic = topic
        self._schema = schema
        self._places = places
        self._policies = policies
        self._key_at = [number for number, column in enumerate(schema.columns) if column.key]
        self._key_policy = any(schema.columns[number].policy for number in self._key_at)
        self._ops, self._known = rows.op[at], rows.known[at]
        self._stamps, self._old = rows.stamp[at], rows.old[at]
        # Where a row's cells begin. A row without an after image has its key cells and nothing else.
        self._key_first: Ints32 = rows.first[at]
        self._absent = (self._ops == kernels.DELETE) | (self._ops == kernels.TRUNCATE)
        self._first: Ints32 = np.where(self._absent, np.int32(-1), self._key_first)

    def finish(self, *, unsent: bool) -> TopicRows:
        """All rows as one table."""
        rows, target = len(self._ops), change_schema(self._schema)
        raw: Raw = {}
        # A column at a time: the texts of all would be the block once more.
        typed, hashed = [], []
        for number, column in enumerate(self._schema.columns):
            first = self._key_first if column.key else self._first
            texts = self._policies.texts([column], [self._texts(first, number)])
            typed += type_columns(texts, [column], raw)
            hashed += texts if column.key and self._key_policy else []
        columns = self._position_columns()
        columns["_hash"] = self._hashes(hashed)
        columns["_op"] = _OP_NAMES.take(pa.array(self._ops))
        columns["key"] = struct_of(
            [typed[at] for at in self._key_at],
            target.field("key").type,
            _mask(self._ops == kernels.TRUNCATE),
        )
        columns["after"] = self._after_images(typed, target.field("after").type)
        columns["before"], columns["_before"] = self._before_images(target.field("before").type, raw)
        columns["_unchanged"] = self._unchanged_columns(target.field("_unchanged").type, unsent)
        columns["_moved_from"] = self._moved_from(target.field("_moved_from").type, raw)
        columns["_raw"] = raw_column(rows, raw, target.field("_raw").type)
        return TopicRows(self._topic, self._schema.version, pa.table(columns, schema=target))

    def _texts(self, first: Ints32, number: int) -> pa.Array:
        return _texts(self._found, first, self._places[number])

    def _position_columns(self) -> dict[str, pa.Array]:
        number = self._stamps >> kernels.STAMP_SHIFT
        lsns, xids, commit_times = (self._found.transactions[:, at] for at in range(3))
        return {
            "_lsn": pa.array(lsns[number]),
            "_txn": pa.array(xids[number]),
            "_ordinal": pa.array(self._stamps & _ORDINAL_MASK),
            "_commit_ts": pa.array(commit_times[number] + UNIX_EPOCH_MICROS).cast(pa.timestamp("us", "UTC")),
        }

    def _hashes(self, texts: Sequence[pa.Array]) -> pa.Array:
        """Hashes of the key in its written form. ``texts``: those of its columns, when one of them has a policy."""
        if self._key_policy:
            hashed = keys.hash_columns(texts)
            mask = _mask(self._ops == kernels.TRUNCATE)
            return hashed if mask is None else pc.if_else(mask, pa.scalar(0, pa.int64()), hashed)
        places = np.array([self._places[number] for number in self._key_at], np.int32)
        hashes = np.empty(len(self._ops), np.int64)
        room = _KEY_BYTES
        while room:
            packed = np.empty(room, np.uint8)
            room = hash_keys(self._found.data, self._found.cells, self._key_first, places, packed, hashes)
        return pa.array(hashes)

    def _after_images(self, typed: Sequence[pa.Array], kind: pa.StructType) -> pa.Array:
        mask = _mask(self._absent)
        columns = list(typed)
        if mask is not None:  # the key cells of deleted rows are no after image, also not underneath the null
            for at in self._key_at:
                columns[at] = pc.if_else(mask, pa.scalar(None, columns[at].type), columns[at])
        return struct_of(columns, kind, mask)

    def _before_images(self, kind: pa.StructType, raw: Raw) -> tuple[pa.Array, pa.Array]:
        """Old images. Where only the key is known, only the key is taken: the server fills the other cells with NULL,
        which means unknown there."""
        where = np.flatnonzero((self._known == kernels.BEFORE_KEY) | (self._known == kernels.BEFORE_FULL))
        if not len(where):
            rows = len(self._ops)
            return pa.nulls(rows, kind), pa.repeat(_BEFORE_NAMES[0], rows)
        old, known = self._old[where], self._known[where]
        whole: Ints32 = np.where(known == kernels.BEFORE_FULL, old, np.int32(-1))
        texts = [
            self._texts(old if number in self._key_at else whole, number)
            for number in range(len(self._places))
        ]
        names = np.where(self._known == kernels.BEFORE_MOVED, np.uint8(kernels.BEFORE_NONE), self._known)
        images = self._images(texts, where, range(len(self._places)), kind, raw)
        return images, _BEFORE_NAMES.take(pa.array(names))

    def _moved_from(self, kind: pa.StructType, raw: Raw) -> pa.Array:
        where = np.flatnonzero(self._known == kernels.BEFORE_MOVED)
        if not len(where):
            return pa.nulls(len(self._ops), kind)
        texts = [self._texts(self._old[where], number) for number in self._key_at]
        return self._images(texts, where, self._key_at, kind, raw)

    def _images(
        self, texts: Sequence[pa.Array], where: Places, at: Sequence[int], kind: pa.StructType, raw: Raw
    ) -> pa.Array:
        """Old images of the rows ``where``, spread over all rows. Cells that do not fit go to ``raw`` under -column
        id: an old image and an old key never meet on one row."""
        own: Raw = {}
        columns = [self._schema.columns[number] for number in at]
        typed = type_columns(self._policies.texts(columns, texts), columns, own, sign=-1)
        for image, entries in own.items():
            raw.setdefault(int(where[image]), []).extend(entries)
        images = struct_of(typed, kind)
        if len(where) == len(self._ops):
            return images
        spread = np.full(len(self._ops), -1, np.int64)
        spread[where] = np.arange(len(where))
        return images.take(pa.array(spread, mask=spread < 0))

    def _unchanged_columns(self, kind: pa.ListType, unsent: bool) -> pa.Array:
        if not unsent:
            return pa.nulls(len(self._ops), kind)
        cells, rows = self._found.cells, len(self._ops)
        width = len(self._schema.sent)
        offsets = np.empty(rows + 1, np.int32)
        places = np.empty(kernels.count_unsent(cells, self._first, width, offsets), np.int32)
        kernels.find_unsent(cells, self._first, width, places)
        ids = np.zeros(width, np.int32)  # 0: a column that is left out
        ids[list(self._places)] = [column.id for column in self._schema.columns]
        named = ids[places] != 0
        owners = np.repeat(np.arange(rows), np.diff(offsets))[named]
        counts = np.bincount(owners, minlength=rows)
        ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        none = pa.array(counts == 0)
        return pa.ListArray.from_arrays(pa.array(ends), pa.array(ids[places[named]]), type=kind, mask=none)


def _texts(scan: ScanResult, first: Ints32, place: int) -> pa.Array:
    """One cell per row as sent, null for NULL and for what was not sent."""
    rows = len(first)
    offsets, valid = np.empty(rows + 1, np.int32), np.zeros((rows + 7) >> 3, np.uint8)
    nulls = kernels.measure(scan.cells, first, place, offsets, valid)
    out = np.empty(int(offsets[rows]), np.uint8)
    kernels.copy(scan.data, scan.cells, first, place, offsets, out)
    buffers = [pa.py_buffer(valid) if nulls else None, pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.BinaryArray.from_buffers(pa.binary(), rows, buffers, nulls)


def _mask(where: NDArray[np.bool_]) -> pa.Array | None:
    return pa.array(where) if where.any() else None


def truncate_row(schema: TopicSchema, lsn: int, commit_ts: int | datetime) -> pa.Table:
    """A truncate in front of rows that are read again: the rows before it no longer count.

    One row in the topic's change schema, the first of its transaction. ``commit_ts``: µs since 1970, or aware."""
    target = change_schema(schema)
    row = dict.fromkeys(target.names) | {
        "_hash": 0,
        "_op": Op.TRUNCATE.value,
        "_lsn": lsn,
        "_txn": 0,
        "_ordinal": 0,
        "_commit_ts": commit_ts,
        "_before": "none",
    }
    return pa.Table.from_pylist([row], schema=target)
