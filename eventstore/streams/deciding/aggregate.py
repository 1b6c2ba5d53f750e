"""Decisions as methods of an object: a thin layer over the decider, for those who think so.

class Cart(Aggregate, category="cart"):
    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.items: list[str] = []

    def add(self, item: str) -> None:
        if len(self.items) == 100:
            raise Rejected("the cart is full")
        self.record(Added(item=item))

    @on(Added)
    def _added(self, event: Added) -> None:
        self.items.append(event.item)

handle(connection, Cart, "7", lambda cart: cart.add("apple"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams.deciding.decider import Behaviour

Method = TypeVar("Method", bound=Callable[..., None])
AnyAggregate = TypeVar("AnyAggregate", bound="Aggregate")
_MARK = "__tailrace_events__"


def on(*events: type[Any]) -> Callable[[Method], Method]:
    """Decorator of an aggregate's method: it applies these events, and only changes the object."""

    def declare(method: Method) -> Method:
        setattr(method, _MARK, events)
        return method

    return declare


class Aggregate:
    """Base of objects that decide: their methods ``record`` events, methods marked ``@on(Event)`` apply them.

    An object is made of its ``id`` alone, with the state of a stream without events. An event that no method is marked
    for changes nothing.
    """

    category: ClassVar[str] = ""
    _appliers: ClassVar[dict[type[Any], str]] = {}

    def __init_subclass__(cls, category: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.category = category or cls.category
        cls._appliers = dict(cls._appliers)
        for name, member in vars(cls).items():
            cls._appliers |= dict.fromkeys(getattr(member, _MARK, ()), name)

    def __init__(self, id: str) -> None:
        self.id = id
        self._recorded: list[Any] = []

    def record(self, event: object) -> None:
        """The event happened: it changes this object now, and is appended when the command is done."""
        self.apply(event)
        self._recorded.append(event)

    def apply(self, event: object) -> None:
        """Change the object as the event says."""
        name = self._appliers.get(type(event))
        if name is not None:
            getattr(self, name)(event)

    def take_recorded(self) -> tuple[Any, ...]:
        """The events that are to be appended; they are given once."""
        recorded = tuple(self._recorded)
        self._recorded.clear()
        return recorded


class AggregateBehaviour(Behaviour[Callable[[AnyAggregate], object], AnyAggregate, Any]):
    """A command is a call of the aggregate's methods, a state the object, which changes in place."""

    def __init__(self, kind: type[AnyAggregate]) -> None:
        if not kind.category:
            raise UsageError(
                f"{kind.__qualname__} has no category", hint=f'class {kind.__name__}(Aggregate, category="…")'
            )
        self._kind = kind
        self.category = kind.category
        self.snapshots = None

    def begin(self, id: str) -> AnyAggregate:
        return self._kind(id)

    def fold(self, state: AnyAggregate, events: Iterable[Any]) -> AnyAggregate:
        for event in events:
            state.apply(event)
        return state

    def run(
        self, command: Callable[[AnyAggregate], object], state: AnyAggregate
    ) -> tuple[tuple[Any, ...], AnyAggregate]:
        command(state)
        return state.take_recorded(), state
