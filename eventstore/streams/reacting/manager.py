"""A process manager: what an event leads to in other streams, now and later. Pure: no database, no clock.

def react(input: Placed | Paid | Due, state: None) -> list[Do | Timer | Cancel | End]:
    match input:
        case Placed():
            return [Timer("payment", input.placed_at + timedelta(minutes=30))]
        case Paid():
            return [Cancel("payment"), Do(orders, input.order, Ship()), End()]
        case Due(name="payment"):
            return [Do(orders, input.key, CancelOrder("not paid in time")), End()]

fulfilment = ProcessManager("fulfilment", None, react, key={Placed: "order", Paid: "order"})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeAlias, TypeVar

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams.deciding.aggregate import Aggregate
from tailrace.eventstore.streams.deciding.decider import Decider
from tailrace.eventstore.streams.deciding.snapshots import Every, Snapshots
from tailrace.eventstore.streams.models.event_types import event_type_of
from tailrace.eventstore.streams.stream import Stream

Input = TypeVar("Input")
State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Do:
    """A command to a stream: ``handle(…, decider, id, command)``, in the transaction of the process."""

    decider: Decider[Any, Any, Any] | type[Aggregate]
    id: str
    command: Any


@dataclass(frozen=True, slots=True)
class Timer:
    """An input ``Due`` at a time, even if nothing runs then: as soon as something runs again. One of the same name
    takes its place."""

    name: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Cancel:
    """No input ``Due`` for a timer. One that there is not is no mistake: it may just have been due."""

    name: str


@dataclass(frozen=True, slots=True)
class End:
    """The instance is done: its timers go, and whatever comes for it later is passed over."""


Output: TypeAlias = Do | Timer | Cancel | End


@dataclass(frozen=True, slots=True)
class Due:
    """The input that a timer is. ``key`` is that of the instance, ``at`` when it was to be."""

    name: str
    at: datetime
    key: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The input that a rejected command is: the stream it went to (``order/42``), its type's name, and the reason. It
    comes in the transaction of the command, also where the instance ended with that."""

    stream: str
    command: str
    reason: str
    key: str


@dataclass(frozen=True)
class ProcessManager(Generic[Input, State]):
    """Reacts to events, in an instance for each key.

    ``react(input, state)`` gives commands, timers, cancellations and the end; inputs are events of the models in
    ``key``, ``Due`` and ``Refused``. ``evolve(state, input)`` gives the state after an input; without it, it stays as
    it is. Both are pure. ``key`` names for each model the field whose value is the instance, or a function that gives
    it; None is for nobody. What came in is kept in streams of category ``name``. ``snapshot`` says when the state of an
    instance with many inputs is kept, as of a ``Decider``.

    Raises UsageError for a model that is no event or lacks its field, and without any.
    """

    name: str
    initial_state: State
    react: Callable[[Input, State], Sequence[Output]]
    evolve: Callable[[State, Input], State] | None = None
    key: Mapping[type[Any], str | Callable[[Any], object]] = field(default_factory=dict)
    snapshot: Every | None = field(default=None, kw_only=True)
    snapshots: Snapshots | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        Stream(self.name, "any")  # a category
        kept = None if self.snapshot is None else Snapshots(self.name, self.snapshot, self.initial_state)
        object.__setattr__(self, "snapshots", kept)
        if not self.key:
            raise UsageError(f"process {self.name!r} reacts to no event", hint='key={Placed: "order"}')
        for model, named in self.key.items():
            event_type_of(model)
            fields = getattr(model, "model_fields", None) or getattr(model, "__dataclass_fields__", {})
            if isinstance(named, str) and named not in fields:
                raise UsageError(
                    f"process {self.name!r}: {model.__qualname__} has no field {named!r}",
                    hint=f"its fields are {', '.join(fields)}",
                )

    def instance_of(self, event: object) -> str | None:
        """The key of the instance that an event is for; None for nobody."""
        field = self.key.get(type(event))
        if field is None:
            return None
        value = getattr(event, field) if isinstance(field, str) else field(event)
        return None if value is None else str(value)

    def after(self, state: State, input: Input) -> State:
        """The state after an input."""
        return state if self.evolve is None else self.evolve(state, input)

    def outputs(self, input: Input, state: State) -> tuple[Output, ...]:
        """What an input leads to. Raises UsageError for anything else than outputs."""
        found = tuple(self.react(input, state) or ())
        for each in found:
            if not isinstance(each, Do | Timer | Cancel | End):
                raise UsageError(
                    f"process {self.name!r} gave a {type(each).__name__}",
                    hint="give Do, Timer, Cancel or End",
                )
            if isinstance(each, Timer) and each.at.tzinfo is None:
                raise UsageError(
                    f"process {self.name!r}: timer {each.name!r} has a time without a zone",
                    hint="use aware datetimes: datetime.now(UTC)",
                )
        return found
