"""Steps of projections in the catalog: each generation has a chain of them, which one compare-and-set makes longer."""

from __future__ import annotations

import builtins
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping, func, insert, select
from sqlalchemy.exc import IntegrityError as Duplicate

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import leases, tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.errors import Fenced, UsageError
from tailrace.eventstore.metadata.generations import chain_end, leases_of
from tailrace.eventstore.model.time import from_micros, to_micros


@dataclass(frozen=True, slots=True)
class NewStep:
    """A step to commit. ``files`` is JSON of the committer's own."""

    projection: str
    generation: int
    from_epoch: int
    to_epoch: int
    kind: str
    files: Sequence[Mapping[str, Any]]
    rows: int
    commit_ts: datetime | None = None


@dataclass(frozen=True, slots=True)
class DerivedRun:
    """One committed step of a generation: its output at ``to_epoch`` (full) or the difference since ``from_epoch``
    (delta). ``files`` is what the committer gave; ``hash`` chains over the steps."""

    projection: str
    generation: int
    from_epoch: int
    to_epoch: int
    kind: str
    files: tuple[Mapping[str, Any], ...]
    rows: int
    hash: str
    commit_ts: datetime | None


def step_hash(previous: str, from_epoch: int, to_epoch: int, kind: str, files: str) -> str:
    """The hash of a step over that of the step before ("" before the first); ``files``: as JSON, as stored."""
    return hashlib.sha256(f"{previous}\n{from_epoch}\n{to_epoch}\n{kind}\n{files}".encode()).hexdigest()


class ProjectionSteps:
    """Steps by projection and generation."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def commit(self, step: NewStep, *, lease: str | None = None) -> DerivedRun:
        """Append one step to a generation's chain, by compare-and-set: ``from_epoch`` must be where the chain ends
        (0 for the first). The same step again gives back the stored one; anything else raises Fenced, so that a
        process that computed on an outdated state changes nothing. ``lease`` is that of the attempt that wrote its
        files (LeaseEnded when it is over: they may be gone)."""
        if step.to_epoch <= step.from_epoch:
            raise UsageError(f"a derived step from epoch {step.from_epoch} to {step.to_epoch} leads nowhere")
        table = tables.derived
        files = json.dumps([dict(file) for file in step.files], sort_keys=True, ensure_ascii=False)
        try:
            with self._catalog.write() as connection:
                last = chain_end(connection, step.projection, step.generation)
                head = last.to_epoch if last is not None else 0
                previous = last.hash if last is not None else ""
                values = {
                    "projection": step.projection,
                    "generation": step.generation,
                    "from_epoch": step.from_epoch,
                    "to_epoch": step.to_epoch,
                    "kind": step.kind,
                    "files": files,
                    "rows": step.rows,
                    "hash": step_hash(previous, step.from_epoch, step.to_epoch, step.kind, files),
                    "commit_ts": to_micros(step.commit_ts),
                }
                if step.from_epoch == head:
                    if lease is not None:
                        leases.require(connection, lease)
                        # Other attempts at this step are too late now: the leases of dead ones end.
                        leases.live_drivers(connection, leases_of(step.projection, step.generation))
                    connection.execute(insert(table).values(values))
        except Duplicate:  # another process committed between our look and our insert
            head = -1
        if step.from_epoch != head:
            return self._same_step(values)
        failpoints.hit("derived_committed")
        return _run(values)

    def _same_step(self, values: Mapping[str, Any]) -> DerivedRun:
        table = tables.derived
        identity = ("projection", "generation", "from_epoch")
        with self._catalog.read() as connection:
            row = connection.execute(
                select(table).where(*(table.c[name] == values[name] for name in identity))
            ).one_or_none()
        if row is not None and all(row._mapping[n] == values[n] for n in ("to_epoch", "kind", "files")):
            return _run(row._mapping)
        raise Fenced(
            f"{values['projection']} generation {values['generation']}: another process went on from epoch "
            f"{values['from_epoch']}",
            hint="two runners refresh one projection; the other one's result counts",
        )

    def list(self, projection: str, generation: int, after: int = 0) -> builtins.list[DerivedRun]:
        """The steps of a generation that lead beyond epoch ``after``, oldest first."""
        table = tables.derived
        query = (
            select(table)
            .where(
                table.c.projection == projection,
                table.c.generation == generation,
                table.c.to_epoch > after,
            )
            .order_by(table.c.from_epoch)
        )
        with self._catalog.read() as connection:
            return [_run(row) for row in connection.execute(query).mappings()]

    def last(self, projection: str, generation: int) -> DerivedRun | None:
        """The step at which a generation's chain ends; None before the first."""
        table = tables.derived
        query = (
            select(table)
            .where(table.c.projection == projection, table.c.generation == generation)
            .order_by(table.c.to_epoch.desc())
            .limit(1)
        )
        with self._catalog.read() as connection:
            row = connection.execute(query).mappings().one_or_none()
        return None if row is None else _run(row)

    def forget(self, projection: str, generation: int, up_to: int) -> None:
        """Forget steps that lead to epochs <= ``up_to``, except the one at which the chain ends."""
        table = tables.derived
        mine = (table.c.projection == projection, table.c.generation == generation)
        with self._catalog.write() as connection:
            last = connection.scalar(select(func.max(table.c.to_epoch)).where(*mine))
            if last is not None:
                connection.execute(
                    table.delete().where(*mine, table.c.to_epoch <= up_to, table.c.to_epoch < last)
                )


def _run(row: Mapping[str, Any] | RowMapping) -> DerivedRun:
    return DerivedRun(
        projection=row["projection"],
        generation=row["generation"],
        from_epoch=row["from_epoch"],
        to_epoch=row["to_epoch"],
        kind=row["kind"],
        files=tuple(json.loads(row["files"])),
        rows=row["rows"],
        hash=row["hash"],
        commit_ts=from_micros(row["commit_ts"]),
    )
