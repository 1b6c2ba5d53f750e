"""Where the log's rows stood in Postgres: kept in the log itself, so that a row that comes again is known.

One row for each epoch and partition of a Kafka topic: which of the epoch's rows are from there, and for each its place
in the epoch (``_ordinal``), transaction, LSN, the commit before it, and offset in Kafka, as 64-bit numbers in a row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.cdc.kafka.repeats.duplicates import RowIdentity, RowPosition
from tailrace.cdc.kafka.repeats.taken import taken_rows
from tailrace.eventstore.kafka.reader import Partition
from tailrace.eventstore.model.epoch import TopicRows
from tailrace.eventstore.model.keys import hash_texts
from tailrace.eventstore.model.schema import MESSAGE_SCHEMA, change_schema
from tailrace.eventstore.model.topic import Op, TopicId
from tailrace.eventstore.store import Store

_FIELDS = ("_ordinal", "xid", "lsn", "commit_lsn", "offset")
_UNKNOWN = -1
_SPANS = (64, 1024, 16_384, 1 << 62)  # epochs that are looked at, one after the other
RowPlace = tuple[int, int]  # epoch, place in it


def positions_topic(source: str) -> TopicId:
    """No table can have this name: ``pg_`` is reserved."""
    return TopicId((source, "pg_kafka", "positions"))


def positions_row(
    source: str, partition: Partition, rows: pa.Table, origins: pa.Table, ordinal: int
) -> TopicRows:
    """For ``rows`` that come from one partition with one epoch. Raises IndexError where there are none."""
    columns = [rows["_ordinal"], *(origins[name] for name in _FIELDS[1:])]
    numbers = np.stack([pc.fill_null(each, _UNKNOWN).to_numpy() for each in columns], axis=1)
    prefix = _prefix(*partition)
    lsn: int = rows["_lsn"][0].as_py()
    moment: datetime | None = pc.max(rows["_commit_ts"]).as_py()
    row = {
        "_hash": hash_texts([prefix]),
        "_op": Op.MESSAGE.value,
        "_lsn": lsn,
        "_txn": 0,
        "_ordinal": ordinal,
        "_commit_ts": moment,
        "key": {"prefix": prefix},
        "after": {"prefix": prefix, "content": numbers.astype("<i8").tobytes()},
        "_before": "none",
    }
    table = pa.Table.from_pylist([row], schema=change_schema(MESSAGE_SCHEMA))
    return TopicRows(positions_topic(source), MESSAGE_SCHEMA.version, table)


def held_rows(
    store: Store,
    topic: TopicId,
    partition: Partition,
    wanted: Collection[RowIdentity],
    lowest: RowPosition,
) -> set[RowIdentity]:
    """Those of the rows that the log has from this partition; none of them stood in front of ``lowest``. Looks at the
    latest epochs first, and ends where rows stood in front of it."""
    pairs = {(xid, lsn) for xid, lsn, _, _ in wanted}
    head, places = store.head(), dict[RowPlace, tuple[int, int]]()
    upto = head.epoch if head is not None else 0
    for span in _SPANS:
        after = max(0, upto - span)
        passed = False
        for place, origin in _origins(store, topic.source, partition, after, upto):
            if (origin.xid, origin.lsn) in pairs:
                places[place] = origin.xid, origin.lsn
            passed = passed or _UNKNOWN < origin.commit_lsn < lowest[0]
        if passed or not after:
            break
        upto = after
    found = {(*places[place], operation, key) for place, operation, key in _rows_at(store, topic, places)}
    missing = set(wanted) - found
    return (found & set(wanted)) | (taken_rows(store, topic) & missing if missing else set())


def rows_beyond(
    store: Store, topic: TopicId, partition: Partition, lsn: int, since: int
) -> list[tuple[RowIdentity, int]]:
    """The rows from this partition whose transaction may end behind ``lsn``; they stand at or behind ``since``. Each
    with the commit before it. Also some of snapshots. -1 is what the records did not say.

    Rows come in the order of commits, each with the commit before it. So where that is at or below ``lsn``, all
    transactions before are below it, too."""
    head, found = store.head(), dict[RowPlace, _Origin]()
    upto = head.epoch if head is not None else 0
    for span in _SPANS:
        after = max(0, upto - span)
        found |= dict(_origins(store, topic.source, partition, after, upto))
        first = max((each.commit_lsn for each in found.values() if each.commit_lsn <= lsn), default=_UNKNOWN)
        if not after or any(_UNKNOWN < each.commit_lsn < first for each in found.values()):
            break
        upto = after
    near = {
        place: each
        for place, each in found.items()
        if (each.commit_lsn >= first or each.commit_lsn == _UNKNOWN)
        and (each.lsn >= since or _UNKNOWN in (each.xid, each.lsn))
    }
    return [
        ((near[place].xid, near[place].lsn, operation, key), near[place].commit_lsn)
        for place, operation, key in _rows_at(store, topic, near)
    ]


def later_keys(store: Store, topic: TopicId, partition: Partition, offset: int) -> set[int]:
    """Hashes of the keys of rows that the log has from records behind an offset."""
    origins = _origins(store, topic.source, partition)
    behind = [place for place, origin in origins if origin.offset > offset]
    return {key for _, _, key in _rows_at(store, topic, behind)}


class _Origin(NamedTuple):
    xid: int
    lsn: int
    commit_lsn: int
    offset: int


def _origins(
    store: Store, source: str, partition: Partition, after: int = 0, upto: int | None = None
) -> Iterator[tuple[RowPlace, _Origin]]:
    """Where rows that come from a partition are in the log, each with its origin; of the epochs behind ``after``."""
    topic, prefix = positions_topic(source), _prefix(*partition)
    if topic not in {info.id for info in store.topics(source)}:
        return
    for batch in _read(store, topic, after, upto, ["_epoch", "after"]):
        for row in batch.to_pylist():
            if row["after"]["prefix"] != prefix:
                continue
            numbers = np.frombuffer(row["after"]["content"], "<i8").reshape(-1, len(_FIELDS))
            for ordinal, *origin in numbers.tolist():
                yield (row["_epoch"], ordinal), _Origin(*origin)


def _rows_at(
    store: Store, topic: TopicId, places: Collection[RowPlace]
) -> Iterator[tuple[RowPlace, str, int]]:
    """The topic's rows there: their operation and the hash of their key."""
    if not places:
        return
    wanted, columns = set(places), ["_epoch", "_ordinal", "_op", "_hash"]
    epochs = pa.array(sorted({epoch for epoch, _ in wanted}), pa.int64())
    for batch in _read(store, topic, epochs[0].as_py() - 1, None, columns):
        near = batch.filter(pc.is_in(batch["_epoch"], epochs)).to_pydict()
        for epoch, ordinal, operation, key in zip(*(near[name] for name in columns), strict=True):
            if (epoch, ordinal) in wanted:
                yield (epoch, ordinal), operation, key


def _read(
    store: Store, topic: TopicId, after: int, upto: int | None, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """What the log has of these epochs; retention may have removed the first of them."""
    start = store.log_start(topic).epoch
    if upto is None or upto > start:
        first = after if after >= start else 0
        yield from store.read(topic, after_epoch=first, cut=store.cut(upto), columns=columns)


def _prefix(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"
