"""Dead letters: records that wait, with where they are in the log and why they wait, for a topic of their own.

Each goes there once, in the transaction whose position passes it. That its key is released later, and its records are
sent to their own topic then, does not take them back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pyarrow as pa

from tailrace.eventstore.publishing.parked import ParkedKey, waiting_mask
from tailrace.eventstore.publishing.records import RECORDS, TopicRecords

ORIGIN_TOPIC = b"tailrace-topic"  # of the log
ORIGIN_PARTITION = b"tailrace-partition"
ORIGIN_OFFSET = b"tailrace-offset"
REASON = b"tailrace-reason"
TRIES = b"tailrace-tries"  # 0: it waits behind an earlier one of its key
OMITTED = b"tailrace-omitted-bytes"  # of a value that the topic of dead letters does not take either


def dead_letters(found: TopicRecords, parked: Collection[ParkedKey]) -> TopicRecords:
    """What waits with these keys, with the headers above behind those that it has."""
    pieces = [
        _with_headers(found.records.filter(pa.array(waiting_mask(found.records, each))), each)
        for each in parked
        if each.topic == found.topic.text
    ]
    return TopicRecords(found.topic, pa.concat_tables([RECORDS.empty_table(), *pieces]))


def _with_headers(records: pa.Table, parked: ParkedKey) -> pa.Table:
    headers = [
        [*each["headers"], *_headers(parked, each["partition"], each["offset"])]
        for each in records.select(["headers", "partition", "offset"]).to_pylist()
    ]
    return with_headers(records, headers)


def _headers(parked: ParkedKey, partition: int, offset: int) -> list[dict[str, bytes]]:
    first = (partition, offset) == (parked.partition, parked.offset)
    values = {
        ORIGIN_TOPIC: parked.topic, ORIGIN_PARTITION: partition, ORIGIN_OFFSET: offset, REASON: parked.reason,
        TRIES: int(first),
    }  # fmt: skip
    return [header(name, value) for name, value in values.items()]


def header(name: bytes, value: object) -> dict[str, bytes]:
    return {"name": name, "value": str(value).encode()}


def with_headers(records: pa.Table, headers: list[list[dict[str, bytes]]]) -> pa.Table:
    """The same with other headers."""
    at = RECORDS.get_field_index("headers")
    return records.set_column(at, RECORDS.field(at), pa.array(headers, RECORDS.field(at).type))


def without_values(records: pa.Table, rows: Mapping[int, int]) -> pa.Table:
    """Without the values of some rows, whose bytes a header says."""
    values, headers = records["value"].to_pylist(), records["headers"].to_pylist()
    for row, size in rows.items():
        values[row] = None
        headers[row] = [*headers[row], header(OMITTED, size)]
    at = RECORDS.get_field_index("value")
    told = records.set_column(at, RECORDS.field(at), pa.array(values, RECORDS.field(at).type))
    return with_headers(told, headers)
