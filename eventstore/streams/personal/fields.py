"""Which values of an event are about somebody.

    @event("opened")
    class Opened(BaseModel, frozen=True):
        customer: str
        owner: Annotated[str, Personal(subject="customer")]

Nested models and lists may have such fields, of other subjects too. Once a subject was forgotten, its values read as
``ERASED``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.model.redacted import ERASED
from tailrace.eventstore.streams.personal.sealing import MARK

AS_NULL: Final = object()
"""The context of a serialization that writes what was erased as null."""
SUBJECT_BYTES_MAX: Final = 1000
"""A CHECK constraint of tailrace.subject_keys."""


class PersonalValue(NamedTuple):
    """A value of an event, as JSON, and whom it is about."""

    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Personal:
    """Annotates a value that is about somebody. ``subject``: the field of the same model that says whom: a text, a
    whole number or a UUID. ``kind`` tells subjects apart whose ids are of different tables: those of
    ``Personal(subject="id", kind="customer")`` are called ``customer:5``."""

    subject: str
    kind: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        inner = handler(source)
        write = core_schema.wrap_serializer_function_ser_schema(
            self._write, is_field_serializer=True, info_arg=True, schema=inner
        )
        # From JSON without a function of ours in between, which strict models would take for a caller in Python.
        mark = core_schema.dict_schema(
            core_schema.literal_schema([MARK]), core_schema.none_schema(), min_length=1
        )
        erased = core_schema.no_info_after_validator_function(_erased, mark)
        return core_schema.json_or_python_schema(
            core_schema.union_schema([erased, inner], mode="left_to_right"),
            core_schema.no_info_wrap_validator_function(self._read, inner),
            serialization=write,
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(inner_of(schema))

    def _read(self, value: Any, inner: core_schema.ValidatorFunctionWrapHandler) -> Any:
        return ERASED if value is ERASED else inner(value)

    def _write(
        self,
        owner: Any,
        value: Any,
        inner: core_schema.SerializerFunctionWrapHandler,
        info: core_schema.FieldSerializationInfo,
    ) -> Any:
        """Where somebody collects them, a mark that says which of the collected values stands here."""
        if value is ERASED:
            return value if not info.mode_is_json() else None if info.context is AS_NULL else {MARK: None}
        plain = inner(value)
        if not isinstance(info.context, Collected):
            return plain
        return info.context.add(self, owner, plain)


class Collected:
    """The personal values of one event, in order. The context of its serialization, which lets no error of ours pass:
    ``checked`` raises it afterwards."""

    def __init__(self) -> None:
        self._values: list[PersonalValue] = []
        self._problem: UsageError | None = None

    def add(self, part: Personal, owner: object, plain: object) -> object:
        id = getattr(owner, part.subject)
        subject = f"{part.kind}:{id}" if part.kind else str(id)
        self._problem = self._problem or _problem(part, owner, id, subject)
        text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
        self._values.append(PersonalValue(subject, text))
        return {MARK: len(self._values) - 1}

    def checked(self) -> list[PersonalValue]:
        """Raises UsageError for a value whose subject is none."""
        if self._problem is not None:
            raise self._problem
        return self._values


def _problem(part: Personal, owner: object, id: object, subject: str) -> UsageError | None:
    if id is None or id is ERASED or not str(id) or "\0" in subject:
        return UsageError(
            f"{type(owner).__qualname__} has a personal value, and {part.subject} does not say whose",
            hint="give the field a value, or leave the personal one out",
        )
    if len(subject.encode(errors="surrogatepass")) > SUBJECT_BYTES_MAX:
        return UsageError(
            f"{disclosure.value(subject[:80])} is too long for a subject",
            hint=f"at most {SUBJECT_BYTES_MAX} bytes",
        )
    return None


def personal_parts(
    schema: Any, fields: frozenset[str] = frozenset()
) -> Iterator[tuple[Personal, frozenset[str]]]:
    """The annotations in a schema of pydantic's, each with the fields of its model."""
    if isinstance(schema, list):
        for each in schema:
            yield from personal_parts(each, fields)
    elif isinstance(schema, dict):
        mine = annotation_of(schema)
        if mine is not None:
            yield mine, fields
            yield from personal_parts(inner_of(schema), fields)
            return
        match schema.get("type"):
            case "model-fields":
                fields = frozenset(schema["fields"])
            case "dataclass-args":
                fields = frozenset(each["name"] for each in schema["fields"])
        for key, each in schema.items():
            if key != "serialization":
                yield from personal_parts(each, fields)


def annotation_of(schema: Any) -> Personal | None:
    """Whose schema of pydantic's it is."""
    if schema.get("type") != "json-or-python" or schema["python_schema"]["type"] != "function-wrap":
        return None
    owner = getattr(schema["python_schema"]["function"]["function"], "__self__", None)
    return owner if isinstance(owner, Personal) else None


def inner_of(schema: Any) -> CoreSchema:
    """What the schema of an annotation is of."""
    inner: CoreSchema = schema["python_schema"]["schema"]
    return inner


def _erased(_: object) -> object:
    return ERASED
