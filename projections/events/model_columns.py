"""A model's fields as columns: their types, and whether Arrow reads the JSON as the model does.

| field | column |
|---|---|
| str, UUID, time, timedelta, enum or literal of texts | string |
| int, enum or literal of whole numbers | bigint |
| bool, float | boolean, double |
| Decimal with max_digits and decimal_places | decimal of these; otherwise string, which is exact |
| date | date |
| AwareDatetime, datetime | timestamp, a moment |
| NaiveDatetime | timestamp without time zone |
| list, tuple of one type, set | array |
| a model, a dataclass | struct |
| anything else: dict, unions, Any | string, its JSON |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
from pydantic import TypeAdapter

from tailrace.eventstore.streams.models.codec import changes_values
from tailrace.eventstore.streams.personal.fields import annotation_of, inner_of

_MOMENT: Final = pa.timestamp("us", "UTC")
_PLAIN: Final[Mapping[str, pa.DataType]] = {
    "str": pa.string(),
    "int": pa.int64(),
    "bool": pa.bool_(),
    "float": pa.float64(),
    "date": pa.date32(),
    "uuid": pa.string(),
    "time": pa.string(),
    "timedelta": pa.string(),
}
_LISTS: Final = ("list", "set", "frozenset", "tuple")
_VALIDATORS: Final = ("function-before", "function-after", "function-wrap")
_OF_TEXTS: Final = ("strip_whitespace", "to_lower", "to_upper")
_DECIMAL_DIGITS_MAX: Final = 38


@dataclass(frozen=True, slots=True)
class Field:
    """A field as a column. ``default`` takes the place of NULL, unless it is None."""

    name: str
    type: pa.DataType
    nullable: bool = False
    default: str | int | float | bool | None = None
    parts: tuple[Field, ...] = ()
    """Those of a struct; the items of an array."""
    holds_json: bool = False


@dataclass(frozen=True, slots=True)
class ModelColumns:
    """The columns of a model. ``plain``: JSON that the model takes says the same to Arrow. Otherwise it does so when
    the model has read and written it."""

    fields: tuple[Field, ...]
    plain: bool

    @property
    def type(self) -> pa.StructType:
        return _struct(self.fields)


def model_columns(model: type[Any]) -> ModelColumns:
    """The columns of an event model."""
    reader = _Reader()
    fields = reader.fields_of(TypeAdapter(model).core_schema, top=True)
    return ModelColumns(fields or (), reader.plain)


def _struct(fields: Iterable[Field]) -> pa.StructType:
    return pa.struct([pa.field(each.name, each.type) for each in fields])


@dataclass(slots=True)
class _Reader:
    """Walks a schema of pydantic's core."""

    plain: bool = True
    _definitions: dict[str, Any] = field(default_factory=dict)
    _inside: set[str] = field(default_factory=set)

    def fields_of(self, schema: Any, *, top: bool = False) -> tuple[Field, ...] | None:
        """The fields of a model or dataclass; None for what is neither, and for one inside itself."""
        schema = self._bare(schema)
        ref = schema.get("ref", "")
        if schema["type"] not in ("model", "dataclass") or ref in self._inside:
            return None
        inner = self._bare(schema["schema"])
        if inner["type"] not in ("model-fields", "dataclass-args"):
            return None
        named = inner["fields"]
        pairs = named.items() if isinstance(named, dict) else [(each["name"], each) for each in named]
        self._inside.add(ref)
        found = tuple(self._field(name, self._bare(each), top=top) for name, each in pairs)
        self._inside.discard(ref)
        return found

    def _bare(self, schema: Any) -> Any:
        """Without names of definitions and functions around it; notes where values are changed."""
        while True:
            if annotation_of(schema) is not None:  # once it is erased it is null, whatever it was
                return {"type": "nullable", "schema": inner_of(schema)}
            if changes_values(schema) or any(schema.get(key) for key in _OF_TEXTS):
                self.plain = False
            match schema["type"]:
                case "definitions":
                    self._definitions |= {each["ref"]: each for each in schema["definitions"]}
                    schema = schema["schema"]
                case "definition-ref":
                    schema = self._definitions[schema["schema_ref"]]
                case "model-field" | "dataclass-field":
                    schema = schema["schema"]
                case kind if kind in _VALIDATORS:
                    self.plain = False
                    schema = schema["schema"]
                case _:
                    return schema

    def _field(self, name: str, schema: Any, *, top: bool = False) -> Field:
        nullable, default = False, None
        while schema["type"] in ("default", "nullable"):
            if schema["type"] == "nullable":
                nullable = True
            else:
                default = schema.get("default", ...)
            schema = self._bare(schema["schema"])
        found = self._value(name, schema)
        if default is None:
            return replace(found, nullable=nullable)
        # A column says NULL both for null and for nothing.
        if (
            not top
            or nullable
            or type(default) not in (str, int, float, bool)
            or found.parts
            or found.holds_json
        ):
            self.plain = False
            default = None
        return replace(found, nullable=nullable, default=default)

    def _value(self, name: str, schema: Any) -> Field:
        kind = schema["type"]
        if kind in _PLAIN:
            return Field(name, _PLAIN[kind])
        if kind in ("model", "dataclass") and (fields := self.fields_of(schema)):
            return Field(name, _struct(fields), parts=fields)
        if kind in _LISTS and (item := self._item(schema)) is not None:
            return Field(name, pa.list_(pa.field("item", item.type)), parts=(item,))
        match kind:
            case "decimal":
                digits, places = schema.get("max_digits"), schema.get("decimal_places")
                known = digits is not None and places is not None and places <= digits <= _DECIMAL_DIGITS_MAX
                return Field(name, pa.decimal128(digits, places) if known else pa.string())
            case "datetime":
                naive = schema.get("tz_constraint") == "naive"
                return Field(name, pa.timestamp("us") if naive else _MOMENT)
            case "literal" | "enum":
                values = schema.get("expected") or [each.value for each in schema["members"]]
                for kinds, column in (({str}, pa.string()), ({int}, pa.int64())):
                    if set(map(type, values)) == kinds:
                        return Field(name, column)
        self.plain = False
        return Field(name, pa.string(), holds_json=True)

    def _item(self, schema: Any) -> Field | None:
        """The items of an array; None where they are of several types, by their place."""
        items = schema.get("items_schema", {"type": "any"})
        if isinstance(items, list):
            if len(items) != 1 or schema.get("variadic_item_index") != 0:
                return None
            items = items[0]
        return self._field("item", self._bare(items))
