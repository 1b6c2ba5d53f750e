"""The record of what refreshes and comparisons of projections did: for people, for metrics, and for the planner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Self

from sqlalchemy import Connection, and_, delete, func, insert, select, update

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.metadata.generations import is_partial
from tailrace.eventstore.model.time import from_micros, moment_of, to_micros

STEPS = ("full", "incremental")
"""Kinds of steps of a projection."""

REFRESHES = (*STEPS, "refresh", "build")
"""Kinds of runs that bring a projection on, or were to: build only of what failed, refresh also of what found nothing
left to do after that."""

STEPS_KEPT = 1000
"""For each projection: a runner that refreshes every three seconds makes ten million a year."""

PRUNED_EVERY = 50
"""Of so many records that a process adds for a projection, the first has the oldest removed."""

OTHERS_KEPT = 200
"""For each projection and each other kind, so that the steps of an hour do not push a comparison of yesterday out."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What one refresh did, for people and for the planner: a step that is in the sink. ``kind`` is full or
    incremental; then so many ``keys`` were affected. ``changes`` are the rows that its inputs got (None: not known
    exactly). ``seconds`` it took to compute, without bringing it to the sink (None: that was an earlier run's work);
    ``bytes`` of rows were brought there.
    Of kind verify: what would have to be upserted and deleted to make the sink right, both 0 of status different when
    the sink has rows that cannot be compared. Of status failed: what was tried
    (refresh, build, verify), so many times in a row (``tries``), ``started`` the first time and ``finished`` the last;
    it may have no generation yet. ``engine``: what computed it; None where that was Spark, or is not known.
    ``behind``: seconds from the commit of the first rows that the sink lacked to their being there, and ``asked``: how
    many the definition declares (None: none)."""

    projection: str
    generation: int | None
    started: datetime
    finished: datetime | None
    from_epoch: int | None
    to_epoch: int | None
    kind: str
    reason: str
    rows_upserted: int = 0
    rows_deleted: int = 0
    status: str = "done"
    keys: int | None = None
    seconds: float | None = None
    bytes: int = 0
    changes: int | None = None
    tries: int = 1
    engine: str | None = None
    asked: float | None = None
    behind: float | None = None

    @classmethod
    def of_moment(
        cls, projection: str, generation: int, kind: str, reason: str, status: str = "done"
    ) -> Self:
        """Of what takes no time and moves no position: a promotion that readers do not see, a take-over."""
        now = datetime.now(UTC)
        return cls(projection, generation, now, now, None, None, kind, reason, status=status)


_INSERT = insert(tables.runs)


class RunRecords:
    """Run records of all projections, in the catalog's table ``runs``."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._added: Counter[tuple[str, Collection[str]]] = Counter()

    def add(self, record: RunRecord) -> None:
        """The projection's oldest records beyond ``STEPS_KEPT`` go now and then, or of another kind than a step's those
        beyond ``OTHERS_KEPT``."""
        of_step = record.kind in STEPS
        kinds, kept = (STEPS, STEPS_KEPT) if of_step else ((record.kind,), OTHERS_KEPT)
        place = record.projection, kinds
        with self._catalog.write() as connection:
            connection.execute(_INSERT, _row_of(record))
            if self._added[place] % PRUNED_EVERY == 0:
                _forget_oldest(connection, record.projection, kinds, kept)
        self._added[place] += 1

    def add_failure(self, record: RunRecord) -> None:
        """As ``add``; one that is the newest record again is counted there, so that what is tried for days does
        not push everything else out. Each try at a build may have a generation of its own."""
        latest = next(iter(self.latest(record.projection, limit=1)), None)
        same = ["kind", "status", "reason", *(["generation"] if record.kind != "build" else [])]
        if latest is None or any(getattr(latest, name) != getattr(record, name) for name in same):
            self.add(record)
            return
        table = tables.runs
        last = select(func.max(table.c.id)).where(table.c.projection == record.projection)
        again = {
            "generation": record.generation,
            "finished": to_micros(record.finished),
            "from_epoch": record.from_epoch,
            "to_epoch": record.to_epoch,
        }
        with self._catalog.write() as connection:
            connection.execute(
                update(table)
                .where(table.c.id == last.scalar_subquery(), table.c.status == record.status)
                .values(tries=table.c.tries + 1, **again)
            )

    def forget(self, projection: str) -> None:
        """Remove all records of a projection."""
        table = tables.runs
        with self._catalog.write() as connection:
            connection.execute(delete(table).where(table.c.projection == projection))

    def projections(self) -> list[str]:
        """The names of all that have a record, also of those that were never built; partial results are none."""
        with self._catalog.read() as connection:
            names = connection.scalars(select(tables.runs.c.projection).distinct().order_by("projection"))
            return [name for name in names if not is_partial(name)]

    def latest(
        self,
        projection: str,
        limit: int = 20,
        kinds: Collection[str] = (),
        but: Collection[str] = (),
    ) -> list[RunRecord]:
        """The latest runs, newest first; of these ``kinds`` alone, if any are named, and with no status of ``but``."""
        table = tables.runs
        query = select(table).where(table.c.projection == projection).order_by(table.c.id.desc()).limit(limit)
        if kinds:
            query = query.where(table.c.kind.in_(kinds))
        if but:
            query = query.where(table.c.status.not_in(but))
        with self._catalog.read() as connection:
            rows = connection.execute(query).all()
        return [
            RunRecord(
                projection=row.projection,
                generation=row.generation,
                started=moment_of(row.started),
                finished=from_micros(row.finished),
                from_epoch=row.from_epoch,
                to_epoch=row.to_epoch,
                kind=row.kind,
                reason=row.reason,
                rows_upserted=row.rows_upserted,
                rows_deleted=row.rows_deleted,
                status=row.status,
                keys=row.keys,
                seconds=row.seconds,
                bytes=row.bytes,
                changes=row.changes,
                tries=row.tries,
                engine=row.engine,
                asked=row.asked,
                behind=row.behind,
            )
            for row in rows
        ]


def _row_of(record: RunRecord) -> dict[str, Any]:
    row = {field.name: getattr(record, field.name) for field in fields(record)}
    return row | {"started": to_micros(record.started), "finished": to_micros(record.finished)}


def _forget_oldest(connection: Connection, projection: str, kinds: Collection[str], kept: int) -> None:
    table = tables.runs
    mine = and_(table.c.projection == projection, table.c.kind.in_(kinds))
    newest_to_go = select(table.c.id).where(mine).order_by(table.c.id.desc()).offset(kept).limit(1)
    connection.execute(delete(table).where(mine, table.c.id <= newest_to_go.scalar_subquery()))
