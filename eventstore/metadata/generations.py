"""Generations of projections in the catalog, and which one is live."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row, RowMapping, and_, bindparam, func, insert, select, update
from sqlalchemy.exc import IntegrityError as Duplicate

from tailrace.eventstore.catalog import leases, tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.errors import Fenced, UsageError, damaged_row
from tailrace.eventstore.model.time import moment_of

# What of a generation's row never changes.
_DESCRIPTION = (
    "projection", "generation", "fingerprint", "sink", "key", "schema", "partitions", "split", "as_of", "preview",
    "inputs", "created_at",
)  # fmt: skip
CHANGED = "its description is not the one it was begun with"


class Behind(UsageError):
    """A generation shows older data than the live one, and nobody said that readers may see it."""


class GenerationState(StrEnum):
    BUILDING = "building"
    READY = "ready"
    LIVE = "live"
    RETIRED = "retired"  # was live; can be gone back to while its data is there
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class GenerationInfo:
    """One build of a projection. ``schema`` is the output's Arrow IPC schema, ``frozen_at`` the epoch at which no
    running definition matched it any more, ``as_of`` the text of the position it was built for (None = it follows),
    ``preview`` the label of one that is built to be looked at and never promoted,
    ``checked`` what was found when it was to be refreshed incrementally (None = nothing was looked for), ``parity``
    whether another engine gives its rows too."""

    projection: str
    generation: int
    fingerprint: str
    sink: str
    key: tuple[str, ...]
    schema: bytes
    partitions: int
    split: int
    as_of: str | None
    state: GenerationState
    frozen_at: int | None
    created_at: datetime
    inputs: tuple[InputNeed, ...] = ()
    preview: str | None = None
    checked: str | None = None
    parity: str | None = None


@dataclass(frozen=True, slots=True)
class NewGeneration:
    """A generation that is begun. ``inputs``: what it reads, which retention keeps for it."""

    projection: str
    fingerprint: str
    sink: str
    key: Sequence[str]
    schema: bytes
    partitions: int
    split: int
    as_of: str | None = None
    preview: str | None = None
    inputs: Sequence[InputNeed] = ()


@dataclass(frozen=True, slots=True)
class InputNeed:
    """A topic (its text) that a generation reads: its ``state``, or all of its ``changes``, of which those up to epoch
    ``start`` were gone when the generation was begun."""

    topic: str
    kind: str
    start: int


def digest_of(values: Mapping[str, Any] | RowMapping) -> str:
    """SHA-256 over what never changes of a generation's row."""
    described = [values[name] for name in _DESCRIPTION]
    plain = [bytes(each).hex() if isinstance(each, bytes | memoryview) else each for each in described]
    return hashlib.sha256(json.dumps(plain, default=repr).encode()).hexdigest()


def is_partial(name: str) -> bool:
    """Whether a name is that of the partial results of a projection's generation: ``NAME.GENERATION``."""
    return "." in name


def leases_of(projection: str, generation: int) -> str:
    """What the names of the leases of attempts at a generation begin with (``attempts``)."""
    return f"{projection}/{generation}/"


_GENERATIONS = (
    select(tables.generations)
    .where(tables.generations.c.projection == bindparam("of"))
    .order_by(tables.generations.c.generation)
)
_LIVE = select(tables.live.c.generation).where(tables.live.c.projection == bindparam("of"))
"""Made once: each refresh asks them."""


class DerivedCatalog:
    """Generations by projection. Every change is one transaction with its condition in SQL."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    # generations

    def create_generation(self, new: NewGeneration) -> int:
        """The next generation's number, in state building."""
        table = tables.generations
        try:
            with self._catalog.write() as connection:
                last = connection.scalar(
                    select(func.max(table.c.generation)).where(table.c.projection == new.projection)
                )
                generation = (last or 0) + 1
                described = {
                    "projection": new.projection,
                    "generation": generation,
                    "fingerprint": new.fingerprint,
                    "sink": new.sink,
                    "key": json.dumps(list(new.key), ensure_ascii=False),
                    "schema": new.schema,
                    "partitions": new.partitions,
                    "split": new.split,
                    "as_of": new.as_of,
                    "preview": new.preview,
                    "inputs": json.dumps([[need.topic, need.kind, need.start] for need in new.inputs]),
                    "created_at": leases.now(connection),
                }
                state = GenerationState.BUILDING.value
                row = {**described, "state": state, "digest": digest_of(described)}
                connection.execute(insert(table).values(row))
            return generation
        except Duplicate:  # another process took the number; each try lets at least one of them through
            return self.create_generation(new)

    def generations(self, projection: str) -> list[GenerationInfo]:
        """Raises IntegrityError for one that is not as it was begun."""
        with self._catalog.read() as connection:
            return self._generations(connection, projection)

    def generations_and_live(self, projection: str) -> tuple[list[GenerationInfo], int | None]:
        """The same, and the number of the live one."""
        with self._catalog.read() as connection:
            return self._generations(connection, projection), _live(connection, projection)

    def _generations(self, connection: Connection, projection: str) -> list[GenerationInfo]:
        rows = connection.execute(_GENERATIONS, {"of": projection}).all()
        for row in rows:
            if row.digest != digest_of(row._mapping):
                raise damaged_row(
                    f"generations: projection {row.projection}, generation {row.generation}", CHANGED
                )
        return [
            GenerationInfo(
                projection=row.projection,
                generation=row.generation,
                fingerprint=row.fingerprint,
                sink=row.sink,
                key=tuple(json.loads(row.key)),
                schema=row.schema,
                partitions=row.partitions,
                split=row.split,
                as_of=row.as_of,
                state=_state_of(row),
                frozen_at=row.frozen_at,
                created_at=moment_of(row.created_at),
                inputs=inputs_of(row.inputs),
                preview=row.preview if row.taken_at is None else None,
                checked=row.checked,
                parity=row.parity,
            )
            for row in rows
        ]

    def projections(self) -> list[str]:
        """Names of all projections that have a generation; partial results are none."""
        table = tables.generations
        with self._catalog.read() as connection:
            names = connection.scalars(select(table.c.projection).distinct().order_by(table.c.projection))
            return [name for name in names if not is_partial(name)]

    def partial_results(self) -> frozenset[str]:
        """Names of all partial results that there are, of any projection."""
        name = tables.generations.c.projection
        with self._catalog.read() as connection:
            return frozenset(filter(is_partial, connection.scalars(select(name).distinct())))

    def set_state(self, projection: str, generation: int, state: GenerationState | str) -> None:
        self._update(projection, generation, state=GenerationState(state).value)

    def set_frozen(self, projection: str, generation: int, epoch: int | None) -> None:
        """Mark a generation as frozen at an epoch; None when a running definition matches it again."""
        self._update(projection, generation, frozen_at=epoch)

    def set_checked(self, projection: str, generation: int, checked: str) -> None:
        """Keep what was found when a generation was to be refreshed incrementally."""
        self._update(projection, generation, checked=checked)

    def take_preview(self, projection: str, generation: int) -> None:
        """Make a build like any other of a preview that is ready. Its description stays: its steps are hashed with it.
        Raises Fenced when it is no such preview any more."""
        table = tables.generations
        preview = and_(table.c.preview.is_not(None), table.c.taken_at.is_(None))
        ready = and_(preview, table.c.state == GenerationState.READY.value)
        with self._catalog.write() as connection:
            taken = connection.execute(
                update(table)
                .where(table.c.projection == projection, table.c.generation == generation, ready)
                .values(taken_at=leases.now(connection), state=GenerationState.BUILDING.value)
            )
        if taken.rowcount != 1:
            raise Fenced(
                f"generation {generation} of {projection} is no preview any more", hint="run it again"
            )

    def set_parity(self, projection: str, generation: int, parity: str) -> None:
        """Keep whether another engine gives the rows of a generation as Spark does."""
        self._update(projection, generation, parity=parity)

    def drop_generation(self, projection: str, generation: int) -> None:
        """Forget a generation and its runs' rows; who is at work on it commits nothing more. Raises Fenced when it is
        live."""
        with self._catalog.write() as connection:
            if _live(connection, projection) == generation:
                raise Fenced(
                    f"generation {generation} of {projection} is live", hint="promote another one first"
                )
            leases.end(connection, leases_of(projection, generation))
            for table in (tables.derived, tables.generations):
                connection.execute(
                    table.delete().where(table.c.projection == projection, table.c.generation == generation)
                )

    def _update(self, projection: str, generation: int, **values: Any) -> None:
        table = tables.generations
        with self._catalog.write() as connection:
            changed = connection.execute(
                update(table)
                .where(table.c.projection == projection, table.c.generation == generation)
                .values(**values)
            )
        if changed.rowcount != 1:
            raise UsageError(
                f"{projection} has no generation {generation}", hint="`tailrace projection` lists them"
            )

    # live

    def live(self, projection: str) -> int | None:
        with self._catalog.read() as connection:
            return _live(connection, projection)

    def previous(self, projection: str) -> int | None:
        """The generation that was live before the live one."""
        table = tables.live
        query = select(table.c.previous_generation).where(table.c.projection == projection)
        with self._catalog.read() as connection:
            return connection.scalar(query)

    def promote(
        self, projection: str, generation: int, expected: int | None, level: int | None = None
    ) -> None:
        """Make a generation live if ``expected`` is live now (None = none is). Doing it again changes nothing.
        Raises Fenced when another one is live or this one was dropped, Behind when the chain of the live one leads
        beyond epoch ``level``."""
        table = tables.live
        try:
            with self._catalog.write() as connection:
                if _live(connection, projection) == generation:
                    return
                if expected is None:
                    connection.execute(insert(table).values(projection=projection, generation=generation))
                else:
                    changed = connection.execute(
                        update(table)
                        .where(table.c.projection == projection, table.c.generation == expected)
                        .values(generation=generation, previous_generation=expected)
                    )
                    if changed.rowcount != 1:
                        raise _promoted_elsewhere(projection, expected)
                    last = chain_end(connection, projection, expected)
                    if level is not None and last is not None and last.to_epoch > level:
                        raise _behind_error(projection, generation, expected, last.to_epoch)
                    _set_state(connection, projection, expected, GenerationState.RETIRED)
                if not _set_state(connection, projection, generation, GenerationState.LIVE):
                    raise Fenced(
                        f"{projection}: generation {generation} was dropped meanwhile",
                        hint=f"tailrace rebuild {projection} builds another one",
                    )
        except Duplicate:
            raise _promoted_elsewhere(projection, expected) from None


def _state_of(row: Row[*tuple[Any, ...]]) -> GenerationState:
    try:
        return GenerationState(row.state)
    except ValueError:
        place = f"generations: projection {row.projection}, generation {row.generation}"
        raise damaged_row(place, "its state is none") from None


def inputs_of(text: str) -> tuple[InputNeed, ...]:
    """``generations.inputs``."""
    return tuple(InputNeed(*entry) for entry in json.loads(text))


def _live(connection: Connection, projection: str) -> int | None:
    return connection.scalar(_LIVE, {"of": projection})


def chain_end(connection: Connection, projection: str, generation: int) -> Any:
    """Epoch and hash at which a generation's chain of steps ends; None before the first."""
    table = tables.derived
    query = (
        select(table.c.to_epoch, table.c.hash)
        .where(table.c.projection == projection, table.c.generation == generation)
        .order_by(table.c.to_epoch.desc())
        .limit(1)
    )
    return connection.execute(query).one_or_none()


def _set_state(connection: Connection, projection: str, generation: int, state: GenerationState) -> bool:
    """False when there is no such generation."""
    table = tables.generations
    changed = connection.execute(
        update(table)
        .where(table.c.projection == projection, table.c.generation == generation)
        .values(state=state.value)
    )
    return changed.rowcount == 1


def _promoted_elsewhere(projection: str, expected: int | None) -> Fenced:
    was = "none was live" if expected is None else f"generation {expected} was live"
    return Fenced(
        f"{projection}: {was} when this promotion began, and is not any more",
        hint="somebody else promoted meanwhile; look at `tailrace projection` and decide again",
    )


def _behind_error(projection: str, generation: int, live: int, epoch: int) -> Behind:
    return Behind(
        f"{projection}: the live generation {live} was refreshed to epoch {epoch} while generation {generation} was "
        "being promoted, which does not have these rows yet",
        hint="promote again once a run with its definition has brought it up to date, or pass --stale-ok",
    )
