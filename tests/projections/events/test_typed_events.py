"""Typed columns say of every event what its model says, whatever version it was stored as."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, AwareDatetime, BaseModel, NaiveDatetime
from pydantic import Field as Limits

from tailrace.eventstore.errors import IntegrityError, UsageError
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.streams import Json, RawEvent, event, upcast, upcaster
from tailrace.eventstore.streams.models.event_types import codec_of, event_type_of
from tailrace.eventstore.streams.models.upcasters import Place, read_events
from tailrace.eventstore.streams.rows import EventType
from tailrace.eventstore.streams.stream import Stream
from tailrace.projections.events.earlier_versions import Origin, origins
from tailrace.projections.events.json_columns import read_json
from tailrace.projections.events.model_columns import model_columns
from tailrace.projections.events.typed_events import ENVELOPE, TypedEvents

TOPIC = TopicId.events("shop", "typed")
Money = Annotated[Decimal, Limits(max_digits=12, decimal_places=2)]


class Kind(Enum):
    SMALL = "small"
    LARGE = "large"


class Address(BaseModel):
    city: str
    floor: int | None = None


@event("typed_placed")
class Placed(BaseModel):
    order: int
    total: Money
    weight: Decimal
    at: AwareDatetime
    local: NaiveDatetime
    day: date
    id: UUID
    kind: Kind
    level: Literal[1, 2]
    rate: float
    paid: bool
    address: Address
    others: list[Address]
    codes: tuple[str, ...]
    note: str | None = None
    currency: str = "EUR"


@event("typed_loose")
class Loose(BaseModel):
    """What Arrow cannot read as the model does."""

    upper: Annotated[str, AfterValidator(str.upper)]
    any: Any
    either: int | str
    counts: dict[str, int]
    floor: int | None = 3
    inner: Address | None = None


@event("typed_renamed", version=4)
class Renamed(BaseModel):
    owner: str
    amount: Money
    city: str
    currency: str


upcast("typed_renamed", 1, rename={"name": "owner"}, drop=["colour"])
upcast("typed_renamed", 2, move={"address.city": "city"})
upcast("typed_renamed", 3, default={"currency": "EUR"})


@event("typed_coded", version=3)
class Coded(BaseModel):
    number: int
    by: str


upcast("typed_coded", 1, cast={"number": "int"})


@upcaster("typed_coded", 2)
def with_by(data: Json) -> Json:
    return data | {"by": f"clerk {data['number']}"}


@upcaster("typed_earlier", 1)
def renamed_event(data: Json) -> list[RawEvent]:
    return [RawEvent("typed_coded", 3, data | {"by": "nobody"})] if data["number"] else []


@upcaster("typed_split", 1)
def split(data: Json) -> list[RawEvent]:
    return [RawEvent("typed_coded", 3, data), RawEvent("typed_coded", 3, data)]


MODELS = (Placed, Loose, Renamed, Coded)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
ADDRESSES = st.builds(Address, city=TEXTS, floor=st.none() | st.integers(-9, 9))
MONEY = st.decimals(-1000, 1000, places=2)
DAYS = st.dates(date(1900, 1, 1))
TIMES = st.datetimes(datetime(1900, 1, 1))  # noqa: DTZ001 (a zone comes on top)


def in_zone(both: tuple[datetime, tzinfo]) -> datetime:
    """Without the seconds that offsets had long ago: JSON has none, so no event has."""
    at = both[0].replace(tzinfo=both[1])
    offset = at.utcoffset() or timedelta()
    return at.replace(tzinfo=timezone(offset - offset % timedelta(minutes=1)))


ZONED = st.tuples(TIMES, st.timezones()).map(in_zone)
PLACED = st.builds(
    Placed,
    order=st.integers(-(1 << 63), (1 << 63) - 1),
    total=MONEY,
    weight=st.decimals(allow_nan=False, allow_infinity=False),
    at=ZONED,
    local=TIMES,
    day=DAYS,
    id=st.uuids(),
    rate=st.floats(allow_nan=False, allow_infinity=False),
    address=ADDRESSES,
    others=st.lists(ADDRESSES, max_size=2),
    codes=st.lists(TEXTS, max_size=2).map(tuple),
    note=st.none() | TEXTS,
    currency=TEXTS,
)
LOOSE = st.builds(
    Loose,
    upper=TEXTS,
    any=st.none() | st.lists(st.integers(0, 3)) | TEXTS,
    either=st.integers(0, 3) | TEXTS,
    counts=st.dictionaries(TEXTS, st.integers(0, 3), max_size=2),
    floor=st.none() | st.integers(0, 3),
    inner=st.none() | ADDRESSES,
)


def stored(model: BaseModel) -> tuple[str, int, str]:
    kind = event_type_of(type(model))
    return kind.name, kind.version, codec_of(type(model)).encode(model)


def without(names: Sequence[str], data: str) -> str:
    """As a release wrote it that had no such fields yet."""
    return json.dumps({name: value for name, value in json.loads(data).items() if name not in names})


EARLIER_RENAMED = st.builds(
    lambda name, amount, city, extra: (
        "typed_renamed",
        1,
        json.dumps(
            {"name": name, "amount": str(amount), "address": {"city": city, "x": 1}, "colour": 3} | extra
        ),
    ),
    TEXTS,
    MONEY,
    TEXTS,
    st.just({}) | st.builds(lambda currency: {"currency": currency}, TEXTS),
)
ROWS = st.one_of(
    PLACED.map(stored),
    PLACED.map(stored).map(lambda row: (row[0], row[1], without(["note", "currency"], row[2]))),
    LOOSE.map(stored),
    LOOSE.map(stored).map(lambda row: (row[0], row[1], without(["floor", "inner"], row[2]))),
    st.builds(Renamed, owner=TEXTS, amount=MONEY, city=TEXTS, currency=TEXTS).map(stored),
    EARLIER_RENAMED,
    st.builds(lambda n: ("typed_coded", 1, json.dumps({"number": str(n)})), st.integers(0, 9)),
    st.builds(lambda n: ("typed_coded", 2, json.dumps({"number": n})), st.integers(0, 9)),
    st.builds(lambda n: ("typed_earlier", 1, json.dumps({"number": n})), st.integers(0, 2)),
    st.just(("typed_of_others", 1, "[]")),
)


def after(rows: Sequence[tuple[str, int, str | None]]) -> pa.StructArray:
    """The cells of stored events."""
    return pa.array(
        [
            {
                "stream": "s",
                "version": at,
                "type": name,
                "schema_version": version,
                "data": data,
                "metadata": "{}",
            }
            | {"event_id": str(UUID(int=at)), "recorded_at": at}
            for at, (name, version, data) in enumerate(rows)
        ],
        pa.struct(
            [
                *(pa.field(each, pa.string()) for each in ("stream", "type", "data", "metadata", "event_id")),
                *(pa.field(each, pa.int64()) for each in ("version", "schema_version", "recorded_at")),
            ]
        ),
    )


def expected(rows: Sequence[tuple[str, int, str]]) -> list[tuple[int, str, Mapping[str, Any]]]:
    """What consumers read: its place, its type, and its fields."""
    found = []
    for at, (name, version, data) in enumerate(rows):
        if name == "typed_of_others":
            continue
        place = Place(Stream("typed", "s"), at, UUID(int=at))
        found += [
            (at, kind.name, fields_of(event))
            for kind, event in read_events(EventType(name, version), data, place)
        ]
    return found


def fields_of(event: BaseModel) -> Mapping[str, Any]:
    """As columns have them."""
    values: Any = event.model_dump(mode="python")
    plain = event.model_dump(mode="json")
    for name in ("weight", "id", "kind"):
        if name in values:
            values[name] = plain[name]
    for name in ("any", "either", "counts"):
        if name in values:
            values[name] = json.dumps(plain[name], ensure_ascii=False)
    if "codes" in values:
        values["at"] = values["at"].astimezone(UTC)
        values["codes"] = list(values["codes"])
    return dict(values)


@given(st.lists(ROWS, max_size=6))
def test_columns_say_what_the_models_say(rows: list[tuple[str, int, str]]) -> None:
    typed: TypedEvents = pickle.loads(pickle.dumps(TypedEvents.of(TOPIC, MODELS)))
    kept, columns = typed.read(after(rows))
    found = [
        (at, kind, columns[kind][number].as_py())
        for number, (at, kind) in enumerate(zip(kept.tolist(), columns["type"].to_pylist(), strict=True))
    ]
    assert found == expected(rows)
    for number, (_, kind, _) in enumerate(found):
        others = {event_type_of(model).name for model in MODELS} - {kind}
        assert all(columns[other][number].as_py() is None for other in others)
    assert columns["schema_version"].to_pylist() == [
        next(each.type.version for each in typed.models if each.type.name == kind) for _, kind, _ in found
    ]


@pytest.mark.parametrize(
    ("model", "plain"),
    [(Placed, True), (Loose, False), (Renamed, True), (Coded, True)],
)
def test_what_arrow_reads_as_the_model_does_is_known_from_the_model(
    model: type[BaseModel], plain: bool
) -> None:
    assert model_columns(model).plain is plain


def test_declared_steps_are_taken_on_columns() -> None:
    """Not event by event: a property of speed that no result shows."""
    columns = model_columns(Renamed)
    steps = [TypedEvents.of(TOPIC, [Renamed]).steps[EventType("typed_renamed", each)] for each in (1, 2, 3)]
    found = origins(columns.fields, steps)  # type: ignore[arg-type]
    assert found == (
        Origin(("name",)),
        Origin(("amount",)),
        Origin(("address", "city")),
        Origin(("currency",), "EUR"),
    )
    texts = pa.array(['{"name": "Ada", "amount": "1.00", "address": {"city": "Ulm"}}'])
    assert read_json(texts, columns, found).to_pylist() == [
        {"owner": "Ada", "amount": Decimal("1.00"), "city": "Ulm", "currency": "EUR"}
    ]


def test_an_erased_event_is_there_without_its_data() -> None:
    kept, columns = TypedEvents.of(TOPIC, [Renamed]).read(
        after([("typed_renamed", 1, None), ("other", 1, None)])
    )
    assert kept.tolist() == [0] and columns["typed_renamed"].to_pylist() == [None]
    assert set(columns) == {*ENVELOPE, "typed_renamed"}


@pytest.mark.parametrize(
    ("row", "error", "words"),
    [
        (("typed_renamed", 4, '{"owner": "Ada"}'), IntegrityError, "event 0 of typed/s .* does not fit"),
        (
            ("typed_split", 1, '{"number": 1, "by": ""}'),
            UsageError,
            "event 0 of typed/s .* splits 'typed_split'",
        ),
        (
            ("typed_coded", 3, '{"number": 9223372036854775808, "by": ""}'),
            UsageError,
            "does not fit its columns",
        ),
        (("typed_coded", 3, "[]"), IntegrityError, "event 0 of typed/s"),
    ],
)
def test_what_cannot_be_read_says_which_it_is(
    row: tuple[str, int, str], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        TypedEvents.of(TOPIC, [Renamed, Coded]).read(after([row]))


@event("metadata")
class Clashing(BaseModel):
    x: int


@event("typed_empty")
class Empty(BaseModel):
    pass


class NoEvent(BaseModel):
    x: int


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ([Clashing], "every event has one of that name"),
        ([Empty], "no fields"),
        ([Renamed, Renamed], "two models"),
        ([NoEvent], "not declared"),
    ],
)
def test_models_that_cannot_be_columns_are_refused(models: list[type[Any]], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        TypedEvents.of(TOPIC, models)
