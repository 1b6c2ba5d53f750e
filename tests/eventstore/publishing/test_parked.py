"""Which records wait with a parked key."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.publishing.parked import ParkedKey, waiting_records, without_parked
from tailrace.eventstore.publishing.records import RECORDS, TopicRecords

ORDERS = TopicId.table("shop", "public", "orders")
PARKED = ParkedKey(ORDERS.text, hash=7, partition=1, offset=5, after_epoch=3, reason="too large")


def records(*rows: tuple[int, int, int], topic: TopicId = ORDERS) -> TopicRecords:
    """By (hash, partition, offset); the hash 0 is a truncate's."""
    told = [
        {"hash": number, "partition": partition, "offset": offset, "to_all": number == 0, "headers": []}
        for number, partition, offset in rows
    ]
    return TopicRecords(topic, pa.Table.from_pylist(told, RECORDS))


def places(found: TopicRecords) -> list[tuple[int, int, int]]:
    rows = found.records.select(["hash", "partition", "offset"]).to_pylist()
    return [(row["hash"], row["partition"], row["offset"]) for row in rows]


def test_rows_of_the_key_wait_from_the_first_on_and_no_others() -> None:
    given = records((7, 1, 4), (7, 1, 5), (8, 1, 6), (0, 1, 7), (7, 1, 8), (7, 9, 0))
    assert places(without_parked(given, [PARKED])) == [(7, 1, 4), (8, 1, 6), (0, 1, 7)]
    other = records((7, 1, 5), topic=TopicId.table("shop", "public", "items"))
    assert places(without_parked(other, [PARKED])) == [(7, 1, 5)]


def test_what_a_truncate_removed_meanwhile_does_not_come_back() -> None:
    given = records((7, 1, 4), (7, 1, 5), (0, 1, 6), (7, 1, 7), (8, 1, 8))
    assert places(waiting_records(given, PARKED)) == [(7, 1, 7)]
    assert places(waiting_records(records((7, 1, 4), (7, 1, 5)), PARKED)) == [(7, 1, 5)]


def test_a_parked_key_is_read_as_it_was_written() -> None:
    assert ParkedKey.from_json(PARKED.to_json(), "here") == PARKED
    with pytest.raises(IntegrityError, match="here holds a record"):
        ParkedKey.from_json(b'{"topic": 1}', "here")
