"""Which models survive as JSON is known from their declaration; what does not is refused before it is written."""

from __future__ import annotations

import dataclasses
import time
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from itertools import pairwise
from typing import Annotated, Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    SecretStr,
    TypeAdapter,
    computed_field,
    field_validator,
)

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams import event
from tailrace.eventstore.streams.models.codec import survives
from tailrace.eventstore.streams.models.event_types import codec_of
from tailrace.eventstore.streams.writing.event_ids import new_ids


class Kind(Enum):
    SAVINGS = "savings"


class Mixed(Enum):
    PAIR = (1, 2)


@event("codec_part")
@dataclasses.dataclass(frozen=True)
class Part:
    number: int
    names: list[str] = dataclasses.field(default_factory=list)


class Tree(BaseModel):
    below: dict[str, Tree] = {}


class Plain(BaseModel, frozen=True):
    amount: Annotated[Decimal, Field(gt=0)]
    kind: Kind = Kind.SAVINGS
    at: datetime | None = None
    after: timedelta = timedelta(0)
    word: Literal["a", 1] = "a"
    parts: tuple[Part, ...] = ()
    tree: Tree = Tree()
    id: UUID | None = None
    rate: FiniteFloat = 0.0
    names: frozenset[str] = frozenset()


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")


class Aliased(BaseModel):
    amount: int = Field(alias="Amount")


class Excluded(BaseModel):
    amount: int = Field(exclude=True)


class Computed(BaseModel):
    @computed_field  # type: ignore[prop-decorator]
    @property
    def amount(self) -> int:
        return 1


class Validated(BaseModel):
    amount: int

    @field_validator("amount")
    @classmethod
    def twice(cls, amount: int) -> int:
        return 2 * amount


def field(kind: Any) -> type[BaseModel]:
    return type("Holder", (BaseModel,), {"__annotations__": {"value": kind}})


@pytest.mark.parametrize("model", [Plain, Part, Tree])
def test_plain_models_are_not_read_back(model: type[Any]) -> None:
    assert survives(TypeAdapter(model).core_schema)


@pytest.mark.parametrize(
    "model",
    [Extra, Aliased, Excluded, Computed, Validated,
     *map(field, [float, SecretStr, int | str, Any, dict[int, str], Mixed, bytes, Literal[Kind.SAVINGS]])],
)  # fmt: skip
def test_what_may_change_on_its_way_is_read_back(model: type[Any]) -> None:
    assert not survives(TypeAdapter(model).core_schema)


def test_a_validator_that_changes_its_input_again_is_refused() -> None:
    event("codec_validated")(Validated)
    with pytest.raises(UsageError, match="does not survive"):
        codec_of(Validated).encode(Validated(amount=1))
    assert codec_of(Validated).encode(Validated(amount=0)) == '{"amount":0}'


@event("codec_unvalidated")
class Unvalidated(BaseModel):
    name: str


@pytest.mark.parametrize("name", [1, None, "\ud800", "a\0b"])
def test_an_instance_that_was_made_around_validation_is_refused(name: Any) -> None:
    with pytest.raises(UsageError, match="'codec_unvalidated' does not survive"):
        codec_of(Unvalidated).encode(Unvalidated.model_construct(name=name))


@event("codec_noted")
class Noted(BaseModel):
    at: datetime
    note: str | None = None


def test_a_moment_in_the_hour_that_clocks_are_turned_back_is_taken() -> None:
    at = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    text = codec_of(Noted).encode(Noted(at=at))
    assert codec_of(Noted).parse(text).at.utcoffset() == at.utcoffset()


def test_what_only_looks_like_a_nul_is_taken() -> None:
    codec = codec_of(Unvalidated)
    assert codec.parse(codec.encode(Unvalidated(name="a\\u0000b"))) == Unvalidated(name="a\\u0000b")


def test_dataclasses_are_events_too_and_other_classes_are_not() -> None:
    codec = codec_of(Part)
    assert codec.parse(codec.encode(Part(1, ["x"]))) == Part(1, ["x"])
    with pytest.raises(UsageError, match=r"cannot be event 'codec_none'[\s\S]*BaseModel"):
        event("codec_none")(dict)


def test_ids_are_uuids_of_version_7_in_the_order_they_were_made() -> None:
    began = time.time_ns() // 1_000_000
    found: list[UUID] = []
    for _ in range(200):
        found += new_ids(3)
        time.sleep(0.00001)
    assert {(each.version, each.variant) for each in found} == {(7, UUID(int=2 << 62).variant)}
    assert len(set(found)) == 600
    assert all(began <= each.int >> 80 <= time.time_ns() // 1_000_000 for each in found)
    assert all(a < b for a, b in pairwise(found[::3])) and all(
        found[at] < found[at + 1] for at in range(0, 600, 3)
    )
