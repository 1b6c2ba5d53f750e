"""Given, when, then: what a decider or an aggregate does, as a test that reads like the requirement.

given(account, Deposited(amount=Decimal(5))).when(Withdraw(Decimal(10))).then_rejected("insufficient funds")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, overload

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams.deciding.aggregate import Aggregate, AnyAggregate
from tailrace.eventstore.streams.deciding.decider import Behaviour, Command, Decider, Event, Rejected, State
from tailrace.eventstore.streams.deciding.handle import behaviour_of
from tailrace.eventstore.streams.models.event_types import codec_of
from tailrace.eventstore.streams.reacting.manager import Due, ProcessManager, Refused

_ID = "given"
AnyCommand = TypeVar("AnyCommand")
AnyState = TypeVar("AnyState")


@overload
def given(decider: Decider[Command, State, Event], *events: Event) -> Given[Command, State]: ...


@overload
def given(
    decider: type[AnyAggregate], *events: object
) -> Given[Callable[[AnyAggregate], object], AnyAggregate]: ...


@overload
def given(decider: ProcessManager[Any, Any], *events: object) -> GivenInputs: ...


def given(
    decider: Decider[Any, Any, Any] | type[Aggregate] | ProcessManager[Any, Any], *events: object
) -> Given[Any, Any] | GivenInputs:
    """A stream with these events. They go through JSON, as stored events do. A decider with a boundary is given those
    of them that its query asks for. Of a process manager, the inputs that an instance had."""
    return (
        GivenInputs(decider, events)
        if isinstance(decider, ProcessManager)
        else Given(behaviour_of(decider), events)
    )


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


class GivenInputs:
    """What came to an instance of a process. Made by ``given``."""

    def __init__(self, manager: ProcessManager[Any, Any], inputs: Sequence[object]) -> None:
        self._manager = manager
        self._inputs = tuple(map(_input, inputs))

    def when(self, input: object) -> Reaction:
        """Another input comes: an event, ``Due`` or ``Refused``. Raises UsageError for an event that is for nobody."""
        event = _input(input)
        if not isinstance(event, Due | Refused) and self._manager.instance_of(event) is None:
            raise UsageError(
                f"process {self._manager.name!r} is not given a {type(event).__name__}",
                hint="name it in key=",
            )
        state = self._manager.initial_state
        for each in self._inputs:
            state = self._manager.after(state, each)
        outputs = self._manager.outputs(event, state)
        return Reaction(self._manager, (*self._inputs, event), outputs, self._manager.after(state, event))


class Reaction:
    """What an input led to. Made by ``GivenInputs.when``. Each check raises AssertionError, or goes on."""

    def __init__(
        self,
        manager: ProcessManager[Any, Any],
        inputs: tuple[object, ...],
        outputs: tuple[object, ...],
        state: object,
    ) -> None:
        self._manager, self._inputs, self._outputs, self._state = manager, inputs, outputs, state

    def then(self, *outputs: object) -> GivenInputs:
        """Exactly these outputs follow, in this order; none: the process waits. Gives what has come by now, to go on
        with ``when``."""
        if self._outputs != outputs:
            raise AssertionError(f"outputs: {_listed(self._outputs)}\nexpected: {_listed(outputs)}")
        return GivenInputs(self._manager, self._inputs)

    def then_state(self, state: object) -> Reaction:
        """The state after it equals this one."""
        if self._state != state:
            raise AssertionError(f"state: {self._state!r}\nexpected: {state!r}")
        return self


def _input(input: object) -> object:
    return input if isinstance(input, Due | Refused) else _stored(input)


def _stored(event: object) -> object:
    codec = codec_of(type(event))
    read: object = codec.parse(codec.encode(event))
    return read


def _listed(events: Sequence[object]) -> str:
    return "".join(f"\n  {event!r}" for event in events) or "none"
