"""Rows of a topic of domain events with a column of structs for each type that a projection asks for."""

from __future__ import annotations

import importlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.log.personal_values import require_keys
from tailrace.eventstore.model.schema import EVENT_SCHEMA
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.streams.models.event_types import codec_of, event_type_of
from tailrace.eventstore.streams.models.reshape import Reshape
from tailrace.eventstore.streams.models.upcasters import (
    Place,
    Upcast,
    declare_again,
    declared_steps,
    read_events,
)
from tailrace.eventstore.streams.personal.sealing import ERASED_TEXT
from tailrace.eventstore.streams.rows import EventType
from tailrace.eventstore.streams.stream import Stream
from tailrace.projections.events.earlier_versions import origins
from tailrace.projections.events.json_columns import NotPlain, from_values, read_json
from tailrace.projections.events.model_columns import ModelColumns, model_columns

ENVELOPE: Final = tuple(column.name for column in EVENT_SCHEMA.columns if column.name != "data")


@dataclass(frozen=True, slots=True)
class Code:
    """A model, or an upcaster that is code, by its name: tasks of Spark import it where they need it."""

    module: str
    name: str

    @classmethod
    def of(cls, what: type[Any] | Upcast) -> Self:
        return cls(what.__module__, getattr(what, "__qualname__", ""))

    def declare(self) -> None:
        """Import it. Raises UsageError."""
        try:
            importlib.import_module(self.module)
        except ImportError as error:
            raise UsageError(
                f"tasks of Spark cannot import {self.module}, which declares {self.name}: {error}",
                hint="put events into modules of the project, and its folder on the PYTHONPATH of Spark's executors",
            ) from None


@dataclass(frozen=True, slots=True)
class TypedModel:
    """A model whose events are asked for."""

    type: EventType
    columns: ModelColumns
    code: Code

    @property
    def holds_json(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.columns.fields if each.holds_json)


@dataclass(frozen=True, slots=True)
class TypedEvents:
    """How events of one category are read as some models. Pickles without any code."""

    source: str
    category: str
    models: tuple[TypedModel, ...]
    steps: Mapping[EventType, Reshape | Code]
    """From each earlier version to the next."""

    @classmethod
    def of(cls, topic: TopicId, models: Sequence[type[Any]]) -> Self:
        """Raises UsageError for a model that is no event, or cannot be a column."""
        found = tuple(_typed_model(model) for model in models)
        for number, each in enumerate(found):
            if each.type.name in ENVELOPE:
                raise UsageError(
                    f"event {each.type.name!r} cannot be a column: every event has one of that name",
                    hint="leave out types=, and read it from data",
                )
            if each.type.name in (other.type.name for other in found[:number]):
                raise UsageError(
                    f"two models of event {each.type.name!r} are asked for",
                    hint="ask for the latest; upcast the other to it",
                )
        steps = {
            kind: step if isinstance(step, Reshape) else Code.of(step)
            for kind, step in declared_steps().items()
        }
        return cls(topic.source, topic.parts[-1], found, steps)

    @property
    def fields(self) -> list[pa.Field]:
        """Those that take the place of ``data``."""
        return [pa.field(each.type.name, each.columns.type) for each in self.models]

    def read(self, after: pa.StructArray) -> tuple[pa.Array, dict[str, pa.Array]]:
        """Which rows are of these models, and their columns: those of every event, but data, and one for each model.
        NULL there: of another model, or erased.

        Raises UsageError and IntegrityError as a consumer of these events gets them, and UsageError for an event that
        upcasters split, or that no column can hold.
        """
        cells = {name: after.field(name) for name in (*ENVELOPE, "data")}
        found = _Found(len(after))
        for kind, rows in _by_kind(cells):
            self._read_kind(kind, rows, cells, found)
        kept, places = found.places()
        types = [each.type for each in self.models]
        chosen = pa.array(places["model"][kept])
        columns = {name: cells[name].take(kept) for name in ENVELOPE}
        columns["type"] = pa.array([each.name for each in types], pa.string()).take(chosen)
        columns["schema_version"] = pa.array([each.version for each in types], pa.int32()).take(chosen)
        for number, model in enumerate(self.models):
            events = pa.concat_arrays([pa.array([], model.columns.type), *found.events[number]])
            at = np.where(places["model"][kept] == number, places["event"][kept], -1)
            columns[model.type.name] = events.take(pa.array(at, mask=at < 0))
        return kept, columns

    def _read_kind(
        self, kind: EventType, rows: np.ndarray[Any, Any], cells: Mapping[str, pa.Array], found: _Found
    ) -> None:
        """The rows of one stored type."""
        now, steps = self._follow(kind)
        number = self._number(now)
        if number is None and steps is not None:
            return
        erased = pc.is_null(cells["data"].take(pa.array(rows))).to_numpy(zero_copy_only=False)
        if number is not None:
            found.add_erased(rows[erased], number)
        rows = rows[~erased]
        if number is not None and steps is not None:
            columns = self.models[number].columns
            where = origins(columns.fields, steps) if columns.plain else None
            if where is not None:
                try:
                    texts = pc.replace_substring(cells["data"].take(pa.array(rows)), ERASED_TEXT, "null")
                    events = read_json(texts, columns, where)
                except NotPlain:
                    pass
                else:
                    found.add(rows, number, events)
                    return
        self._read_one_by_one(kind, rows, cells, found)

    def _read_one_by_one(
        self, kind: EventType, rows: np.ndarray[Any, Any], cells: Mapping[str, pa.Array], found: _Found
    ) -> None:
        """As consumers read them: through code and models."""
        self._declare(kind)
        values: dict[int, tuple[list[int], list[Mapping[str, Any]], Place]] = {}
        chosen = pa.array(rows)
        names = ("stream", "version", "event_id", "data")
        for row, stream, version, event_id, data in zip(
            rows.tolist(), *(cells[name].take(chosen).to_pylist() for name in names), strict=True
        ):
            require_keys(data, self.source)
            place = Place(Stream(self.category, stream), version, UUID(event_id))
            read = [
                (number, event)
                for now, event in read_events(kind, data, place)
                if (number := self._number(now)) is not None
            ]
            if len(read) > 1:
                raise UsageError(
                    f"{place}: an upcaster splits {kind.name!r} version {kind.version}, and a row holds one event",
                    hint="leave out types=, and read it from data",
                )
            for number, event in read:
                at = values.setdefault(number, ([], [], place))
                at[0].append(row)
                at[1].append(self._plain(number, event))
        for number, (places, plain, place) in values.items():
            try:
                found.add(np.array(places), number, from_values(plain, self.models[number].columns))
            except NotPlain as error:
                raise UsageError(
                    f"{place}, or one behind it: {self.models[number].type.name!r} does not fit its columns: {error}",
                    hint="whole numbers are below 2^63; annotate AwareDatetime or NaiveDatetime, not datetime",
                ) from None

    def _plain(self, number: int, event: object) -> Mapping[str, Any]:
        value = codec_of(type(event)).plain(event)
        for name in self.models[number].holds_json:
            value[name] = json.dumps(value[name], ensure_ascii=False)
        return value

    def _follow(self, kind: EventType) -> tuple[EventType, list[Reshape] | None]:
        """What a stored type is today, by declared steps alone; None for steps that are code."""
        steps: list[Reshape] = []
        while (step := self.steps.get(kind)) is not None:
            if not isinstance(step, Reshape):
                return kind, None
            steps.append(step)
            kind = EventType(kind.name, kind.version + 1)
        return kind, steps

    def _number(self, kind: EventType) -> int | None:
        return next((number for number, each in enumerate(self.models) if each.type == kind), None)

    def _declare(self, kind: EventType) -> None:
        """Declare here what was declared where this comes from, and ``kind`` may need."""
        for each in self.models:
            each.code.declare()
        for other, step in self.steps.items():
            if not isinstance(step, Code):
                declare_again(other, step)
            elif other.name == kind.name:
                step.declare()
            else:
                with suppress(UsageError):  # of events of others
                    step.declare()


class _Found:
    """Which rows are events, of which model, and which of its events they are (-1: an erased one)."""

    def __init__(self, rows: int) -> None:
        self._model = np.full(rows, -1)
        self._event = np.full(rows, -1)
        self.events: dict[int, list[pa.Array]] = defaultdict(list)
        self._counts: dict[int, int] = {}

    def add(self, rows: np.ndarray[Any, Any], number: int, events: pa.StructArray) -> None:
        first = self._counts.get(number, 0)
        self._model[rows] = number
        self._event[rows] = np.arange(first, first + len(events))
        self._counts[number] = first + len(events)
        self.events[number].append(events)

    def add_erased(self, rows: np.ndarray[Any, Any], number: int) -> None:
        self._model[rows] = number

    def places(self) -> tuple[np.ndarray[Any, Any], dict[str, np.ndarray[Any, Any]]]:
        return np.flatnonzero(self._model >= 0), {"model": self._model, "event": self._event}


def _by_kind(cells: Mapping[str, pa.Array]) -> Iterator[tuple[EventType, np.ndarray[Any, Any]]]:
    """The rows of each stored type."""
    if not len(cells["type"]):
        return
    names = cells["type"].dictionary_encode()
    versions = cells["schema_version"].to_numpy(zero_copy_only=False)
    numbers = names.indices.to_numpy(zero_copy_only=False)
    for number, name in enumerate(names.dictionary.to_pylist()):
        for version in np.unique(versions[numbers == number]).tolist():
            yield EventType(name, int(version)), np.flatnonzero((numbers == number) & (versions == version))


def _typed_model(model: type[Any]) -> TypedModel:
    kind = event_type_of(model)
    columns = model_columns(model)
    if not columns.fields:
        raise UsageError(
            f"event {kind.name!r} has no fields that could be columns",
            hint="leave it out of types=; without types= every event comes with its data as text",
        )
    return TypedModel(kind, columns, Code.of(model))
