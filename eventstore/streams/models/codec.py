"""An event model's JSON, and whether it reads back as the same event.

For most models this follows from the types of their fields, and is decided once. The others (floats that may be NaN,
secrets, excluded fields, validators and serializers of their own) are read back at each append.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import IntegrityError, UsageError
from tailrace.eventstore.streams.models.tags import hidden_tags, tags_reader
from tailrace.eventstore.streams.personal.fields import (
    Collected,
    PersonalValue,
    annotation_of,
    inner_of,
    personal_parts,
)
from tailrace.eventstore.streams.personal.sealing import QUOTED_MARK
from tailrace.eventstore.streams.rows import EventType

_NUL: Final = b"\\u0000"
OURS: Final = "tailrace_"
"""Names of events that Tailrace itself appends begin so."""
_MARK: Final = QUOTED_MARK.encode()
_OTHER_MARK: Final = re.compile(
    rb'(?<!\\)"\$personal":(?!null\})'
)  # null: one that was erased, and is written again
# Kinds of schema whose JSON says everything, whatever the value is; with the keys of what they hold.
_PLAIN: Final = frozenset(
    {
        "str",
        "int",
        "bool",
        "decimal",
        "date",
        "time",
        "datetime",
        "timedelta",
        "uuid",
        "none",
        "definition-ref",
    }
)
_HOLDERS: Final[Mapping[str, tuple[str, ...]]] = {
    "nullable": ("schema",),
    "default": ("schema",),
    "list": ("items_schema",),
    "set": ("items_schema",),
    "frozenset": ("items_schema",),
    "tuple": ("items_schema",),
    "dict": ("keys_schema", "values_schema"),
    "tagged-union": ("choices",),
    "definitions": ("schema", "definitions"),
    "model": ("schema",),
    "model-fields": ("fields",),
    "model-field": ("schema",),
    "dataclass": ("schema",),
    "dataclass-args": ("fields",),
    "dataclass-field": ("schema",),
}
# What changes values on their way out or in.
_CHANGES: Final = frozenset(
    {"serialization", "serialization_exclude", "serialization_exclude_if", "validation_alias", "computed_fields",
     "custom_init", "post_init", "init_only", "extras_schema"}
)  # fmt: skip


class Codec:
    """One model's way to JSON and back."""

    __slots__ = ("_adapter", "_certain", "_dump", "hidden_tags", "is_personal", "parse", "tags", "type")

    def __init__(self, model: type[Any], kind: EventType) -> None:
        self.type = kind
        self._adapter: TypeAdapter[Any] = TypeAdapter(model)
        self._dump = self._adapter.serializer.to_json
        self._certain = survives(self._adapter.core_schema)
        self.is_personal = _is_personal(model, self._adapter)
        """Whether an event may have personal values."""
        self.tags = tags_reader(model)
        """Gives the tags of an event; None where it has none."""
        self.hidden_tags = hidden_tags(model)
        """Names of tags that are stored as codes."""
        self.parse = self._adapter.validator.validate_json
        """The event of a JSON text; pydantic's ValidationError when it does not fit."""

    def encode(self, event: object) -> str:
        """The event's JSON. Raises UsageError when it does not read back as the same event: NaN and infinity, secrets,
        excluded fields, NUL characters."""
        try:
            data = self._dump(event, warnings="error")
        except (PydanticSerializationError, UnicodeEncodeError):  # not validated, or half a surrogate pair
            raise self._lost("") from None
        # Where no null belongs, pydantic writes one without a warning.
        known = self._certain and b"null" not in data
        if not (known or self._reads_back(event, data)) or (_NUL in data and has_nul(self._plain(event))):
            raise self._lost(data[:200].decode(errors="replace"))
        if _MARK in data and _OTHER_MARK.search(data) and not self.type.name.startswith(OURS):
            raise UsageError(
                f"event {self.type.name!r} has an object with a key {QUOTED_MARK}, which is kept for personal values",
                hint="use another key",
            )
        return data.decode()

    def collect(self, event: object) -> tuple[str, list[PersonalValue]]:
        """The event's JSON with a mark in the place of each personal value, and these. Raises what ``encode`` does."""
        text = self.encode(event)
        if not self.is_personal:
            return text, []
        collected = Collected()
        text = self._adapter.dump_json(event, context=collected).decode()
        return text, collected.checked()

    def plain(self, event: object) -> dict[str, Any]:
        """The event as values of JSON."""
        return dict(self._adapter.dump_python(event, mode="json"))

    def json_schema(self) -> dict[str, Any]:
        """What JSON it takes."""
        return self._adapter.json_schema(mode="validation")

    def _reads_back(self, event: object, data: bytes) -> bool:
        try:
            return bool(_comparable(self._plain(self.parse(data))) == _comparable(self._plain(event)))
        except ValidationError:
            return False

    def _plain(self, event: object) -> Any:
        return self._adapter.dump_python(event)

    def _lost(self, text: str) -> UsageError:
        return UsageError(
            f"event {self.type.name!r} does not survive as JSON in Postgres: {disclosure.value(text)}",
            hint="use fields whose JSON reads back as the same value (no NaN, no secrets, no NUL characters)",
        )


def survives(schema: Any) -> bool:
    """Whether every value of a schema of pydantic's reads back from its JSON. False also where this cannot be told."""
    if isinstance(schema, list):
        return all(map(survives, schema))
    if not isinstance(schema, dict):
        return False
    kind = schema.get("type")
    if not isinstance(kind, str):  # fields or choices by name
        return all(survives(each) for each in schema.values())
    if annotation_of(schema) is not None:
        return survives(inner_of(schema))
    if changes_values(schema):
        return False
    match kind:
        case "float":
            return schema.get("allow_inf_nan") is False
        case "decimal":
            return not schema.get("allow_inf_nan")
        case "literal":
            return all(type(each) in (str, int, bool, type(None)) for each in schema["expected"])
        case "enum":
            values = [each.value if isinstance(each, Enum) else each for each in schema["members"]]
            return all(type(each) in (str, int) for each in values)
        case "dict" if schema.get("keys_schema", {}).get("type") != "str":
            return False
        case _ if kind in _PLAIN:
            return True
    parts = _HOLDERS.get(kind)
    return parts is not None and all(part in schema and survives(schema[part]) for part in parts)


def _is_personal(model: type[Any], adapter: TypeAdapter[Any]) -> bool:
    """Raises UsageError for a subject that is no field of the value's own model."""
    found = list(personal_parts(adapter.core_schema))
    for part, fields in found:
        if part.subject not in fields:
            raise UsageError(
                f"{model.__module__}.{model.__qualname__}: {part} names no field beside it",
                hint=f"the subject is a field of the same model: {', '.join(sorted(fields))}",
            )
    return bool(found)


def changes_values(schema: Mapping[str, Any]) -> bool:
    """Whether a schema of pydantic's, not those in it, may change values on their way out or in."""
    config = schema.get("config") or {}
    return (
        any(schema.get(key) for key in _CHANGES)
        or config.get("extra_fields_behavior") == "allow"
        or any(key.startswith(("ser_json", "val_json", "serialize")) for key in config)
    )


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


def _comparable(value: Any) -> Any:
    """With moments in UTC: in the hour that clocks are turned back, Python finds one equal to none in another zone."""
    match value:
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC)
        case dict():
            return {_comparable(key): _comparable(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return type(value)(map(_comparable, value))
        case _:
            return value


def misfit(what: str, model: type[Any], error: ValidationError) -> IntegrityError:
    """Stored data that a model does not take: which fields, and how; what they hold only where values are shown."""
    return IntegrityError(
        f"{what} does not fit {model.__module__}.{model.__qualname__}: {_problems(error, model)}",
        hint="an incompatible change of a model needs a new version; restore the model of this one",
    )


def _problems(error: ValidationError, model: type[Any]) -> str:
    if disclosure.values_are_shown():
        return str(error)
    names = getattr(model, "model_fields", None) or getattr(model, "__dataclass_fields__", {})
    found = [
        (item["loc"][0] if item["loc"] else "", item["type"]) for item in error.errors(include_input=False)
    ]
    # A key of a dictionary is a value, too.
    return "; ".join(f"{name if name in names else 'a field'}: {kind}" for name, kind in found)
