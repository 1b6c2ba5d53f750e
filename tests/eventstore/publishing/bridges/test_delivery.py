"""In which order messages go out, whatever a destination answers."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.publishing.bridges.bridge import TAKEN, Answer, Later, Message, Refused
from tailrace.eventstore.publishing.bridges.delivery import BATCH_MAX, deliver
from tailrace.eventstore.publishing.bridges.messages import Outgoing
from tailrace.eventstore.publishing.records import RECORDS, TopicRecords

NOTHING = TopicRecords(TopicId.table("shop", "public", "orders"), pa.Table.from_pylist([], RECORDS))
TRUNCATE = 0
keys = st.lists(st.integers(TRUNCATE, 3), max_size=30)


def outgoing(key: int, number: int) -> Outgoing:
    message = Message(str(number), "orders", "shop.public.orders", f"0/{number}", b"", b"")
    return Outgoing(message, NOTHING, number, key, key == TRUNCATE)


@given(keys, st.lists(st.booleans(), max_size=60))
def test_whatever_is_answered_each_is_taken_once_and_none_before_what_its_key_waits_for(
    given_keys: list[int], told: list[bool]
) -> None:
    taken: list[Outgoing] = []
    left = list(told)

    def send(batch: Sequence[Outgoing]) -> Sequence[Answer]:
        assert 0 < len(batch) <= BATCH_MAX
        assert len({each.hash for each in batch}) == len(batch)
        assert len(batch) == 1 or not any(each.to_all for each in batch)
        answers = [left.pop() if left else True for _ in batch]
        taken.extend(each for each, now in zip(batch, answers, strict=True) if now)
        return [TAKEN if now else Later("busy", 2.0) for now in answers]

    def pause(answer: Later, _: bool) -> None:
        assert answer == Later("busy", 2.0)

    messages = [outgoing(key, number) for number, key in enumerate(given_keys)]
    deliver(messages, send, pause)
    assert sorted(each.row for each in taken) == list(range(len(messages)))
    for each in taken:
        before = taken[: taken.index(each)]
        waits_for = [
            other for other in messages[: each.row] if each.to_all or other.to_all or other.hash == each.hash
        ]
        assert all(other in before for other in waits_for)


@given(keys, st.integers(0, 30))
def test_nothing_follows_the_batch_in_which_one_was_refused(given_keys: list[int], refused: int) -> None:
    sent: list[int] = []

    def send(batch: Sequence[Outgoing]) -> Sequence[Answer]:
        assert refused not in sent
        sent.extend(each.row for each in batch)
        return [Refused("no", "") if each.row == refused else TAKEN for each in batch]

    deliver([outgoing(key, number) for number, key in enumerate(given_keys)], send, lambda *_: None)
    assert (len(sent) == len(given_keys)) or refused in sent
