"""Attempts at a generation: who computes it at this moment, and may still name the files that it writes.

A driver writes files for long before a step of the generation names them. Their names hold the attempt's, and it has a
lease (``catalog.leases``) that its commit asks for. So a file that no step names, listed before the leases of the dead
were ended, is needed by an attempt that lives, or by nobody ever; no clock is asked how old it is.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import select, update

from tailrace.eventstore.catalog import leases, tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.catalog.leases import Lease
from tailrace.eventstore.metadata.generations import GenerationState, leases_of


@dataclass(frozen=True, slots=True)
class Attempt:
    """``name`` is part of its files' names, ``lease`` what its commit asks for and ends."""

    name: str
    lease: Lease


def is_by(path: str, name: str) -> bool:
    """Whether a file has the name that an attempt gives."""
    return f"-{name}-" in path.rpartition("/")[2]


@contextmanager
def attempt(catalog: Catalog, projection: str, generation: int, what: str) -> Iterator[Attempt]:
    """While this process works on a generation: its files stay, and those of the log that it was referred to. ``what``
    is for people who read the files' names."""
    name = f"{what}-{secrets.token_hex(4)}"
    held = leases.driver_lease(
        catalog, f"{leases_of(projection, generation)}{name}", f"projection {projection}"
    )
    with held as lease:
        yield Attempt(name, lease)


@contextmanager
def build(catalog: Catalog, projection: str, generation: int) -> Iterator[None]:
    """While this process builds a generation no other gives it up. Raises LeaseEnded when one has."""
    table = tables.generations
    mine = (table.c.projection == projection, table.c.generation == generation)
    with attempt(catalog, projection, generation, "build"):
        # The lease is there: a process that gives the build up waits now, or did so before.
        with catalog.write() as connection:
            state = connection.scalar(select(table.c.state).where(*mine).with_for_update())
        if state != GenerationState.BUILDING.value:
            raise leases.LeaseEnded(
                f"generation {generation} of {projection} was abandoned: nobody continued its build",
                hint=f"tailrace rebuild {projection} starts another build",
            )
        yield


def give_up(catalog: Catalog, projection: str, generation: int, age: timedelta) -> str:
    """Have a build failed that was begun more than ``age`` ago, if nobody is at work on it; gives who is. By the
    catalog's clock: one that jumps costs a build that somebody might have finished."""
    table = tables.generations
    with catalog.write() as connection:
        begun_before = leases.now(connection) - int(age / timedelta(microseconds=1))
        mine = (
            table.c.projection == projection,
            table.c.generation == generation,
            table.c.state == GenerationState.BUILDING.value,
            table.c.created_at <= begun_before,
        )
        locked = connection.scalar(select(table.c.generation).where(*mine).with_for_update())
        living = leases.live_drivers(connection, leases_of(projection, generation))
        if locked is not None and not living:
            connection.execute(update(table).where(*mine).values(state=GenerationState.FAILED.value))
    return next(iter(living.values()), "")


def live_attempts(catalog: Catalog, projection: str, generation: int) -> frozenset[str]:
    """The names of those that live; the others commit nothing any more."""
    prefix = leases_of(projection, generation)
    with catalog.write() as connection:
        return frozenset(lease.removeprefix(prefix) for lease in leases.live_drivers(connection, prefix))
