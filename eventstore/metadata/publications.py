"""Publications, as far as rows of the log and steps of projections must stay for them: the publisher says where it is,
retention looks here.

A destination knows a publication's position, and upkeep asks no destination: it may be out of reach. So the publisher
writes here what was committed there, never anything ahead of it. A publication that is not heard of for its
``holds_until`` holds nothing any more; one that is forgotten neither.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Row, delete, insert, select, update

from tailrace.eventstore.catalog import group_tables, leases
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.model.time import from_micros

_TOPICS = TypeAdapter(tuple[str, ...])
_PARKED = TypeAdapter(dict[str, int])


class NeededStep(NamedTuple):
    """The step of a generation to ``epoch``: its files, and all later steps of that generation."""

    projection: str
    generation: int
    epoch: int


_STEPS = TypeAdapter(tuple[NeededStep, ...])


@dataclass(frozen=True, slots=True)
class PublicationNeed:
    """All rows up to ``epoch`` of the topics that match ``topics`` are published, but for parked keys: by topic the
    epoch behind which rows of theirs are. ``steps``: what it needs of a projection. ``holds``: whether rows and steps
    stay for it at this moment."""

    name: str
    topics: tuple[str, ...]
    epoch: int
    parked: Mapping[str, int]
    steps: tuple[NeededStep, ...]
    seen_at: datetime | None
    holds_until: datetime | None
    holds: bool


def record_need(
    database: Catalog,
    name: str,
    topics: Sequence[str],
    epoch: int,
    parked: Mapping[str, int],
    seconds: float,
    *,
    steps: Sequence[NeededStep] = (),
) -> None:
    """Where a publication is. Rows and steps stay for it for so many seconds from now on."""
    table = group_tables.publication_needs
    with database.write() as connection:
        now = leases.now(connection)
        row = {
            "name": name,
            "topics": json.dumps(list(topics), ensure_ascii=False),
            "epoch": epoch,
            "parked": json.dumps(dict(parked), ensure_ascii=False),
            "steps": json.dumps(list(steps), ensure_ascii=False),
            "seen_at": now,
            "holds_until": now + int(seconds * 1e6),
        }
        if not connection.execute(update(table).where(table.c.name == name).values(row)).rowcount:
            connection.execute(insert(table).values(row))


def forget(database: Catalog, name: str) -> bool:
    """No row stays for it any more, until it publishes again. Whether it was known."""
    table = group_tables.publication_needs
    with database.write() as connection:
        return bool(connection.execute(delete(table).where(table.c.name == name)).rowcount)


def publication_needs(database: Catalog) -> list[PublicationNeed]:
    """All that were not forgotten, by name. Raises IntegrityError for a row that is not what was written."""
    table = group_tables.publication_needs
    with database.read() as connection:
        now = leases.now(connection)
        rows = connection.execute(select(table).order_by(table.c.name)).all()
    return [_need(database, row, now) for row in rows]


def needed_steps(database: Catalog, projection: str) -> list[tuple[str, NeededStep]]:
    """The steps of a projection that publications need at this moment, each with the publication's name. Raises as
    ``publication_needs``."""
    return [
        (each.name, step)
        for each in publication_needs(database)
        if each.holds
        for step in each.steps
        if step.projection == projection
    ]


def _need(database: Catalog, row: Row[Any], now: int) -> PublicationNeed:
    try:
        topics, parked = _TOPICS.validate_json(row.topics), _PARKED.validate_json(row.parked)
        steps = _STEPS.validate_json(row.steps)
    except ValidationError:
        raise IntegrityError(
            f"{database.label}: the row of publication {row.name!r} in table publication_needs is damaged",
            hint=f"tailrace publish --forget {row.name} removes it; the next tailrace publish writes it anew",
        ) from None
    seen, until = from_micros(row.seen_at), from_micros(row.holds_until)
    return PublicationNeed(row.name, topics, row.epoch, parked, steps, seen, until, row.holds_until > now)
