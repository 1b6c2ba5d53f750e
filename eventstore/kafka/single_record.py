"""One record of Kafka, read again where it stands."""

from __future__ import annotations

import time

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.errors import TransientError
from tailrace.eventstore.kafka.connection import OffsetLost
from tailrace.eventstore.kafka.reader import Partition, PartitionReader
from tailrace.eventstore.model.kafka import RecordPlace
from tailrace.eventstore.settings.kafka import KafkaConnectionSettings

_FETCH_SECONDS = 0.5
_SECONDS = 20.0


def read_record(settings: KafkaConnectionSettings, place: RecordPlace) -> pa.Table | None:
    """The record with its headers, as a table of one row; None when Kafka has it no more. Raises TransientError (out of
    reach, or it does not come), OperatorError."""
    partition, until = Partition(place.topic, place.partition), time.monotonic() + _SECONDS
    with PartitionReader(settings, headers=True) as reader:
        try:
            reader.seek({partition: place.offset})
            while time.monotonic() < until:
                for fetched in reader.fetch(_FETCH_SECONDS):
                    found = fetched.table.filter(pc.equal(fetched.table["offset"], place.offset))
                    if found.num_rows:
                        return found
                    if fetched.next_offset > place.offset:
                        return None
        except OffsetLost:
            return None
    raise TransientError(f"{place} was not given by Kafka within {_SECONDS:g} seconds", hint="try it again")
