"""What a consumer is given: consecutive rows of one partition, as Arrow, as changes, or as typed domain events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa

from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.streams.models.event_types import Model
from tailrace.eventstore.streams.recorded import Recorded
from tailrace.eventstore.subscriptions.rows.cells import dicts
from tailrace.eventstore.subscriptions.rows.changes import COLUMNS_OF_CHANGE, Change, change, column_names
from tailrace.eventstore.subscriptions.rows.events import ALL_EVENTS, EventFilter, EventReader, event_rows

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

Commit = Callable[["Batch", "Connection | Session | None"], None]


@dataclass(frozen=True, slots=True)
class TopicTable:
    """Rows of one topic: ``rows`` has ``segment.stored_schema`` of the version in its metadata."""

    topic: TopicId
    rows: pa.Table
    wanted: EventFilter = field(default=ALL_EVENTS, repr=False, kw_only=True)
    """What was asked for of topics of domain events."""

    @property
    def version(self) -> int:
        return int((self.rows.schema.metadata or {})[b"tailrace:version"])

    def changes(self) -> Iterator[Change]:
        """The rows as values, in order."""
        if self.rows.num_rows:
            names = column_names(self.rows.schema)
            for row in dicts(self.rows.select(COLUMNS_OF_CHANGE)):
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
        reader = EventReader(self.topic, EventFilter.of(models or None), self.wanted)
        if self.rows.num_rows:
            for row in event_rows(self.rows):
                yield from reader.read(row)


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
