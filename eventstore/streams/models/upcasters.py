"""Events that earlier models wrote, read by today's: chains of upcasters, from version to version.

    upcast("opened", 1, rename={"name": "owner"}, default={"currency": "EUR"})  # declared: version 1 becomes 2

    @upcaster("moved", 1)
    def split(data: Json) -> list[RawEvent]:                                      # or code, which may split an event
        return [RawEvent("moved_out", 1, {"from": data["from"]}), RawEvent("moved_in", 1, {"to": data["to"]})]

They are pure: what is stored stays as it is, and the same JSON always gives the same events.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, get_args
from uuid import UUID

from pydantic import ValidationError

from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import IntegrityError, UsageError
from tailrace.eventstore.streams.models.codec import misfit
from tailrace.eventstore.streams.models.event_types import codec_of, is_declared, model_of
from tailrace.eventstore.streams.models.reshape import Json, JsonType, Reshape
from tailrace.eventstore.streams.rows import EventType
from tailrace.eventstore.streams.stream import Stream


@dataclass(frozen=True, slots=True)
class RawEvent:
    """An event before it is a model: the type and version that ``data`` are of."""

    type: str
    version: int
    data: Json


Upcast: TypeAlias = "Callable[[Json], Json | Sequence[RawEvent]]"
Function = TypeVar("Function", bound="Callable[[Json], Json | Sequence[RawEvent]]")


class Place(NamedTuple):
    """Where an event is stored."""

    stream: Stream
    version: int
    event_id: UUID | str

    def __str__(self) -> str:
        return f"event {self.version} of {self.stream} (id {self.event_id})"


_upcasters: dict[EventType, Upcast] = {}
_STEPS_MAX: Final = 1000  # of one event: more is a circle


def upcast(
    name: str,
    version: int,
    *,
    drop: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    move: Mapping[str, str] | None = None,
    cast: Mapping[str, JsonType] | None = None,
    default: Mapping[str, Any] | None = None,
) -> None:
    """Declare how events ``name`` of ``version`` become those of the next one. Fields are named by paths (``a.b``).

    In this order: ``drop`` fields, ``rename`` them in their place, ``move`` them to another path, ``cast`` them to
    another kind of JSON ("str", "int", "float", "bool"), and fill in a ``default`` where there is none.

    Raises UsageError when that version has another upcaster, or a kind is unknown.
    """
    unknown = set((cast or {}).values()) - set(get_args(JsonType))
    if unknown:
        raise UsageError(
            f"event {name!r} version {version} cannot be cast to {', '.join(map(repr, unknown))}",
            hint=f"kinds of JSON: {', '.join(get_args(JsonType))}",
        )
    _declare(name, version, Reshape(drop, rename or {}, move or {}, cast or {}, default or {}))


def upcaster(name: str, version: int) -> Callable[[Function], Function]:
    """Decorator: the function makes of an event's JSON that of the next version, or a list of ``RawEvent``: several
    events, other ones, or none. It must be pure.

    Raises UsageError when that version has another upcaster.
    """

    def declare(function: Function) -> Function:
        _declare(name, version, function)
        return function

    return declare


def _declare(name: str, version: int, step: Upcast) -> None:
    kind = EventType(name, version)
    other = _upcasters.get(kind)
    if (
        other is not None and other != step and _name(other) != _name(step)
    ):  # the same again: its module was reloaded
        raise UsageError(
            f"event {name!r} version {version} has two upcasters: {_name(other)} and {_name(step)}",
            hint="one leads from each version to the next; put what both do into one",
        )
    _upcasters[kind] = step


def _name(step: Upcast) -> str:
    return (
        repr(step)
        if isinstance(step, Reshape)
        else f"{step.__module__}.{getattr(step, '__qualname__', step)}"
    )


def read_events(kind: EventType, text: str, place: Place) -> list[tuple[EventType, Any]]:
    """The stored event as today's code has it: mostly one, with the type that it is now.

    Raises UsageError for a type that is not declared, IntegrityError for JSON that an upcaster or a model refuses.
    """
    if kind not in _upcasters:
        return [(kind, _parse(kind, text, place))]
    raw = RawEvent(kind.name, kind.version, json.loads(text))
    return [
        (found, _parse(found, json.dumps(each.data), place))
        for each in _upcast(raw, place)
        for found in [EventType(each.type, each.version)]
    ]


def is_upcast(kind: EventType) -> bool:
    """Whether events of a stored type are read as others."""
    return kind in _upcasters


def declared_steps() -> dict[EventType, Upcast]:
    """All upcasters, by what they read."""
    return dict(_upcasters)


def declare_again(kind: EventType, step: Upcast) -> None:
    """Declare what another process has declared, unless it is here already."""
    _upcasters.setdefault(kind, step)


def parser_of(kind: EventType) -> Callable[[str], Any] | None:
    """What reads the JSON of a stored type, with pydantic's ValidationError; None where an upcaster comes first, or no
    model is declared."""
    if kind in _upcasters or not is_declared(kind):
        return None
    return codec_of(model_of(*kind)).parse


def names_of_code() -> set[str]:
    """Stored names of events of which code may make any others."""
    return {kind.name for kind, step in _upcasters.items() if not isinstance(step, Reshape)}


def _upcast(event: RawEvent, place: Place) -> list[RawEvent]:
    done: list[RawEvent] = []
    waiting = [event]
    for _ in range(_STEPS_MAX):
        if not waiting:
            return done
        each = waiting.pop(0)
        step = _upcasters.get(EventType(each.type, each.version))
        if step is None:
            done.append(each)
        else:
            waiting[:0] = _once(each, step, place)
    raise UsageError(
        f"{place}: upcasters of {event.type!r} version {event.version} go round in circles",
        hint="an upcaster leads to a later version, or to another event that does not lead back",
    )


def _once(event: RawEvent, step: Upcast, place: Place) -> Sequence[RawEvent]:
    about = f"{place}: the upcaster of {event.type!r} version {event.version}"
    try:
        made = step(event.data)
    except Exception as error:  # noqa: BLE001 (whatever it raises, it is about this event)
        raise IntegrityError(
            f"{about} ({_name(step)}) failed: {disclosure.describe_error(error)}",
            hint="mend it for what is stored there; tailrace log show prints the event",
        ) from None
    if isinstance(made, dict):
        return [RawEvent(event.type, event.version + 1, made)]
    if isinstance(made, Sequence) and all(isinstance(each, RawEvent) for each in made):
        return made
    raise UsageError(
        f"{about} ({_name(step)}) gave a {type(made).__name__}",
        hint="return the JSON object of the next version, or a list of RawEvent",
    )


def _parse(kind: EventType, text: str, place: Place) -> Any:
    model = model_of(kind.name, kind.version, place)
    try:
        return codec_of(model).parse(text)
    except ValidationError as error:
        raise misfit(f"{place}: {kind.name!r} version {kind.version}", model, error) from None
