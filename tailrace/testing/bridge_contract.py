"""What every bridge must keep, as a suite of tests: ours pass it, and so can a user's own.

    class TestMyBridge(BridgeContract):
        def open(self):
            return MyBridge({"url": server.url})

        def received(self):
            return [Arrived(each.id, each.body) for each in server.messages()]

        def open_unreachable(self):
            return MyBridge({"url": "http://127.0.0.1:1"})

The tests are plain functions with asserts: any runner that calls ``test_*`` will do. Order, repetition and parking are
Tailrace's work; the suite asks a bridge for what that needs.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tailrace.eventstore.errors import TransientError
from tailrace.eventstore.publishing.bridges.bridge import Answer, Bridge, Later, Message, Refused, Taken


@dataclass(frozen=True, slots=True)
class Arrived:
    """What the system got. ``value`` is None or empty where the message had none."""

    id: str
    value: bytes | None


class BridgeContract:
    """Subclass it, give the three methods, and let a test runner find the subclass. ``name``: where messages go."""

    name = "tailrace.contract"

    def open(self) -> Bridge:
        """A new bridge, as another process would open it."""
        raise NotImplementedError

    def received(self) -> Sequence[Arrived]:
        """Everything that the system got since the test began, in its order where it has one."""
        raise NotImplementedError

    def open_unreachable(self) -> Bridge:
        """A bridge to a system that is not there. May raise TransientError, as opening one may."""
        raise NotImplementedError

    def message(self, value: bytes | None = b"{}", key: bytes | None = b'{"id":1}') -> Message:
        """One that was never sent before."""
        headers = (("content-type", b"application/json"), ("tailrace-erased", '["größe"]'.encode()))
        return Message(uuid.uuid4().hex, self.name, "shop.public.orders", "0/1", key, value, headers)

    def test_what_was_taken_has_arrived_with_its_id_and_value(self) -> None:
        values = [b"{}", '{"name":"Zoë \\u0000"}'.encode(), b"[" + b"1," * 50_000 + b"1]", None]
        sent = [self.message(value, f'{{"id":"{number}é"}}'.encode()) for number, value in enumerate(values)]
        sent.append(self.message(key=None))
        with opened(self.open()) as bridge:
            assert self.answers(bridge, sent) == [Taken()] * len(sent)
        found = {each.id: each.value or None for each in self.received()}
        assert found == {each.id: each.value for each in sent}

    def test_a_hundred_messages_get_an_answer_each_and_those_taken_have_arrived(self) -> None:
        sent = [self.message(key=b"%d" % number) for number in range(100)]
        with opened(self.open()) as bridge:
            answers = self.answers(bridge, sent)
        taken = {each.id for each, answer in zip(sent, answers, strict=True) if isinstance(answer, Taken)}
        assert taken
        assert taken <= {each.id for each in self.received()}

    def test_what_is_sent_again_over_another_bridge_has_the_same_id(self) -> None:
        sent = self.message()
        for _ in range(2):
            with opened(self.open()) as bridge:
                assert self.answers(bridge, [sent]) == [Taken()]
        assert {each.id for each in self.received()} == {sent.id}

    def test_messages_of_one_key_arrive_in_the_order_in_which_they_are_sent(self) -> None:
        sent = [self.message(b"%d" % number) for number in range(10)]
        with opened(self.open()) as bridge:
            for each in sent:
                assert self.answers(bridge, [each]) == [Taken()]
        assert [each.id for each in self.received()] == [each.id for each in sent]

    def test_a_check_sends_nothing(self) -> None:
        with opened(self.open()) as bridge:
            bridge.check()
        assert list(self.received()) == []

    def test_closing_again_does_nothing(self) -> None:
        bridge = self.open()
        bridge.close()
        bridge.close()

    def test_a_system_out_of_reach_takes_nothing_and_may_be_tried_again(self) -> None:
        try:
            with opened(self.open_unreachable()) as bridge:
                answers = self.answers(bridge, [self.message(), self.message(key=b"2")])
        except TransientError:
            return
        assert all(isinstance(each, Later) for each in answers)

    def answers(self, bridge: Bridge, messages: Sequence[Message]) -> Sequence[Answer]:
        found = list(bridge.send(messages))
        assert len(found) == len(messages)
        assert all(isinstance(each, Taken | Refused | Later) for each in found)
        return found


@contextmanager
def opened(bridge: Bridge) -> Iterator[Bridge]:
    try:
        yield bridge
    finally:
        bridge.close()
