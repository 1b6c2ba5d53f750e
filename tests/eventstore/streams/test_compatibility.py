"""Whether events of earlier schemas fit today's models is told from the schemas, and never wrongly that they do."""

from __future__ import annotations

from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tailrace.eventstore.streams import event, upcast
from tailrace.eventstore.streams.models.compatibility import _refused, event_schemas, incompatible_changes


class Colour(Enum):
    RED = "red"


class Colours(Enum):
    RED = "red"
    BLUE = "blue"


class Inner(BaseModel):
    a: int


class WiderInner(BaseModel):
    a: int
    b: str = ""


class NarrowInner(BaseModel):
    a: int
    b: str


class Tree(BaseModel):
    below: list[Tree] = []


def holder(kind: Any, **more: Any) -> type[BaseModel]:
    """A model with one field."""
    return type("Holder", (BaseModel,), {"__annotations__": {"value": kind}, **more})


def optional(kind: Any) -> type[BaseModel]:
    return holder(kind, value=None)


EMPTY = type("Empty", (BaseModel,), {"__annotations__": {}})
STRICT = type("Strict", (BaseModel,), {"__annotations__": {}, "model_config": ConfigDict(extra="forbid")})
SHORT = Annotated[str, Field(max_length=3)]
LONG = Annotated[str, Field(max_length=9)]
# Models before and now, an instance of before as JSON where now refuses it, and what is said of that.
CHANGES: list[tuple[Any, Any, str, str]] = [
    (holder(int), holder(int), "", ""),
    (holder(int), holder(float), "", ""),
    (holder(int), EMPTY, "", ""),
    (holder(int), STRICT, '{"value": 1}', "field value is gone"),
    (EMPTY, optional(int | None), "", ""),
    (EMPTY, holder(int), "{}", "field value is required now"),
    (optional(int | None), holder(int | None), "{}", "field value is required now"),
    (holder(int | None), holder(int), '{"value": null}', "value no longer takes null"),
    (holder(int), holder(int | None), "", ""),
    (holder(str), holder(int), '{"value": "x"}', "value was string and is integer"),
    (holder(Decimal), holder(Decimal), "", ""),
    (holder(Colour), holder(Colours), "", ""),
    (holder(Colours), holder(Colour), '{"value": "blue"}', "value no longer takes ['blue']"),
    (holder(str), holder(Colour), '{"value": "x"}', "value no longer takes every value"),
    (holder(Colour), holder(str), "", ""),
    (holder(Literal["a"]), holder(Literal["a", "b"]), "", ""),
    (holder(Literal["a", "b"]), holder(Literal["a"]), '{"value": "b"}', "value no longer takes ['b']"),
    (holder(Inner), holder(WiderInner), "", ""),
    (holder(Inner), holder(NarrowInner), '{"value": {"a": 1}}', "field value.b is required now"),
    (holder(list[Inner]), holder(list[NarrowInner]), '{"value": [{"a": 1}]}', "field value.[].b is required now"),
    (holder(dict[str, int]), holder(dict[str, str]), '{"value": {"x": 1}}', "value.[] was integer and is string"),
    (holder(tuple[int, int]), holder(tuple[int, str]), '{"value": [1, 2]}', "value.[1] was integer and is string"),
    (holder(int), holder(Annotated[int, Field(gt=0)]), '{"value": 0}', "exclusiveMinimum of value was None and is 0"),
    (holder(Annotated[int, Field(gt=5)]), holder(Annotated[int, Field(gt=0)]), "", ""),
    (holder(Annotated[int, Field(gt=0)]), holder(Annotated[int, Field(gt=5)]), '{"value": 1}', "was 0 and is 5"),
    (holder(SHORT), holder(LONG), "", ""),
    (holder(LONG), holder(SHORT), '{"value": "long"}', "maxLength of value was 9 and is 3"),
    (holder(int | str), holder(str), '{"value": 1}', "value no longer takes integer"),
    (holder(int | str), holder(int | str | None), "", ""),
    (Tree, Tree, "", ""),
    (holder(Tree), holder(Tree), "", ""),
]  # fmt: skip


@pytest.mark.parametrize(("before", "now", "refused", "said"), CHANGES)
def test_what_old_events_may_not_fit_is_said_and_pydantic_agrees(
    before: Any, now: Any, refused: str, said: str
) -> None:
    old, new = TypeAdapter(before).json_schema(), TypeAdapter(now).json_schema()
    found = list(_refused(old, new, old, new, ""))
    if not refused:
        assert found == []
    else:
        assert len(found) == 1 and said in found[0]
        TypeAdapter(before).validate_json(refused)
        with pytest.raises(ValidationError):
            TypeAdapter(now).validate_json(refused)


def test_names_that_nobody_declares_and_upcasters_are_looked_at() -> None:
    @event("compatible", version=2)
    class Compatible(BaseModel):
        amount: int

    before: dict[str, dict[str, dict[str, Any]]] = {
        "compatible": {"1": {"type": "object", "properties": {}}, "2": event_schemas()["compatible"]["2"]},
        "vanished": {"3": {}},
    }
    assert incompatible_changes(before) == [
        "compatible version 1: no model is declared, and no upcaster leads on",
        "vanished version 3: no model is declared, and no upcaster leads on",
    ]
    upcast("compatible", 1, default={"amount": 0})
    assert incompatible_changes({"compatible": before["compatible"]}) == []
    stricter: dict[str, Any] = {
        "type": "object",
        "properties": {"amount": {"type": "string"}},
        "required": ["amount"],
    }
    assert incompatible_changes({"compatible": {"2": stricter}}) == [
        "compatible version 2: amount was string and is integer"
    ]
