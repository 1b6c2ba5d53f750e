"""Which events came before, by their ids alone."""

from __future__ import annotations

from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cdc.kafka.repeats import event_ids
from tailrace.cdc.kafka.repeats.event_ids import EventIds
from tailrace.eventstore.model.topic import TopicId

TOPIC = TopicId.events("shop", "order")


def rows(*numbers: int) -> pa.Table:
    after = [{"event_id": str(UUID(int=number << 100 | number))} for number in numbers]
    return pa.table({"after": pa.array(after, pa.struct([("event_id", pa.string())]))})


def id_of(number: int) -> bytes:
    return UUID(int=number << 100 | number).bytes


@given(
    st.lists(st.lists(st.integers(0, 30), max_size=6), max_size=12), st.lists(st.integers(0, 30), max_size=8)
)
def test_an_event_is_new_once(batches: list[list[int]], before: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_ids, "_CHUNK", 4)  # so that some are in sorted chunks
        ids = EventIds(1000, lambda *_: [id_of(number) for number in before])
        seen = set(before)
        for batch in batches:
            fresh = []
            for number in batch:
                fresh.append(number not in seen)
                seen.add(number)
            assert ids.fresh(TOPIC, rows(*batch)).tolist() == fresh


def test_only_the_latest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_ids, "_CHUNK", 4)
    ids = EventIds(8, lambda *_: [])
    assert ids.fresh(TOPIC, rows(*range(100))).all()
    assert ids.fresh(TOPIC, rows(*range(92, 100))).tolist() == [False] * 8
    assert ids.fresh(TOPIC, rows(0, 1)).all()
