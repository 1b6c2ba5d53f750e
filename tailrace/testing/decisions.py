"""Given, when, then: what a decider or an aggregate does, as a test that reads like the requirement.

given(account, Deposited(amount=Decimal(5))).when(Withdraw(Decimal(10))).then_rejected("insufficient funds")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, overload

from tailrace.eventstore.streams.deciding.aggregate import Aggregate, AnyAggregate
from tailrace.eventstore.streams.deciding.decider import Behaviour, Command, Decider, Event, Rejected, State
from tailrace.eventstore.streams.deciding.handle import behaviour_of
from tailrace.eventstore.streams.models.event_types import codec_of

_ID = "given"
AnyCommand = TypeVar("AnyCommand")
AnyState = TypeVar("AnyState")


@overload
def given(decider: Decider[Command, State, Event], *events: Event) -> Given[Command, State]: ...


@overload
def given(
    decider: type[AnyAggregate], *events: object
) -> Given[Callable[[AnyAggregate], object], AnyAggregate]: ...


def given(decider: Decider[Any, Any, Any] | type[Aggregate], *events: object) -> Given[Any, Any]:
    """A stream with these events. They go through JSON, as stored events do. A decider with a boundary is given those
    of them that its query asks for."""
    return Given(behaviour_of(decider), events)


class Given(Generic[AnyCommand, AnyState]):
    """What has happened. Made by ``given``."""

    def __init__(self, behaviour: Behaviour[AnyCommand, AnyState, Any], events: Sequence[object]) -> None:
        self._behaviour = behaviour
        self._events = tuple(_stored(event) for event in events)

    def when(self, command: AnyCommand) -> When[AnyCommand, AnyState]:
        """The command is decided on it."""
        inside = self._events
        if self._behaviour.boundary is not None:
            query = self._behaviour.boundary(command)
            inside = tuple(event for event in self._events if query.matches(event))
        state = self._behaviour.fold(self._behaviour.begin(_ID), inside)
        try:
            made, after = self._behaviour.run(command, state)
        except Rejected as refused:
            return When(self._behaviour, self._events, (), state, refused)
        return When(self._behaviour, self._events, tuple(_stored(event) for event in made), after, None)


class When(Generic[AnyCommand, AnyState]):
    """What a command led to. Made by ``Given.when``. Each check raises AssertionError, or goes on."""

    def __init__(
        self,
        behaviour: Behaviour[AnyCommand, AnyState, Any],
        before: tuple[object, ...],
        made: tuple[object, ...],
        state: AnyState,
        refused: Rejected | None,
    ) -> None:
        self._behaviour, self._before, self._made = behaviour, before, made
        self._state, self._refused = state, refused

    def then(self, *events: object) -> Given[AnyCommand, AnyState]:
        """Exactly these events follow; none: the command changes nothing. Gives what has happened by now, to go on with
        ``when``."""
        if self._refused is not None:
            raise AssertionError(f"rejected: {self._refused.reason}\nexpected: {_listed(events)}")
        if self._made != events:
            raise AssertionError(f"events: {_listed(self._made)}\nexpected: {_listed(events)}")
        return Given(self._behaviour, (*self._before, *self._made))

    def then_rejected(self, reason: str = "") -> Given[AnyCommand, AnyState]:
        """The command is refused, with ``reason`` in what is said."""
        if self._refused is None:
            raise AssertionError(f"events: {_listed(self._made)}\nexpected: rejected, {reason!r}")
        if reason not in self._refused.reason:
            raise AssertionError(f"rejected: {self._refused.reason}\nexpected: {reason!r}")
        return Given(self._behaviour, self._before)

    def then_state(self, state: AnyState) -> When[AnyCommand, AnyState]:
        """The state after it equals this one."""
        if self._state != state:
            raise AssertionError(f"state: {self._state!r}\nexpected: {state!r}")
        return self


def _stored(event: object) -> object:
    codec = codec_of(type(event))
    read: object = codec.parse(codec.encode(event))
    return read


def _listed(events: Sequence[object]) -> str:
    return "".join(f"\n  {event!r}" for event in events) or "none"
