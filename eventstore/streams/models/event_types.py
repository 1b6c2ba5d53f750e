"""Which model an event is stored as: by a declared name and schema version, never by a class name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import is_dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams.models.codec import Codec
from tailrace.eventstore.streams.models.tags import hidden_tags, tagged_fields
from tailrace.eventstore.streams.rows import EventType

Model = TypeVar("Model")
_models: dict[EventType, type[Any]] = {}
_types: dict[type[Any], EventType] = {}
_codecs: dict[type[Any], Codec] = {}  # made at the first use: a model may name another that comes below it


def event(name: str, version: int = 1) -> Callable[[type[Model]], type[Model]]:
    """Class decorator: instances of the model (pydantic's, or a dataclass) are stored as ``name``, schema ``version``.

    Raises UsageError when the name and version are taken by another model, the name is empty, or the class is no model.
    """
    if not name or version < 1:
        raise UsageError(
            f"{name!r} version {version} cannot name an event",
            hint='@event("deposited"), versions count from 1',
        )

    def declare(model: type[Model]) -> type[Model]:
        if not (isinstance(model, type) and (issubclass(model, BaseModel) or is_dataclass(model))):
            raise UsageError(
                f"{model!r} cannot be event {name!r}",
                hint="declare a class of pydantic's BaseModel, or a dataclass (@event above @dataclass)",
            )
        kind = EventType(name, version)
        other = _models.get(kind)
        if other is not None and _path(other) != _path(model):  # the same one again: its module was reloaded
            raise UsageError(
                f"event {name!r} version {version} is {_path(other)} and cannot be {_path(model)} too",
                hint="choose another name, or the next version",
            )
        _models[kind] = model
        _types[model] = kind
        _hidden_of_all.cache_clear()
        return model

    return declare


def _path(model: type[Any]) -> str:
    return f"{model.__module__}.{model.__qualname__}"


def event_type_of(model: type[Any]) -> EventType:
    """The stored name of a model. Raises UsageError when it was not declared."""
    kind = _types.get(model)
    if kind is None:
        raise UsageError(
            f"{_path(model)} is not declared as an event", hint='put @event("name") above the class'
        )
    return kind


def model_of(name: str, version: int, place: object = "") -> type[Any]:
    """The model of a stored name, of an event that is at ``place``. Raises UsageError, with names that come close, when
    nobody declared it."""
    model = _models.get(EventType(name, version))
    if model is not None:
        return model
    versions = sorted(kind.version for kind in _models if kind.name == name)
    if versions:
        hint = f"declared are versions {', '.join(map(str, versions))}; "
        hint += f"upcast({name!r}, {version}, …) leads to the next, or keep the model of that version"
    else:
        import difflib  # only for this error

        close = difflib.get_close_matches(name, {kind.name for kind in _models}, n=3)
        hint = "import the module that declares it" + (f"; did you mean {', '.join(close)}?" if close else "")
    where = f"{place}: " if place else ""
    raise UsageError(f"{where}no model is declared for event {name!r} version {version}", hint=hint)


def is_declared(kind: EventType) -> bool:
    """Whether there is a model for a stored name and version."""
    return kind in _models


def codec_of(model: type[Any]) -> Codec:
    """How a declared model becomes JSON and back."""
    codec = _codecs.get(model)
    if codec is None:
        codec = _codecs[model] = Codec(model, event_type_of(model))
    return codec


def tags_of(event: object) -> tuple[str, ...]:
    """The tags of an event, as ``name:value``. Raises UsageError for a value that cannot be one."""
    read = codec_of(type(event)).tags
    return () if read is None else read(event)


def declared_types() -> dict[EventType, Codec]:
    """All declared events."""
    return {kind: codec_of(model) for kind, model in _models.items()}


def names_of_hidden_tags(asked: Collection[str], models: Collection[type[Any]] = ()) -> frozenset[str]:
    """Which of the tag names ``asked`` are stored as codes, in these events or in all that are declared, because their
    values are personal. Raises UsageError for one of all that is personal in some events only."""
    if models:
        return frozenset(name for each in models for name in hidden_tags(each)).intersection(asked)
    hidden = _hidden_of_all().intersection(asked)
    for kind, model in _models.items() if hidden else ():
        plain = (tagged_fields(model).keys() & hidden) - hidden_tags(model)
        if plain:
            raise UsageError(
                f"tag {min(plain)!r} is personal in some events, and not in {kind.name!r} version {kind.version}",
                hint="annotate the field as Personal in each of them, or name the events: Query(Registered, …)",
            )
    return hidden


def may_be_hidden(name: str) -> bool:
    """Whether a tag of this name is personal in any event that is declared."""
    return name in _hidden_of_all()


@functools.cache
def _hidden_of_all() -> frozenset[str]:
    return frozenset(name for model in _models.values() for name in hidden_tags(model))
