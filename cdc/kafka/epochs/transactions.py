"""Which of the waiting records make whole transactions, by Debezium's transaction metadata. Pure.

    rows     {"transaction": {"id": "7:…", "total_order": 2}, …}, in the topics of their tables
    ends     {"status": "END", "id": "7:…", "data_collections": [{"data_collection": "public.t", "event_count": 3}]}

The id is the transaction's number before the colon; what is behind it differs from row to row. Ends come in the order
of commits, so a transaction may go when it is whole and all before it may. It is whole when as many different rows of
our tables were read as its end counts. A connector that went back sends rows and ends again: rows are told apart by
their place in the transaction (``total_order``), and an end of a transaction that went already is passed over.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.cdc.kafka.decoding.avro.values import Schemas
from tailrace.cdc.kafka.decoding.json_values import Found, Paths
from tailrace.eventstore.kafka.reader import Partition
from tailrace.eventstore.kafka.records import SCHEMA_WITH_HEADERS, RecordBatchRows

_PATHS = Paths({"transaction": {"id": None, "total_order": None}}, wrapped=True)
_END_PATHS = Paths({"status": None, "id": None, "data_collections": None}, wrapped=True)
_GONE_MAX = 100_000  # transactions that are remembered
_NO_RECORDS = SCHEMA_WITH_HEADERS.empty_table()
_ALONE = 10_000  # records of the metadata topic that are an epoch although no row goes
_FREE = -1  # of a record that belongs to no transaction


@dataclass(slots=True)
class _End:
    xid: int
    rows: int
    next_offset: int


@dataclass(slots=True)
class _Rows:
    """Records of one partition in a row, and the transaction of each."""

    fetched: RecordBatchRows
    xids: NDArray[np.int64]

    def split(self, at: int) -> tuple[RecordBatchRows, _Rows]:
        """What is before, and the rest."""
        whole = self.fetched
        offset = whole.table["offset"][at].as_py()
        before = RecordBatchRows(whole.topic, whole.partition, whole.table.slice(0, at), offset)
        rest = RecordBatchRows(whole.topic, whole.partition, whole.table.slice(at), whole.next_offset)
        return before, _Rows(rest, self.xids[at:])


@dataclass(slots=True)
class TransactionCut:
    """``topic``: the metadata topic, of one partition; ``tables``: SCHEMA.TABLE of those that are captured;
    ``schemas_of``: those of records in Avro."""

    topic: str
    tables: frozenset[str]
    schemas_of: Callable[[pa.Table], Schemas | None] = lambda _: None
    _rows: dict[Partition, list[_Rows]] = field(default_factory=dict)
    _ends: deque[_End] = field(default_factory=deque)
    _seen: dict[int, set[int]] = field(default_factory=dict)
    _gone: dict[int, None] = field(default_factory=dict)
    _read_upto: int | None = None
    _passed: int | None = None  # of the metadata topic, by ends of transactions that may go
    _told: int = 0

    def add(self, fetched: RecordBatchRows) -> None:
        if fetched.topic == self.topic:
            self._add_ends(fetched)
            return
        ids, orders = self._transactions(fetched.table)
        for xid, order in zip(ids.tolist(), orders.tolist(), strict=True):
            if xid != _FREE and xid not in self._gone:
                self._seen.setdefault(xid, set()).add(order)
        partition = Partition(fetched.topic, fetched.partition)
        self._rows.setdefault(partition, []).append(_Rows(fetched, ids))

    def _add_ends(self, fetched: RecordBatchRows) -> None:
        self._read_upto = fetched.next_offset
        if not fetched.table.num_rows:
            return
        found = Found(_values(fetched.table), _END_PATHS, self.schemas_of(fetched.table))
        told = (found.texts((name,)).to_pylist() for name in ("status", "id", "data_collections"))
        for offset, status, id_, collections in zip(fetched.table["offset"].to_pylist(), *told, strict=True):
            end = self._end(id_, collections, offset + 1) if status == b"END" else None
            if end is not None:
                self._ends.append(end)

    def _end(self, id_: bytes | None, collections: bytes | None, next_offset: int) -> _End | None:
        """What is no end of a transaction says nothing: a time-out says that one is missing."""
        try:
            counts = {
                each["data_collection"]: each["event_count"] for each in json.loads(collections or b"[]")
            }
            mine = sum(int(count) for name, count in counts.items() if name in self.tables)
            return _End(int((id_ or b"").partition(b":")[0]), mine, next_offset)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None

    def _transactions(self, records: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """By record its transaction and its place there."""
        if not records.num_rows:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        found = Found(_values(records), _PATHS, self.schemas_of(records))
        ids = pc.extract_regex(found.texts(("transaction", "id")).cast(pa.string()), "^(?P<xid>[0-9]{1,18}):")
        orders = found.texts(("transaction", "total_order")).cast(pa.string())
        orders = pc.if_else(pc.match_substring_regex(orders, "^[0-9]{1,18}$"), orders, None).cast(pa.int64())
        xids = pc.struct_field(ids, "xid").cast(pa.int64())
        return _filled(xids), _filled(orders)

    def take(self, *, everything: bool = False) -> tuple[list[RecordBatchRows], list[int]]:
        """What may go now, and with ``everything`` the transactions that are not whole in it."""
        passed = 0
        for end in self._ends:
            if not everything and end.xid not in self._gone and len(self._seen.get(end.xid, ())) < end.rows:
                break
            self._forget([end.xid])
            self._passed, passed = end.next_offset, passed + 1
        for _ in range(passed):
            self._ends.popleft()
        cut = sorted(self._seen) if everything else []
        self._forget(cut)
        open_ones = np.fromiter(self._seen, np.int64, len(self._seen))
        taken = [part for partition in sorted(self._rows) for part in self._take(partition, open_ones)]
        if not self._ends and self._read_upto is not None:
            self._passed, self._read_upto = self._read_upto, None
        if self._passed is not None and (taken or self._passed >= self._told + _ALONE):
            taken.append(RecordBatchRows(self.topic, 0, _NO_RECORDS, self._passed))
            self._told, self._passed = self._passed, None
        return taken, cut

    def _forget(self, xids: Iterable[int]) -> None:
        for xid in xids:
            self._seen.pop(xid, None)
            self._gone[xid] = None
        while len(self._gone) > _GONE_MAX:
            del self._gone[next(iter(self._gone))]

    def _take(self, partition: Partition, open_ones: NDArray[np.int64]) -> list[RecordBatchRows]:
        """The records in front of the first one of an open transaction."""
        waiting, taken = self._rows.pop(partition), []
        for number, each in enumerate(waiting):
            held = np.flatnonzero(np.isin(each.xids, open_ones))
            if not len(held):
                taken.append(each.fetched)
                continue
            before, rest = each.split(int(held[0]))
            if before.table.num_rows:
                taken.append(before)
            self._rows[partition] = [rest, *waiting[number + 1 :]]
            break
        return taken

    @property
    def bytes(self) -> int:
        """Of the records that wait."""
        return sum(each.fetched.table.nbytes for some in self._rows.values() for each in some)


def _values(records: pa.Table) -> pa.LargeBinaryArray:
    column = records["value"].combine_chunks()
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


def _filled(numbers: pa.Array) -> NDArray[np.int64]:
    filled: NDArray[np.int64] = pc.fill_null(numbers, _FREE).to_numpy(zero_copy_only=False)
    return filled


def joined(parts: Sequence[RecordBatchRows]) -> list[RecordBatchRows]:
    """Records of the same partition behind each other, once for each partition."""
    by_partition: dict[Partition, list[RecordBatchRows]] = {}
    for each in parts:
        by_partition.setdefault(Partition(each.topic, each.partition), []).append(each)
    return [
        RecordBatchRows(*partition, pa.concat_tables([each.table for each in some]), some[-1].next_offset)
        for partition, some in sorted(by_partition.items())
    ]


def tables_of(topics: Collection[str]) -> frozenset[str]:
    """SCHEMA.TABLE of Kafka topics of tables."""
    return frozenset(".".join(name.split(".")[-2:]) for name in topics)
