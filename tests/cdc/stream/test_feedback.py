"""The rules of confirming, one test each."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tailrace.cdc.stream.feedback import THROUGH_INTERVAL, Feedback, Status


def idle_keepalive(feedback: Feedback, wal_end: int, *, received_end: int = 0, reply: bool = False) -> None:
    feedback.keepalive(wal_end, reply_requested=reply, in_transaction=False, received_end=received_end)


def test_what_was_received_is_not_confirmed() -> None:
    feedback = Feedback(100)
    feedback.note_received(500)
    assert feedback.next_status(0) == Status(write=500, flush=100, apply=100)


def test_what_the_catalog_committed_is_confirmed_at_once() -> None:
    feedback = Feedback(100)
    feedback.next_status(0)
    feedback.note_received(500)
    assert feedback.next_status(0.01) is None
    feedback.note_durable(400)
    assert feedback.next_status(0.02) == Status(write=500, flush=400, apply=400)
    assert feedback.next_status(0.03) is None


def test_the_confirmed_position_never_goes_back() -> None:
    feedback = Feedback(100)
    feedback.note_durable(400)
    feedback.note_durable(300)
    assert feedback.next_status(0) == Status(400, 400, 400)


def test_a_frame_without_position_says_nothing() -> None:
    feedback = Feedback(100)
    feedback.note_received(0)
    assert feedback.next_status(0) == Status(100, 100, 100)


def test_a_status_is_sent_unasked_every_interval() -> None:
    feedback = Feedback(100, interval=10)
    assert feedback.next_status(5) is not None
    assert feedback.next_status(14.9) is None
    assert feedback.next_status(15) == Status(100, 100, 100)


def test_a_requested_reply_is_given_at_once_and_once() -> None:
    feedback = Feedback(100)
    feedback.next_status(0)
    idle_keepalive(feedback, 100, reply=True)
    assert feedback.next_status(0.001) == Status(100, 100, 100)
    assert feedback.next_status(0.002) is None


def test_an_idle_keepalive_is_reported_as_received() -> None:
    feedback = Feedback(100)
    idle_keepalive(feedback, 700)
    assert feedback.next_status(0) == Status(write=700, flush=100, apply=100)
    assert feedback.flush == 100


def test_without_a_keepalive_no_position_is_stored() -> None:
    """Nothing was ever received, and the log is at 0: its first load is still to come."""
    assert Feedback(0).through_position(0) is None


def test_under_backpressure_the_old_position_is_sent() -> None:
    """The queue is full and a transaction is open: the connection must live, nothing may be confirmed."""
    feedback = Feedback(100)
    feedback.note_received(9_000)
    feedback.keepalive(9_000, reply_requested=True, in_transaction=True, received_end=8_000)
    assert feedback.through_position(0) is None
    assert feedback.next_status(0) == Status(9_000, 100, 100)


def test_an_idle_keepalive_moves_through_lsn_and_is_confirmed_after_that_was_stored() -> None:
    feedback = Feedback(100)
    feedback.next_status(0)
    idle_keepalive(feedback, 700)
    assert feedback.next_status(0.1) is None
    assert feedback.through_position(0.1) == 700
    assert feedback.next_status(0.2) is None
    feedback.note_durable(700)
    assert feedback.next_status(0.3) == Status(700, 700, 700)
    assert feedback.through_position(9) is None


def test_a_keepalive_inside_a_transaction_confirms_nothing() -> None:
    feedback = Feedback(100)
    feedback.keepalive(700, reply_requested=False, in_transaction=True, received_end=0)
    assert feedback.through_position(0) is None


def test_a_keepalive_behind_an_unstored_transaction_waits_for_it() -> None:
    feedback = Feedback(100)
    idle_keepalive(feedback, 700, received_end=600)
    assert feedback.through_position(0) is None
    feedback.note_durable(500)  # an earlier one
    assert feedback.through_position(1) is None
    feedback.note_durable(600)
    assert feedback.through_position(2) == 700


def test_a_keepalive_stays_good_when_a_later_transaction_begins() -> None:
    """What commits later commits above its WAL end."""
    feedback = Feedback(100)
    idle_keepalive(feedback, 700, received_end=600)
    feedback.keepalive(900, reply_requested=False, in_transaction=True, received_end=600)
    feedback.note_durable(600)
    assert feedback.through_position(0) == 700


def test_through_lsn_is_not_stored_for_every_keepalive() -> None:
    """A catalog on the same server writes WAL with each store, which would bring the next keepalive, for ever."""
    feedback = Feedback(100)
    idle_keepalive(feedback, 700)
    assert feedback.through_position(0) == 700
    feedback.note_durable(700)
    idle_keepalive(feedback, 800)
    assert feedback.through_position(THROUGH_INTERVAL / 2) is None
    idle_keepalive(feedback, 900)
    assert feedback.through_position(THROUGH_INTERVAL) == 900


def test_a_server_that_says_nothing_is_asked_for_a_reply_and_given_up_when_none_comes() -> None:
    feedback = Feedback(100, interval=20, patience=60)
    feedback.note_heard(0)
    assert [status and status.reply for status in map(feedback.next_status, (0, 20, 29))] == [
        False,
        False,
        None,
    ]
    assert feedback.next_status(30) == Status(100, 100, 100, reply=True)
    assert feedback.next_status(50) == Status(100, 100, 100), "it is asked once"
    assert not feedback.is_silent(119)
    assert feedback.is_silent(120)


def test_a_server_that_is_heard_of_is_not_given_up() -> None:
    feedback = Feedback(100, interval=20, patience=60)
    feedback.note_heard(0)
    assert feedback.next_status(30) == Status(100, 100, 100, reply=True)
    feedback.note_heard(31)
    assert not feedback.is_silent(1000)
    assert feedback.next_status(61) == Status(100, 100, 100, reply=True)


def test_what_was_heard_before_the_question_is_no_answer() -> None:
    feedback = Feedback(100, interval=20, patience=60)
    feedback.note_heard(1)
    assert feedback.next_status(31) == Status(100, 100, 100, reply=True)
    feedback.note_heard(1)
    assert feedback.is_silent(121)


def test_a_process_that_stood_still_asks_before_it_gives_up() -> None:
    """A machine that was paused for an hour has not been listening: that is no sign of a dead server."""
    feedback = Feedback(100, interval=20, patience=60)
    feedback.note_heard(0)
    assert not feedback.is_silent(3600)
    assert feedback.next_status(3600) == Status(100, 100, 100, reply=True)
    assert not feedback.is_silent(3601)


@dataclass
class Pipeline:
    """Transactions on their way: received in order, stored in order."""

    received: list[tuple[int, int]] = field(default_factory=list)  # (commit_lsn, end_lsn)
    stored: int = 0
    open: bool = False
    wal: int = 100


class ConfirmingMachine(RuleBasedStateMachine):
    """Whatever comes in whatever order: everything that commits below the confirmed position is stored."""

    def __init__(self) -> None:
        super().__init__()
        self.feedback = Feedback(100)
        self.pipeline = Pipeline()
        self.now = 0.0
        self.confirmed = 100

    @precondition(lambda self: not self.pipeline.open)
    @rule()
    def begin(self) -> None:
        self.pipeline.open = True

    @precondition(lambda self: self.pipeline.open)
    @rule(size=st.integers(1, 50))
    def commit(self, size: int) -> None:
        pipe = self.pipeline
        pipe.received.append((pipe.wal, pipe.wal + size))
        pipe.wal += size
        pipe.open = False
        self.feedback.note_received(pipe.wal)

    @precondition(lambda self: self.pipeline.stored < len(self.pipeline.received))
    @rule(count=st.integers(1, 3))
    def store(self, count: int) -> None:
        pipe = self.pipeline
        pipe.stored = min(len(pipe.received), pipe.stored + count)
        self.feedback.note_durable(pipe.received[pipe.stored - 1][1])

    @rule(other_wal=st.integers(0, 50), reply=st.booleans())
    def keepalive(self, other_wal: int, reply: bool) -> None:
        pipe = self.pipeline
        pipe.wal += other_wal
        end = pipe.received[-1][1] if pipe.received else 0
        self.feedback.keepalive(pipe.wal, reply_requested=reply, in_transaction=pipe.open, received_end=end)

    @rule()
    def store_through(self) -> None:
        through = self.feedback.through_position(self.now)
        if through is not None:
            self.feedback.note_durable(through)

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def nothing_unstored_is_confirmed(self) -> None:
        status = self.feedback.next_status(self.now)
        if status is None:
            return
        assert status.flush >= self.confirmed
        assert status.write >= status.flush == status.apply
        self.confirmed = status.flush
        unstored = [commit for commit, _ in self.pipeline.received[self.pipeline.stored :]]
        assert all(commit >= status.flush for commit in unstored)
        if self.pipeline.open:  # it will commit here or later
            assert self.pipeline.wal >= status.flush


TestConfirming = ConfirmingMachine.TestCase


@given(st.lists(st.integers(1, 1000), min_size=1))
def test_the_last_sent_position_is_the_greatest_durable_one(lsns: list[int]) -> None:
    feedback = Feedback(0)
    for lsn in lsns:
        feedback.note_durable(lsn)
    status = feedback.next_status(0)
    assert status is not None
    assert status.flush == max(lsns)
