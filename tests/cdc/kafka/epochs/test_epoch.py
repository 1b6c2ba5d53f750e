"""What becomes of records, without a broker: several partitions, snapshots, parked records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from tailrace.cdc.kafka.decoder import TableDecoder
from tailrace.cdc.kafka.epochs.epoch import SNAPSHOT_RUNS, EpochBuilder, Known, Unordered, WentBack
from tailrace.cdc.kafka.repeats.positions import positions_topic
from tailrace.eventstore.kafka.reader import Partition
from tailrace.eventstore.kafka.records import SCHEMA_WITH_HEADERS, RecordBatchRows
from tailrace.eventstore.model.epoch import EpochBatch
from tailrace.eventstore.model.kafka import (
    PartitionProgress,
    SnapshotPhase,
)
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import KafkaSourceSettings

NAME, ITEMS = "p.public.items", TopicId.table("shop", "public", "items")
SETTINGS = KafkaSourceSettings.model_validate({
    "kind": "kafka", "brokers": ["h:1"], "topics": ["p.*"],
    "tables": {"public.items": {"columns": {"id": "integer", "note": "text"}, "key": ["id"]}},
})  # fmt: skip
Record = tuple[bytes | None, bytes | None]


def record(
    op: str, key: int, *, lsn: int = 1, xid: int = 1, snapshot: str = "false", commit: int = 0
) -> Record:
    source = {"txId": xid, "lsn": lsn, "sequence": f'["{commit}","{lsn}"]', "snapshot": snapshot, "ts_ms": 1}
    source |= {"schema": "public", "table": "items"}
    after = None if op in "dt" else {"id": key, "note": "n"}
    envelope = {"op": op, "before": None, "after": after, "source": source}
    return None if op == "t" else json.dumps({"id": key}).encode(), json.dumps(envelope).encode()


def fetched(records: Sequence[Record], partition: int = 0, first: int = 0) -> RecordBatchRows:
    rows: list[dict[str, Any]] = [
        {"offset": first + at, "key": key, "value": value, "headers": []}
        for at, (key, value) in enumerate(records)
    ]
    table = pa.Table.from_pylist(rows, schema=SCHEMA_WITH_HEADERS)
    return RecordBatchRows(NAME, partition, table, first + len(records))


class Source:
    """A source whose epochs are taken in one after the other."""

    def __init__(
        self,
        partitions: int = 1,
        *,
        parks: bool = False,
        keeps: bool = True,
        ends: Mapping[int, int] | None = None,
    ) -> None:
        progress = {
            Partition(NAME, each): PartitionProgress(NAME, each, "id", 0) for each in range(partitions)
        }
        self.known = Known("shop", 0, progress, {NAME: ITEMS}, {}, set())
        self._builder = EpochBuilder(
            self.known,
            TableDecoder.of(SETTINGS),
            lambda *_: set(),
            lambda _: ends or {},
            parks,
            needs_snapshot=True,
            keeps=keeps,
        )

    def epoch(self, *some: RecordBatchRows) -> EpochBatch:
        batch = self._builder.build(some)
        self.known.after(batch)
        return batch


def test_rows_of_several_partitions_are_one_epoch_with_a_place_for_each() -> None:
    source = Source(2)
    batch = source.epoch(
        fetched([record("c", 1, lsn=5), record("c", 2, lsn=6)]),
        fetched([record("c", 3, lsn=5, xid=9)], partition=1),
    )
    assert (batch.commit_lsn, batch.end_lsn, batch.through_lsn, batch.transactions) == (1, 1, 1, 2)
    places = [place for each in batch.rows for place in each.rows["_ordinal"].to_pylist()]
    assert sorted(places) == list(range(5)), "three rows, and two that say where they stood"
    assert [each.topic for each in batch.rows].count(positions_topic("shop")) == 2
    assert [(each.partition, each.next_offset) for each in batch.progress] == [(0, 2), (1, 1)]
    assert dict(batch.new_schemas).keys() == {ITEMS, positions_topic("shop")}
    batch = source.epoch(fetched([record("u", 1, lsn=9)], first=2))
    assert batch.commit_lsn == 2 and batch.new_schemas == [] and source.known.again == 0


def test_records_that_bring_no_row_move_the_partition() -> None:
    batch = Source().epoch(fetched([(b'{"id": 1}', None)]))
    assert not batch.rows and not batch.new_schemas and batch.transactions == 0
    assert batch.progress[0].next_offset == 1


def test_rows_that_came_again_are_counted_and_not_in_the_epoch() -> None:
    source = Source()
    batch = source.epoch(fetched([record("c", 1), record("c", 1), record("u", 1, lsn=2)]))
    assert batch.rows[0].rows["_op"].to_pylist() == ["c", "u"] and source.known.again == 1


def test_a_table_is_whole_when_its_snapshot_was_read_and_again_after_a_second_one() -> None:
    source = Source(ends={0: 99})  # one partition is in order: it matters not what is behind
    batch = source.epoch(fetched([record("r", 1, snapshot="first"), record("r", 2, snapshot="true")]))
    assert batch.completes == [] and ITEMS in source.known.incomplete
    assert source.epoch(fetched([record("r", 3, snapshot="last")], first=2)).completes == [ITEMS]
    batch = source.epoch(fetched([record("u", 1, lsn=9), record("r", 1, snapshot="first")], first=3))
    assert batch.suspends == [(ITEMS, SNAPSHOT_RUNS)] and batch.completes == []
    assert source.epoch(fetched([record("r", 2, snapshot="last")], first=5)).completes == [ITEMS]
    batch = source.epoch(
        fetched([record("r", 1, snapshot="first"), record("r", 2, snapshot="last")], first=6)
    )
    assert batch.suspends == [] and batch.completes == [], "it was whole before and is again"


def test_a_snapshot_over_several_partitions_is_whole_when_all_of_them_were_read_as_far() -> None:
    source = Source(2, ends={0: 1, 1: 3})
    assert source.epoch(fetched([record("r", 1, snapshot="last")])).completes == []
    assert source.epoch(fetched([record("r", 2, snapshot="true")] * 2, partition=1)).completes == []
    assert source.epoch(fetched([record("r", 3, snapshot="true")], partition=1, first=2)).completes == [ITEMS]


def test_a_truncate_stops_where_it_has_no_place() -> None:
    batch = Source().epoch(fetched([record("c", 1), record("t", 0, lsn=2)]))
    assert batch.rows[0].rows["_op"].to_pylist() == ["c", "t"]
    with pytest.raises(Unordered, match="has several partitions"):
        Source(2).epoch(fetched([record("t", 0)]))


def test_a_bad_record_is_parked_with_its_bytes_and_of_one_that_is_too_large_its_place() -> None:
    batch = Source(parks=True).epoch(fetched([record("c", 1), (b"k", b"{"), record("c", 2, lsn=2)]))
    (parked,) = batch.parked
    assert (parked.place.offset, parked.key, parked.value) == (1, b"k", b"{")
    assert batch.rows[0].rows.num_rows == 2 and batch.progress[0].next_offset == 3
    assert parked.is_kept
    (parked,) = Source(parks=True).epoch(fetched([(b"k", b"{" * (1 << 20))])).parked
    assert (parked.key, parked.value, parked.is_kept) == (None, None, False)
    assert parked.reason.endswith("; it has 1,048,577 bytes and is left in Kafka")


def test_a_reason_is_bounded_whatever_a_record_names_its_members() -> None:
    envelope = {"op": "c", "after": {"id": 1, "note": "n", "x" * 100_000: 1}}
    (parked,) = Source(parks=True).epoch(fetched([(b'{"id": 1}', json.dumps(envelope).encode())])).parked
    assert len(parked.reason) < 600


def test_where_columns_are_protected_a_parked_record_is_its_place_and_the_reason() -> None:
    batch = Source(parks=True, keeps=False).epoch(fetched([record("c", 1), (b"k", b"{" * (1 << 20))]))
    (parked,) = batch.parked
    assert (parked.place.offset, parked.is_kept, parked.key, parked.value) == (1, False, None, None)
    assert batch.progress[0].next_offset == 2


def test_a_position_that_went_back_names_the_record() -> None:
    source = Source()
    source.epoch(fetched([record("c", 1, lsn=9)]))
    with pytest.raises(WentBack, match=r"p\.public\.items, partition 0, offset 1"):
        source.epoch(fetched([record("c", 2, lsn=5)], first=1))
    assert source.known.progress[Partition(NAME, 0)] == replace(
        PartitionProgress(NAME, 0, "id", 1), row_lsn=9, snapshot=SnapshotPhase.STREAMED
    )


@pytest.mark.parametrize("millis", [10**17, -(10**17), 9_223_372_036_854_775_807, 253_402_300_800_000])
def test_a_time_that_is_no_time_parks_its_record_and_is_not_written_as_another(millis: int) -> None:
    key, value = record("c", 1)
    assert value is not None
    source = Source(parks=True)
    odd = (key, value.replace(b'"ts_ms": 1,', b'"ts_ms": %d,' % millis))
    assert odd[1] != value
    batch = source.epoch(fetched([odd, record("c", 2, lsn=2)]))
    assert [(each.place.offset, each.reason) for each in batch.parked] == [(0, "its time is out of range")]
    assert batch.rows[0].rows.num_rows == 1 and batch.commit_ts == datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)


def test_the_last_time_that_there_is_is_kept() -> None:
    key, value = record("c", 1)
    assert value is not None
    last = value.replace(b'"ts_ms": 1,', b'"ts_ms": 253402300799999,')
    batch = Source().epoch(fetched([(key, last)]))
    assert batch.commit_ts == datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)


def test_a_bad_record_is_parked_whatever_time_its_producer_gave_it() -> None:
    rows = fetched([(b"k", b"{")])
    times = pa.array([10**17], pa.int64()).cast(pa.timestamp("ms", "UTC"))
    place = rows.table.schema.get_field_index("timestamp")
    odd = replace(rows, table=rows.table.set_column(place, rows.table.schema.field(place), times))
    (parked,) = Source(parks=True).epoch(odd).parked
    assert (parked.key, parked.value) == (b"k", b"{")
