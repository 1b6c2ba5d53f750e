"""Steps of projections in the catalog: each generation has a chain of them, which one compare-and-set makes longer."""

from __future__ import annotations

import builtins
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, bindparam, func, insert, select
from sqlalchemy.exc import IntegrityError as Duplicate

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import leases, tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.catalog.leases import Lease
from tailrace.eventstore.errors import Fenced, UsageError, damaged_row
from tailrace.eventstore.metadata.generations import leases_of
from tailrace.eventstore.model.time import from_micros, to_micros

CHANGED = "it is not the step that was committed to this generation"


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

    def __hash__(self) -> int:  # ``files`` has none; equal steps have equal hashes
        return hash(self.hash)


@dataclass(frozen=True, slots=True)
class StepsExtent:
    """How many ``steps`` a generation has, and the epoch that the ``first`` one leads to (0: there is none)."""

    steps: int
    first: int


def step_hash(digest: str, values: Mapping[str, Any] | RowMapping) -> str:
    """The hash of a step, from its row: over that of the step before and the digest of its generation."""
    covered = [
        values[name] for name in ("previous", "from_epoch", "to_epoch", "kind", "files", "rows", "commit_ts")
    ]
    return hashlib.sha256(json.dumps([digest, *covered], default=repr).encode()).hexdigest()


_OF_GENERATION = (tables.generations.c.projection == tables.derived.c.projection) & (
    tables.generations.c.generation == tables.derived.c.generation
)


def steps_of(*which: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    """Steps, each with its generation's ``digest``."""
    table, of = tables.derived, tables.generations
    return select(table, of.c.digest).join(of, _OF_GENERATION).where(*which)


_MINE = (
    tables.derived.c.projection == bindparam("of"),
    tables.derived.c.generation == bindparam("number"),
)
_LAST = (
    steps_of(*_MINE, tables.derived.c.to_epoch <= bindparam("up_to"))
    .order_by(tables.derived.c.to_epoch.desc())
    .limit(1)
)
"""Made once: a refresh asks it several times."""
_INSERT = insert(tables.derived)
_LAST_EPOCH = (1 << 63) - 1


class ProjectionSteps:
    """Steps by projection and generation."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def commit(self, step: NewStep, *, lease: Lease | None = None) -> DerivedRun:
        """Append one step to a generation's chain, by compare-and-set: ``from_epoch`` must be where the chain ends
        (0 for the first). The same step again gives back the stored one; anything else raises Fenced, so that a
        process that computed on an outdated state changes nothing. ``lease`` is that of the attempt that wrote its
        files, and ends with the commit (LeaseEnded when it was ended before: they may be gone)."""
        if step.to_epoch <= step.from_epoch:
            raise UsageError(f"a derived step from epoch {step.from_epoch} to {step.to_epoch} leads nowhere")
        files = json.dumps([dict(file) for file in step.files], sort_keys=True, ensure_ascii=False)
        try:
            with self._catalog.write() as connection:
                digest, head, previous = _chain_of(connection, step)
                values = {
                    "projection": step.projection,
                    "generation": step.generation,
                    "from_epoch": step.from_epoch,
                    "to_epoch": step.to_epoch,
                    "kind": step.kind,
                    "files": files,
                    "rows": step.rows,
                    "commit_ts": to_micros(step.commit_ts),
                    "previous": previous,
                }
                values["hash"] = step_hash(digest, values)
                if step.from_epoch == head:
                    if lease is not None:
                        lease.end(connection)
                        # Other attempts at this step are too late now: the leases of dead ones end.
                        leases.live_drivers(connection, leases_of(step.projection, step.generation))
                    connection.execute(_INSERT, values)
        except Duplicate:  # another process committed between our look and our insert
            head = -1
        if step.from_epoch != head:
            return self._same_step(values)
        if lease is not None:
            lease.over = True
        failpoints.hit("derived_committed")
        return _run(values)

    def _same_step(self, values: Mapping[str, Any]) -> DerivedRun:
        table = tables.derived
        identity = ("projection", "generation", "from_epoch")
        with self._catalog.read() as connection:
            row = connection.execute(
                steps_of(*(table.c[name] == values[name] for name in identity))
            ).one_or_none()
        if row is not None and all(row._mapping[n] == values[n] for n in ("to_epoch", "kind", "files")):
            return _stored(row._mapping)
        raise Fenced(
            f"{values['projection']} generation {values['generation']}: another process went on from epoch "
            f"{values['from_epoch']}",
            hint="two runners refresh one projection; the other one's result counts",
        )

    def list(self, projection: str, generation: int, after: int = 0) -> builtins.list[DerivedRun]:
        """The steps of a generation that lead beyond epoch ``after``, oldest first. Raises IntegrityError for one that
        is not as it was committed."""
        table = tables.derived
        mine = (table.c.projection == projection, table.c.generation == generation)
        query = steps_of(*mine, table.c.to_epoch > after).order_by(table.c.from_epoch)
        with self._catalog.read() as connection:
            return [_stored(row) for row in connection.execute(query).mappings()]

    def extent(self, projection: str, generation: int) -> StepsExtent:
        """How many there are, without a look at them."""
        table = tables.derived
        mine = (table.c.projection == projection, table.c.generation == generation)
        query = select(func.count(), func.coalesce(func.min(table.c.to_epoch), 0)).where(*mine)
        with self._catalog.read() as connection:
            return StepsExtent(*connection.execute(query).one())

    def last(self, projection: str, generation: int, up_to: int | None = None) -> DerivedRun | None:
        """The step at which a generation's chain ends, or that leads to the last epoch <= ``up_to``; None before the
        first. Raises as ``list``."""
        asked = {"of": projection, "number": generation, "up_to": _LAST_EPOCH if up_to is None else up_to}
        with self._catalog.read() as connection:
            row = connection.execute(_LAST, asked).mappings().one_or_none()
        return None if row is None else _stored(row)

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


_CHAIN = (
    select(tables.generations.c.digest, tables.derived.c.to_epoch, tables.derived.c.hash)
    .join_from(tables.generations, tables.derived, _OF_GENERATION, isouter=True)
    .where(
        tables.generations.c.projection == bindparam("of"),
        tables.generations.c.generation == bindparam("number"),
    )
    .order_by(tables.derived.c.to_epoch.desc())
    .limit(1)
)


def _chain_of(connection: Connection, step: NewStep) -> tuple[str, int, str]:
    """The digest of the step's generation, and epoch and hash at which its chain ends. Raises Fenced."""
    row = connection.execute(_CHAIN, {"of": step.projection, "number": step.generation}).one_or_none()
    if row is None:
        raise Fenced(
            f"generation {step.generation} of {step.projection} was dropped",
            hint=f"tailrace rebuild {step.projection} builds another one",
        )
    return row.digest, row.to_epoch or 0, row.hash or ""


def _stored(row: RowMapping) -> DerivedRun:
    """A step of ``steps_of``."""
    if step_hash(row["digest"], row) != row["hash"]:
        place = ", ".join(f"{name} {row[name]}" for name in ("projection", "generation", "from_epoch"))
        raise damaged_row(f"derived: {place}", CHANGED)
    return _run(row)


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
