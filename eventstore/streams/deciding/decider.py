"""A decision as three pure parts: where a stream begins, what a command leads to, and what an event changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams.boundaries.query import Query
from tailrace.eventstore.streams.deciding.snapshots import Every, Snapshots

Command = TypeVar("Command")
State = TypeVar("State")
Event = TypeVar("Event")


class Rejected(Exception):
    """Raised by a decision that refuses its command: nothing is appended, nothing is tried again. ``reason`` is for
    whoever gave the command."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Behaviour(ABC, Generic[Command, State, Event]):
    """What handling a command needs: a ``Decider``, or what an ``Aggregate`` is to it."""

    category: str
    snapshots: Snapshots | None
    boundary: Callable[[Command], Query] | None = None

    @abstractmethod
    def begin(self, id: str) -> State:
        """The state of a stream without events."""

    @abstractmethod
    def fold(self, state: State, events: Iterable[Event]) -> State:
        """The state after events."""

    @abstractmethod
    def run(self, command: Command, state: State) -> tuple[tuple[Event, ...], State]:
        """The events that a command leads to, and the state after them."""


@dataclass(frozen=True)
class Decider(Behaviour[Command, State, Event]):
    """Decides commands to the streams of a category.

    ``decide(command, state)`` gives the events that the command leads to, none where it changes nothing, or raises
    ``Rejected``. ``evolve(state, event)`` gives the next state. Both are pure, and states are not changed in place:
    ``initial_state`` is shared by all streams. ``snapshot`` says when a state is kept, so that later commands read only
    the events after it.

    With a ``boundary`` the state is that of the events which the query of a command asks for, of whatever streams, and
    the stream is only where new events go. Such a state is not kept. Raises UsageError for a ``snapshot`` beside it.
    """

    category: str
    initial_state: State
    decide: Callable[[Command, State], Sequence[Event]]
    evolve: Callable[[State, Event], State]
    snapshot: Every | None = field(default=None, kw_only=True)
    boundary: Callable[[Command], Query] | None = field(default=None, kw_only=True)
    snapshots: Snapshots | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.snapshot is not None and self.boundary is not None:
            raise UsageError(
                f"decider {self.category!r} has a boundary, whose states cannot be kept",
                hint="leave snapshot out; a boundary asks for few events",
            )
        made = None if self.snapshot is None else Snapshots(self.category, self.snapshot, self.initial_state)
        object.__setattr__(self, "snapshots", made)

    def begin(self, id: str) -> State:
        return self.initial_state

    def fold(self, state: State, events: Iterable[Event]) -> State:
        for event in events:
            state = self.evolve(state, event)
        return state

    def run(self, command: Command, state: State) -> tuple[tuple[Event, ...], State]:
        events = tuple(self.decide(command, state))
        return events, self.fold(state, events)
