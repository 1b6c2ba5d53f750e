"""The record of what refreshes did, in the catalog: for people, for metrics, and for the next plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

from eventstore import disclosure
from eventstore.errors import Fenced, IncompleteTopic, TailraceError
from eventstore.runrecords import RunRecord
from projections.context import ProjectionContext
from projections.estimate import changes_between
from projections.generation import Generation, files_of
from projections.model import Projection
from projections.promotion import NotLevel
from projections.steps import Taken


@contextmanager
def failures_recorded(
    ctx: ProjectionContext, name: str, kind: str, generation: int | None = None
) -> Iterator[None]:
    """Inside, what stops a refresh or a build is put on record. Not that another process is at work, nor that a topic
    is still being loaded: neither is a failure."""
    started = datetime.now(UTC)
    try:
        yield
    except (Fenced, IncompleteTopic):
        raise
    except Exception as error:
        if isinstance(error, NotLevel):
            generation = error.generation  # by which the next build knows what to go on with
        with suppress(TailraceError):  # a catalog out of reach has no room for it
            last = None if generation is None else ctx.store.derived.last_derived(name, generation)
            head = ctx.store.head()
            ctx.store.run_records.add_failure(
                RunRecord(
                    projection=name,
                    generation=generation,
                    started=started,
                    finished=datetime.now(UTC),
                    from_epoch=last.to_epoch if last else None,
                    to_epoch=head.epoch if head else None,
                    kind=kind,
                    reason=_told(error),
                    status="failed",
                )
            )
        raise


def _told(error: Exception) -> str:
    """One line without values of rows, also where they may be shown to whoever started this process."""
    if disclosure.allowed():
        return f"{type(error).__name__}; its text may show values of rows (--show-values) and is not kept"
    text = error.message if isinstance(error, TailraceError) else disclosure.in_words(error)
    return " ".join(text.split())


def record_step(
    ctx: ProjectionContext, projection: Projection, generation: Generation, started: datetime, taken: Taken
) -> None:
    """Keep what a step did and took."""
    step = taken.run
    files = files_of(step)
    first = step.from_epoch == 0
    changes = (
        None
        if first
        else changes_between(ctx.store, projection, step.from_epoch, step.to_epoch, files.results)
    )
    ctx.store.run_records.add(
        RunRecord(
            projection=generation.projection,
            generation=generation.number,
            started=started,
            finished=datetime.now(UTC),
            from_epoch=step.from_epoch,
            to_epoch=step.to_epoch,
            kind=taken.kind,
            reason=taken.reason,
            rows_upserted=files.upserts,
            rows_deleted=files.deletes,
            keys=taken.keys,
            seconds=taken.seconds,
            bytes=sum(file.bytes for file in files.deltas),
            changes=changes.at_most if changes and changes.exact else None,
        )
    )
