"""Which fields of an event are tags: values by which it is found beside its stream.

    @event("enrolled")
    class Enrolled(BaseModel, frozen=True):
        course: Annotated[str, Tag()]         # tag course:<value>
        student: Annotated[str, Tag("person")]

A tag is a name and a value. A field may hold several values, or None, which is no tag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any, Final, get_args, get_type_hints
from uuid import UUID

from pydantic import BaseModel

from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.model.redacted import ERASED
from tailrace.eventstore.streams.personal.fields import Personal

TAG_BYTES_MAX: Final = 1000
"""A CHECK constraint of tailrace.tags."""
_SEVERAL: Final = (list, tuple, set, frozenset)


@dataclass(frozen=True, slots=True)
class Tag:
    """Annotates a field whose value is a tag. ``name``: that of the field, if not given."""

    name: str = ""


def tag(name: str, value: object) -> str:
    """``name:value``. Raises UsageError for a value that is neither a text, a whole number, a UUID, a date nor an enum
    of such, or is too long."""
    plain = value.value if isinstance(value, Enum) else value
    if isinstance(plain, bool) or not isinstance(plain, str | int | UUID | date):
        raise UsageError(
            f"a {type(value).__name__} cannot be the tag {name!r}",
            hint="tag texts, whole numbers, UUIDs, dates, enums of them, or lists of these",
        )
    text = f"{name}:{plain.isoformat() if isinstance(plain, date) else plain}"
    if len(text.encode(errors="surrogatepass")) > TAG_BYTES_MAX or "\0" in text:
        raise UsageError(
            f"tag {name!r} cannot have the value {disclosure.value(text[:80])}",
            hint=f"with its name, at most {TAG_BYTES_MAX} bytes of UTF-8 without NUL",
        )
    return text


def tagged_fields(model: type[Any]) -> dict[str, str]:
    """By name of a tag the field of a model that it is. Raises UsageError for two fields of one tag."""
    found: dict[str, str] = {}
    for name, tagged, _ in _annotated(model):
        label = tagged.name or name
        if ":" in label or found.setdefault(label, name) != name:
            raise UsageError(
                f"{model.__module__}.{model.__qualname__}: field {name!r} cannot be the tag {label!r}",
                hint="each tag is one field, and its name has no colon",
            )
    return found


def hidden_tags(model: type[Any]) -> frozenset[str]:
    """Names of tags whose values are personal: they are stored as codes."""
    return frozenset(tagged.name or name for name, tagged, personal in _annotated(model) if personal)


def _annotated(model: type[Any]) -> Iterable[tuple[str, Tag, bool]]:
    """Fields that are tags, and whether they are personal."""
    if issubclass(model, BaseModel):
        fields: Iterable[tuple[str, Iterable[object], Any]] = (
            (name, field.metadata, field.annotation) for name, field in model.model_fields.items()
        )
    else:
        hints = get_type_hints(model, include_extras=True)
        fields = ((name, getattr(hint, "__metadata__", ()), hint) for name, hint in hints.items())
    return [
        (name, each, any(isinstance(other, Personal) for other in (*metadata, *_inside(hint))))
        for name, metadata, hint in fields
        for each in metadata
        if isinstance(each, Tag)
    ]


def _inside(hint: Any) -> Iterable[object]:
    """All annotations inside a type."""
    for each in get_args(hint):
        yield from (*getattr(each, "__metadata__", ()), *_inside(each))


def tags_reader(model: type[Any]) -> Callable[[object], tuple[str, ...]] | None:
    """What gives the tags of an event, each once, in the order of its fields; None for a model without any."""
    fields = tagged_fields(model)
    if not fields:
        return None

    def tags_of(event: object) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for name, field in fields.items():
            value = getattr(event, field)
            for each in value if isinstance(value, _SEVERAL) else (value,):
                if each is not None and each is not ERASED:
                    found[tag(name, each)] = None
        return tuple(found)

    return tags_of
