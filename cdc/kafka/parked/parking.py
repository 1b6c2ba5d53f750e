"""Records that cannot be read: what is kept of them, and what of them is read again.

A record is kept as it came, up to a size. Of a larger one only its place is kept, and it stays in Kafka. A retry takes
what Kafka has before what was kept: headers and timestamps are nowhere else.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tailrace.eventstore.kafka.records import SCHEMA_WITH_HEADERS
from tailrace.eventstore.model.kafka import ParkedRecord, RecordPlace
from tailrace.eventstore.model.time import now_micros

_REASON_MAX = 500  # characters: names of a record's members may be of any length


def parked_record(place: RecordPlace, reason: str, record: pa.Table, bytes_max: int) -> ParkedRecord:
    """What is kept of a record, given as a table of one row; of none at all if ``bytes_max`` is -1."""
    reason = reason if len(reason) <= _REASON_MAX else reason[:_REASON_MAX] + "…"
    size = sum(len(cell.as_buffer()) for cell in (record["key"][0], record["value"][0]) if cell.is_valid)
    if size > bytes_max:
        left = f"; it has {size:,} bytes and is left in Kafka" if bytes_max >= 0 else ""
        return ParkedRecord(place, f"{reason}{left}", now_micros(), None, None)
    key, value = (record[name][0].as_py() for name in ("key", "value"))
    return ParkedRecord(place, reason, now_micros(), key, value)


def record_of(parked: ParkedRecord, there: pa.Table | None) -> pa.Table | None:
    """A parked record as a table of one row; ``there``: what is at its place in Kafka. None: it is nowhere."""
    if there is not None or not parked.is_kept:
        return there
    row: dict[str, Any] = {
        "offset": parked.place.offset,
        "timestamp": parked.parked_at // 1000,
        "key": parked.key,
        "value": parked.value,
        "headers": [],
    }
    return pa.Table.from_pylist([row], schema=SCHEMA_WITH_HEADERS)
