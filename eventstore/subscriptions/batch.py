"""What a consumer is given: consecutive rows of one partition, as Arrow, as changes, or as typed domain events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, overload
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.model.redacted import ERASED, Erased, erased_ids
from tailrace.eventstore.model.schema import EVENT_SCHEMA
from tailrace.eventstore.model.topic import Op, TopicId
from tailrace.eventstore.streams.load import Recorded
from tailrace.eventstore.streams.models.event_types import Model, event_type_of
from tailrace.eventstore.streams.models.upcasters import Place, is_upcast, read_events
from tailrace.eventstore.streams.rows import EventType
from tailrace.eventstore.streams.stream import Stream

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

_COLUMN = {column.name: column.id for column in EVENT_SCHEMA.columns}
# What ``change`` and ``recorded_event`` look at.
_OF_CHANGE = [
    *("_partition", "_offset", "_epoch", "_op", "_lsn", "_commit_ts"),
    *("key", "after", "before", "_unchanged", "_raw"),
]
_OF_EVENT = ["_op", "after", "_raw"]

Commit = Callable[["Batch", "Connection | Session | None"], None]


@dataclass(frozen=True, slots=True)
class Change:
    """One row of a topic. ``after`` and ``before`` leave out cells that the source did not send (``unknown``), and
    hold texts in ``raw`` where the typed column cannot hold the value, and ``ERASED`` where it was erased."""

    topic: TopicId
    partition: int
    offset: int
    epoch: int
    op: Op
    lsn: int
    commit_ts: datetime | None
    key: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    before: Mapping[str, Any] | None
    raw: Mapping[int, bytes]


@dataclass(frozen=True, slots=True)
class TopicTable:
    """Rows of one topic: ``rows`` has ``segment.stored_schema`` of the version in its metadata."""

    topic: TopicId
    rows: pa.Table

    @property
    def version(self) -> int:
        return int((self.rows.schema.metadata or {})[b"tailrace:version"])

    def changes(self) -> Iterator[Change]:
        """The rows as values, in order."""
        if self.rows.num_rows:
            names = column_names(self.rows.schema)
            for row in dicts(self.rows.select(_OF_CHANGE)):
                yield change(self.topic, row, names)

    @overload
    def events(self) -> Iterator[Recorded[Any]]: ...

    @overload
    def events(self, *models: type[Model]) -> Iterator[Recorded[Model]]: ...

    def events(self, *models: type[Model]) -> Iterator[Recorded[Any]]:
        """The domain events in it, in order: those of the given models, or all, which must then be declared. One whose
        data were erased is of the model ``Erased``, whatever it was.

        Raises UsageError for an undeclared model or name, IntegrityError when data do not fit the model.
        """
        wanted = {event_type_of(model) for model in models if model is not Erased} if models else None
        for row in dicts(self.rows.select(_OF_EVENT)) if self.rows.num_rows else ():
            yield from recorded_events(self.topic, row, wanted, erased=not models or Erased in models)


@dataclass(frozen=True, slots=True)
class Batch(TopicTable):
    """Rows of ``topic``/``partition`` with offsets from ``first_offset`` up to ``end_offset``, exclusive, without those
    that a filter left out. ``dropped`` rows before ``first_offset`` were left out because the consumer was too slow."""

    partition: int
    first_offset: int
    end_offset: int
    last_epoch: int
    dropped: int = 0
    _commit: Commit | None = field(default=None, repr=False)

    def commit(self, transaction: Connection | Session | None = None) -> None:
        """Everything of the partition up to ``end_offset`` is done.

        With the ``transaction`` (SQLAlchemy) that holds the effects, the position becomes part of it. Raises Fenced
        when the partition is in other hands; nothing was committed then.
        """
        if self._commit is not None:
            self._commit(self, transaction)


def column_names(schema: pa.Schema) -> dict[int, str]:
    """Names of a topic's columns by their ids."""
    return {int(field.metadata[b"PARQUET:field_id"]): field.name for field in schema.field("after").type}


def change(topic: TopicId, row: Mapping[str, Any], names: Mapping[int, str]) -> Change:
    """One row (a dict in ``stored_schema``) as a value; ``names`` are those of its columns by id."""
    raw = dict(row["_raw"] or ())
    erased = erased_ids(raw)
    return Change(
        topic=topic,
        partition=row["_partition"],
        offset=row["_offset"],
        epoch=row["_epoch"],
        op=Op(row["_op"]),
        lsn=row["_lsn"],
        commit_ts=row["_commit_ts"],
        key=row["key"],
        after=_mark_erased(
            _drop_unknown(row["after"], names, row["_unchanged"]), [names.get(each) for each in erased]
        ),
        before=_mark_erased(row["before"], [names.get(-each) for each in erased]),
        raw={number: text for number, text in raw.items() if text is not None},
    )


def _mark_erased(values: Mapping[str, Any] | None, erased: Sequence[str | None]) -> Mapping[str, Any] | None:
    if values is None or not erased:
        return values
    return {name: ERASED if name in erased else value for name, value in values.items()}


def _drop_unknown(
    values: Mapping[str, Any] | None, names: Mapping[int, str], unknown: Sequence[int] | None
) -> Mapping[str, Any] | None:
    if values is None or not unknown:
        return values
    left_out = {names[number] for number in unknown}
    return {name: value for name, value in values.items() if name not in left_out}


def recorded_events(
    topic: TopicId, row: Mapping[str, Any], wanted: set[EventType] | None = None, *, erased: bool = True
) -> list[Recorded[Any]]:
    """A row of a topic of domain events as events: mostly one; none for other operations and models than those
    ``wanted`` (None: all). ``erased``: one whose data were erased is wanted, whatever it was."""
    if row["_op"] not in (Op.CREATE, Op.READ):
        return []
    event = row["after"]
    kind = EventType(event["type"], event["schema_version"])
    gone = erased_ids(row["_raw"])
    data, metadata = (_COLUMN[name] not in gone for name in ("data", "metadata"))
    if (wanted is not None and kind not in wanted and not is_upcast(kind)) if data else not erased:
        return []
    place = Place(Stream(topic.parts[-1], event["stream"]), event["version"], UUID(event["event_id"]))
    found = read_events(kind, event["data"], place) if data else [(kind, ERASED)]
    about = json.loads(event["metadata"]) if metadata else {}
    return [
        Recorded(place.stream, place.version, now, value, about, place.event_id, event["recorded_at"], part)
        for part, (now, value) in enumerate(found)
        if not data or wanted is None or now in wanted
    ]


def dicts(table: pa.Table) -> list[dict[str, Any]]:
    """``table.to_pylist()`` of a table with columns, several times as fast: ``to_pylist`` makes an Arrow scalar of each
    cell first, numpy makes the values of a whole column at once."""
    columns = [[cell for chunk in column.chunks for cell in values(chunk)] for column in table.columns]
    return _dicts(table.column_names, columns)


def _dicts(names: list[str], columns: list[list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]


def values(column: pa.Array) -> list[Any]:
    """``column.to_pylist()``."""
    kind, types = column.type, pa.types
    if column.null_count == len(column):
        return [None] * len(column)
    if types.is_struct(kind) and kind.num_fields:
        names = [field.name for field in kind]
        return _set_nulls(column, _dicts(names, [values(column.field(at)) for at in range(len(names))]))
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind):
        # numpy has no NULL among numbers, and would make floats of whole ones.
        filled = pc.fill_null(column, pa.scalar(0, pa.int8()).cast(kind)) if column.null_count else column
        return _set_nulls(column, filled.to_numpy(zero_copy_only=False).tolist())
    if types.is_string(kind) or types.is_binary(kind):
        texts: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return texts
    if kind == pa.timestamp("us", "UTC"):
        return _times(column)
    plain: list[Any] = column.to_pylist()
    return plain


def _set_nulls(column: pa.Array, cells: list[Any]) -> list[Any]:
    if column.null_count:
        for at in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            cells[at] = None
    return cells


def _times(column: pa.Array) -> list[Any]:
    naive = column.cast(pa.timestamp("us")).to_numpy(zero_copy_only=False).tolist()
    try:
        return [None if moment is None else moment.replace(tzinfo=UTC) for moment in naive]
    except (AttributeError, TypeError):  # numpy gives a number where Python has no such year
        plain: list[Any] = column.to_pylist()
        return plain
