"""Leases: one refresh at a time for each projection and definition, and one build at a time for each position.

A second process is refused, by the name of the first, before it begins. Processes of another definition go on beside: a
deploy needs both. Leases only save work in vain. When one ends early and two processes are at work after all,
compare-and-set of steps keeps results right.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from tailrace.eventstore.catalog import leases
from tailrace.eventstore.catalog.leases import Worker
from tailrace.projections.context import ProjectionContext
from tailrace.projections.generations.generation import Pin

_DIGITS = 16  # of a fingerprint


def refresh_lease(ctx: ProjectionContext, names: Sequence[str]) -> AbstractContextManager[None]:
    """A lease for as long as this process refreshes projections. Raises AlreadyRunning."""
    held = {f"run:{_definition(ctx, name)}": f"projection {name!r} is being refreshed" for name in names}
    return leases.work_lease(ctx.store.catalog, held, "run")


def build_lease(
    ctx: ProjectionContext, name: str, pin: Pin | None, preview: str | None
) -> AbstractContextManager[None]:
    """A lease for as long as this process builds a generation. Another position or preview is another build. Raises
    AlreadyRunning."""
    at = "" if pin is None else str(pin.cut.epoch)
    lease = f"build:{_definition(ctx, name)}:{at}:{preview or ''}"
    return leases.work_lease(ctx.store.catalog, {lease: f"projection {name!r} is being built"}, "rebuild")


def workers(ctx: ProjectionContext, name: str) -> list[Worker]:
    """The processes that work on a projection at this moment, with any definition."""
    with ctx.store.catalog.read() as connection:
        return leases.workers(connection, (f"run:{name}:", f"build:{name}:"))


def _definition(ctx: ProjectionContext, name: str) -> str:
    return f"{name}:{(ctx.fingerprint(name) or '')[:_DIGITS]}"
