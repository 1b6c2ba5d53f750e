"""Which model an event is stored as: by a declared name and schema version, never by a class name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import IntegrityError, UsageError

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class EventType:
    """The stored name of an event model. A model that is changed incompatibly gets a new version, not a new name."""

    name: str
    version: int


_models: dict[EventType, type[BaseModel]] = {}
_types: dict[type[BaseModel], EventType] = {}


def event(name: str, version: int = 1) -> Callable[[type[Model]], type[Model]]:
    """Class decorator: instances of the model are stored as ``name``, schema ``version``.

    Raises UsageError when the name and version are taken by another model, or the name is empty.
    """
    if not name or version < 1:
        raise UsageError(
            f"{name!r} version {version} cannot name an event",
            hint='@event("deposited"), versions count from 1',
        )

    def declare(model: type[Model]) -> type[Model]:
        kind = EventType(name, version)
        other = _models.get(kind)
        if other is not None and _path(other) != _path(model):  # the same one again: its module was reloaded
            raise UsageError(
                f"event {name!r} version {version} is {_path(other)} and cannot be {_path(model)} too",
                hint="choose another name, or the next version",
            )
        _models[kind] = model
        _types[model] = kind
        return model

    return declare


def _path(model: type[BaseModel]) -> str:
    return f"{model.__module__}.{model.__qualname__}"


def event_type_of(model: type[BaseModel]) -> EventType:
    """The stored name of a model. Raises UsageError when it was not declared."""
    kind = _types.get(model)
    if kind is None:
        raise UsageError(
            f"{_path(model)} is not declared as an event", hint='put @event("name") above the class'
        )
    return kind


def model_of(name: str, version: int) -> type[BaseModel]:
    """The model of a stored name. Raises UsageError, with names that come close, when nobody declared it."""
    model = _models.get(EventType(name, version))
    if model is not None:
        return model
    versions = sorted(kind.version for kind in _models if kind.name == name)
    if versions:
        hint = f"declared are versions {', '.join(map(str, versions))}; keep the models of stored versions"
    else:
        close = difflib.get_close_matches(name, {kind.name for kind in _models}, n=3)
        hint = "import the module that declares it" + (f"; did you mean {', '.join(close)}?" if close else "")
    raise UsageError(f"no model is declared for event {name!r} version {version}", hint=hint)


def encode(instance: BaseModel) -> str:
    """The event's JSON, after a look that it reads back as the same event.

    Raises UsageError when it does not: NaN and infinity, secrets, excluded fields, NUL characters.
    """
    kind = event_type_of(type(instance))
    text = instance.model_dump_json()
    try:
        same = type(instance).model_validate_json(text).model_dump() == instance.model_dump()
    except ValidationError:
        same = False
    if not same or has_nul(instance.model_dump()):
        raise UsageError(
            f"event {kind.name!r} does not survive as JSON in Postgres: {disclosure.value(text[:200])}",
            hint="use fields whose JSON reads back as the same value (no NaN, no secrets, no NUL characters)",
        )
    return text


def has_nul(value: Any) -> bool:
    """Whether a NUL character, which jsonb cannot hold, is anywhere in a value."""
    match value:
        case str():
            return "\0" in value
        case dict():
            return any(has_nul(part) for pair in value.items() for part in pair)
        case list() | tuple() | set() | frozenset():
            return any(has_nul(part) for part in value)
        case _:
            return False


def decode(kind: EventType, text: str) -> BaseModel:
    """The event of a stored name and JSON. Raises UsageError for an undeclared name, IntegrityError when the JSON
    does not fit the model."""
    model = model_of(kind.name, kind.version)
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise IntegrityError(
            f"a stored event {kind.name!r} version {kind.version} does not fit {_path(model)}: "
            + _validation_problems(error, model),
            hint="an incompatible change of a model needs a new version; restore the model of this one",
        ) from None


def _validation_problems(error: ValidationError, model: type[BaseModel]) -> str:
    """Which fields do not fit, and how; what they hold only where values are shown, keys of a dictionary too."""
    if disclosure.values_are_shown():
        return str(error)
    names = (item["loc"][0] if item["loc"] else "" for item in error.errors(include_input=False))
    kinds = (item["type"] for item in error.errors(include_input=False))
    return "; ".join(
        f"{name if name in model.model_fields else 'a field'}: {kind}"
        for name, kind in zip(names, kinds, strict=True)
    )
