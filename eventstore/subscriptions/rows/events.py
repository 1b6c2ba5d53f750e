"""Rows of a topic of domain events as typed events, and which of them are wanted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from tailrace.eventstore.errors import TailraceError, UsageError
from tailrace.eventstore.log.personal_values import require_keys
from tailrace.eventstore.model.redacted import ERASED, Erased, erased_ids
from tailrace.eventstore.model.schema import EVENT_SCHEMA
from tailrace.eventstore.model.topic import Op, TopicId
from tailrace.eventstore.streams.boundaries.query import Query
from tailrace.eventstore.streams.models.event_types import event_type_of
from tailrace.eventstore.streams.models.upcasters import (
    Place,
    is_upcast,
    names_of_code,
    parser_of,
    read_events,
)
from tailrace.eventstore.streams.recorded import Recorded
from tailrace.eventstore.streams.rows import EventType
from tailrace.eventstore.streams.stream import Stream
from tailrace.eventstore.subscriptions.rows.cells import values

_COLUMN: Final = {column.name: column.id for column in EVENT_SCHEMA.columns}
_APPENDED: Final = (Op.CREATE.value, Op.READ.value)


class EventRow(NamedTuple):
    """What a row says of an event. ``data`` and ``metadata`` are JSON, ``recorded_at`` µs since 1970 UTC; None where
    the row is none of an event that was appended, or where they were erased."""

    op: str
    lsn: int
    raw: Any
    stream: str
    version: int
    type: str
    schema_version: int
    data: str
    metadata: str
    event_id: str
    recorded_at: int


WantedEvents: TypeAlias = "Collection[type[Any]] | Query"


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Events of these types, None for all, that a query asks for; ``erased``: those whose data were erased, too,
    whatever they were."""

    types: frozenset[EventType] | None = None
    query: Query | None = None
    erased: bool = True

    @classmethod
    def of(cls, wanted: WantedEvents | None) -> Self:
        """Raises UsageError for models that are no events, and for none."""
        if wanted is None:
            return cls()
        if isinstance(wanted, Query):
            return cls(None, wanted, erased=False)
        models = tuple(wanted)
        if not models:
            raise UsageError("no events are asked for", hint="events=[Deposited], or a Query")
        types = frozenset(event_type_of(model) for model in models if model is not Erased)
        return cls(types, None, Erased in models)

    def names(self) -> frozenset[str] | None:
        """Stored names of events that it may ask for; None for all."""
        if self.query is not None:
            found = [item.names for item in self.query.items]
            return frozenset(name for names in found for name in names) if all(found) else None
        return None if self.types is None else frozenset(kind.name for kind in self.types) | names_of_code()

    def may_want(self, kind: EventType) -> bool:
        """Whether it may ask for events of a stored type, as today's code has them."""
        names = self.names()
        if names is not None and kind.name not in names:
            return False
        return self.types is None or kind in self.types or is_upcast(kind)

    def wants(self, kind: EventType, event: object) -> bool:
        """Whether it asks for an event, as today's code has it."""
        return (self.types is None or kind in self.types) and (
            self.query is None or self.query.matches(event)
        )


ALL_EVENTS: Final = EventFilter()


class _Kind(NamedTuple):
    """A stored type: which it is, whether any of its events may be wanted, and what reads them where all of them are,
    and are read as they are stored."""

    type: EventType
    may_be_wanted: bool
    parse: Callable[[str], Any] | None


class EventReader:
    """Reads rows of one topic as the events that all of these filters want."""

    def __init__(self, topic: TopicId, *wanted: EventFilter) -> None:
        self._category = topic.parts[-1]
        self._source = topic.source
        self._wanted = wanted
        self._kinds: dict[tuple[str, int], _Kind] = {}

    def read(self, row: EventRow) -> Sequence[Recorded[Any]]:
        """The row as events: mostly one; none for what is not wanted; several where an upcaster split it.

        Raises UsageError for a name that is not declared, IntegrityError when data do not fit the model.
        """
        op, lsn, raw, stream, version, name, schema_version, data, metadata, event_id, recorded_at = row
        if op not in _APPENDED:
            return ()
        if raw and (gone := erased_ids(raw)):
            return self._read_erased(row, gone)
        kind, may_be_wanted, parse = self._kinds.get((name, schema_version)) or self._learn(
            name, schema_version
        )
        if not may_be_wanted:
            return ()
        if parse is None:
            return self._read_any(row)
        try:
            event = parse(data)
        except ValidationError:
            return self._read_any(row)  # and says which it is
        return (
            Recorded((self._category, stream), version, kind, event, metadata, event_id, recorded_at, 0, lsn),
        )

    def wants_all(self, name: str, schema_version: int) -> bool:
        """Whether all events of a stored type are wanted."""
        return self._learn(name, schema_version).parse is not None

    def _learn(self, name: str, schema_version: int) -> _Kind:
        kind = EventType(name, schema_version)
        certain = all(
            each.query is None and (each.types is None or kind in each.types) for each in self._wanted
        )
        may_be_wanted = all(each.may_want(kind) for each in self._wanted)
        found = self._kinds[name, schema_version] = _Kind(
            kind, may_be_wanted, parser_of(kind) if certain else None
        )
        return found

    def _read_any(self, row: EventRow) -> Sequence[Recorded[Any]]:
        require_keys(row.data, self._source)
        place = Place(Stream(self._category, row.stream), row.version, row.event_id)
        found = read_events(EventType(row.type, row.schema_version), row.data, place)
        return [
            self._recorded(row, now, event, part)
            for part, (now, event) in enumerate(found)
            if all(each.wants(now, event) for each in self._wanted)
        ]

    def _read_erased(self, row: EventRow, gone: Collection[int]) -> Sequence[Recorded[Any]]:
        left = row._replace(raw=None, metadata="{}" if _COLUMN["metadata"] in gone else row.metadata)
        if _COLUMN["data"] not in gone:
            return self.read(left)
        wanted = all(each.erased for each in self._wanted)
        return (self._recorded(left, EventType(row.type, row.schema_version), ERASED),) if wanted else ()

    def _recorded(self, row: EventRow, kind: EventType, event: object, part: int = 0) -> Recorded[Any]:
        stream = self._category, row.stream
        return Recorded(
            stream, row.version, kind, event, row.metadata, row.event_id, row.recorded_at, part, row.lsn
        )


def event_rows(rows: pa.Table) -> Iterator[EventRow]:
    """Rows of a topic of domain events, in order."""
    for batch in rows.select(["_op", "_lsn", "_raw", "after"]).combine_chunks().to_batches():
        *about, after = batch.columns
        cells = [after.field(column.name) for column in EVENT_SCHEMA.columns]
        cells[-1] = cells[-1].cast(pa.int64())
        yield from map(EventRow._make, zip(*map(values, (*about, *cells)), strict=True))


def select_events(topic: TopicId, rows: pa.Table, wanted: EventFilter) -> pa.Table:
    """The rows of wanted events. One that cannot be read is among them, so that it is not passed over in silence."""
    names = wanted.names()
    if names is not None:
        named = pc.is_in(pc.struct_field(rows["after"], "type"), pa.array(sorted(names), pa.string()))
        rows = rows.filter(pc.or_(named, pc.is_valid(rows["_raw"])) if wanted.erased else named)
    reader = EventReader(topic, wanted)
    found = list(event_rows(rows))
    kinds = {(each.type, each.schema_version) for each in found if each.op in _APPENDED}
    if all(reader.wants_all(*kind) for kind in kinds) and not any(each.raw for each in found):
        return rows.filter(pc.is_in(rows["_op"], pa.array(_APPENDED)))
    return rows.filter(pa.array([_is_wanted(reader, each) for each in found], pa.bool_()))


def _is_wanted(reader: EventReader, row: EventRow) -> bool:
    try:
        return bool(reader.read(row))
    except TailraceError:
        return True
