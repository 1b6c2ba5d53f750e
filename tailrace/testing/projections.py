"""Given changes, then rows: what a projection makes of a history, as a test that reads like the requirement.

    orders = Table("shop.public.orders", {"id": "bigint", "customer_id": "bigint", "amount": "numeric(12,2)"}, key="id")

    given_changes(
        customer_totals,
        orders.created(id=1, customer_id=7, amount=Decimal(5)),
        orders.updated(id=1, customer_id=7, amount=Decimal(6)),
    ).then_rows({"customer_id": 7, "orders": 1, "total": Decimal(6)})

The changes are written to a log in a temporary folder, in batches that are cut in several ways, with a refresh after
each and another one behind the last: whatever is computed from scratch or from what changed, the rows are the same.
Needs the extra ``spark``.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tailrace.cdc.kafka.decoding.types import declared_table
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.log.sources import register_source, register_topic
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.keys import hash_texts, text
from tailrace.eventstore.model.schema import EVENT_SCHEMA, TopicSchema, change_schema
from tailrace.eventstore.model.topic import Op, TopicId
from tailrace.eventstore.settings import Settings, SinkSettings, StoreSettings
from tailrace.eventstore.store import Store
from tailrace.eventstore.streams.models.event_types import codec_of
from tailrace.eventstore.streams.writing.event_ids import new_ids
from tailrace.projections import ParquetFolder, Projection, Result
from tailrace.projections.context import ProjectionContext
from tailrace.projections.lifecycle.catch_up import refresh

Row = Mapping[str, Any]
_BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC)
_SINK: Final = "given"


@dataclass(frozen=True, slots=True)
class GivenChange:
    """One change of a row, or an event. Made by ``Table`` and ``appended``."""

    topic: TopicId
    schema: TopicSchema
    op: Op
    key: Row
    after: Row | None


class Table:
    """A table as a source has it: its topic, the types of its columns as Postgres writes them, and its key.

    Raises UsageError for a type that is not known, and a key that is no column.
    """

    def __init__(self, topic: str, columns: Mapping[str, str], key: str | Sequence[str]) -> None:
        self.topic = TopicId.parse(topic)
        self.key = (key,) if isinstance(key, str) else tuple(key)
        if missing := [each for each in self.key if each not in columns]:
            raise UsageError(f"{topic} has no column {missing[0]} to be its key", hint="name it in columns")
        self.schema = declared_table(columns, self.key, topic)

    def created(self, **row: Any) -> GivenChange:
        """An INSERT; columns that are left out are NULL. Raises UsageError for a column that there is not."""
        return self._change(Op.CREATE, row)

    def updated(self, **row: Any) -> GivenChange:
        """An UPDATE, with the whole row as it is then."""
        return self._change(Op.UPDATE, row)

    def deleted(self, **key: Any) -> GivenChange:
        """A DELETE, by the columns of the key."""
        return replace(self._change(Op.DELETE, key), after=None)

    def _change(self, op: Op, row: Row) -> GivenChange:
        names = [column.name for column in self.schema.columns]
        wrong = [
            *(each for each in row if each not in names),
            *(each for each in self.key if each not in row),
        ]
        if wrong:
            raise UsageError(
                f"a row of {self.topic} is given {', '.join(row)}, and {wrong[0]} is wrong or missing",
                hint=f"its columns are {', '.join(names)}, its key is {', '.join(self.key)}",
            )
        key = {name: row[name] for name in self.key}
        return GivenChange(self.topic, self.schema, op, key, dict.fromkeys(names) | dict(row))


def appended(topic: str, stream: str, *events: object, version: int = 1) -> list[GivenChange]:
    """Events of a stream, the first with this version; ``topic`` is SOURCE.CATEGORY. Raises UsageError for models that
    are no events."""
    found = []
    for at, event in enumerate(events):
        codec = codec_of(type(event))
        after = {
            "stream": stream,
            "version": version + at,
            "type": codec.type.name,
            "schema_version": codec.type.version,
            "data": json.dumps(json.loads(codec.encode(event)), ensure_ascii=False),
            "metadata": "{}",
            "event_id": str(new_ids(1)[0]),
            "recorded_at": _BEGAN,
        }
        found.append(GivenChange(TopicId.parse(topic), EVENT_SCHEMA, Op.CREATE, {"stream": stream}, after))
    return found


def given_changes(
    projection: Projection, *changes: GivenChange | Table | Sequence[GivenChange]
) -> GivenChanges:
    """A history, in its order; a ``Table`` alone for an input without changes. Raises UsageError for an input that no
    change is of, and for a projection that reads another one."""
    schemas: dict[TopicId, TopicSchema] = {}
    given: list[GivenChange] = []
    for each in changes:
        if isinstance(each, Table):
            schemas[each.topic] = each.schema
        else:
            given += [each] if isinstance(each, GivenChange) else each
    schemas |= {change.topic: change.schema for change in given}
    for name, source in projection.inputs.items():
        if isinstance(source, Result):
            raise UsageError(
                f"input {name!r} is the result of projection {source.projection}",
                hint="test that one by itself; this one is tested through `tailrace verify`",
            )
        if source.topic_id not in schemas:
            raise UsageError(
                f"input {name!r} is of {source.topic_id}, of which nothing is given",
                hint="give its changes, or its Table alone",
            )
    return GivenChanges(projection, schemas, given)


class GivenChanges:
    """What has happened to tables and streams. Made by ``given_changes``."""

    def __init__(
        self, projection: Projection, schemas: Mapping[TopicId, TopicSchema], changes: Sequence[GivenChange]
    ) -> None:
        self._projection = replace(projection, sink=ParquetFolder(_SINK))
        self._schemas, self._changes = schemas, changes

    def then_rows(self, *rows: Row) -> None:
        """The result is exactly these rows, in any order, however the changes came. Raises AssertionError, and what a
        refresh raises."""
        for size in self._batch_sizes():
            with tempfile.TemporaryDirectory() as folder:
                found = self._computed(Path(folder), size)
            if not _are_same(found, rows):
                together = (
                    "all changes together" if size >= len(self._changes) else f"{size} changes at a time"
                )
                raise AssertionError(f"rows, with {together}: {_listed(found)}\nexpected: {_listed(rows)}")

    def _batch_sizes(self) -> list[int]:
        count = max(len(self._changes), 1)
        return sorted({count, -(-count // 2), -(-count // 5)}, reverse=True)

    def _computed(self, folder: Path, size: int) -> list[Row]:
        settings = Settings(
            store=StoreSettings(
                name="given", catalog=f"sqlite:///{folder}/catalog.db", segments=folder / "segments"
            ),
            sinks={_SINK: SinkSettings(kind="parquet", path=folder / _SINK)},
        )
        with Store.open(settings.store, create=True) as store:
            writer = _Writer(store, self._schemas)
            context = ProjectionContext(store, settings, {self._projection.name: self._projection})
            writer.write([], completes=True)
            _refresh(context)
            for at in range(0, len(self._changes), size):
                writer.write(self._changes[at : at + size])
                _refresh(context)
            _refresh(context)
            return list(_rows_in(context, self._projection.name))


class _Writer:
    """Appends to a log as capture does: each change as a transaction, each batch as an epoch."""

    def __init__(self, store: Store, schemas: Mapping[TopicId, TopicSchema]) -> None:
        self._schemas, self._lsn = schemas, 0
        self._sources = sorted({topic.source for topic in schemas})
        for source in self._sources:
            register_source(store.catalog, source, slot="given", publication="given", system_id=source)
        for topic, schema in schemas.items():
            register_topic(store, topic, schema, **({"reason": ""} if topic.is_events else {}))
        self._writers = {source: store.take_over(source) for source in self._sources}

    def write(self, changes: Sequence[GivenChange], *, completes: bool = False) -> None:
        rows: dict[TopicId, list[Row]] = {}
        for change in changes:
            self._lsn += 10
            rows.setdefault(change.topic, []).append(self._row(change))
        self._lsn += 10
        for source in self._sources:
            mine = [
                TopicRows(topic, self._schemas[topic].version, self._table(topic, found))
                for topic, found in rows.items()
                if topic.source == source
            ]
            tables = [each for each in self._schemas if each.source == source and not each.is_events]
            if mine or completes:
                self._writers[source].append(
                    EpochBatch(
                        *(
                            source,
                            self._lsn,
                            self._lsn + 1,
                            self._lsn + 1,
                            self._now(),
                            max(len(changes), 1),
                            mine,
                        ),
                        completes=tables if completes else (),
                    )
                )

    def _now(self) -> datetime:
        return _BEGAN + timedelta(seconds=self._lsn)

    def _row(self, change: GivenChange) -> Row:
        return {
            "_hash": hash_texts([text(value) for value in change.key.values()]),
            "_op": change.op.value,
            "_lsn": self._lsn,
            "_txn": self._lsn,
            "_ordinal": 0,
            "_commit_ts": self._now(),
            "_before": "none",
            "key": change.key,
            "after": change.after,
        }

    def _table(self, topic: TopicId, rows: Sequence[Row]) -> pa.Table:
        return pa.Table.from_pylist(list(rows), schema=change_schema(self._schemas[topic]))


def _refresh(context: ProjectionContext) -> None:
    if context.store.head() is None:  # no table, and no event yet
        return
    for outcome in refresh(context):
        if outcome.error is not None:
            raise outcome.error


def _rows_in(context: ProjectionContext, name: str) -> Iterator[Row]:
    generation = context.live(name)
    if generation is not None:
        for batch in context.sink(generation).scan(context.target(generation)):
            yield from batch.to_pylist()


def _are_same(found: Iterable[Row], expected: Iterable[Row]) -> bool:
    left = [dict(row) for row in expected]
    for row in found:
        if row not in left:
            return False
        left.remove(dict(row))
    return not left


def _listed(rows: Iterable[Row]) -> str:
    return "".join(sorted(f"\n  {dict(row)}" for row in rows)) or "none"
