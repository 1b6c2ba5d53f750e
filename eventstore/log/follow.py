"""Visible epochs, in order: a page of them, and those that come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

from tailrace.eventstore.catalog import relocation
from tailrace.eventstore.catalog.database import Catalog, retry_on_missing_file
from tailrace.eventstore.errors import BeyondLog, NotYet, UsageError, damaged_row
from tailrace.eventstore.log.as_of import AtEpoch, AtLsn, parse
from tailrace.eventstore.log.wakeup import Deadline, Waker
from tailrace.eventstore.metadata import topics
from tailrace.eventstore.metadata.epochs import EpochFilter, Timeline
from tailrace.eventstore.model.info import EpochInfo
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.storage import Storage

_PAGE_EPOCHS = 1000
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.25


def page(
    catalog: Catalog, storage: Storage, which: EpochFilter, limit: int = _PAGE_EPOCHS
) -> list[EpochInfo]:
    """The first ``limit`` matching epochs, without gaps. Raises IntegrityError when one is missing."""
    epochs = retry_on_missing_file(
        catalog, lambda connection: Timeline(connection, storage).page(which, limit)
    )
    if which == EpochFilter(after=which.after):
        for expected, epoch in enumerate(epochs, max(which.after, 0) + 1):
            if epoch.epoch != expected:
                raise damaged_row(f"epochs: epoch {expected}", "it is missing")
    return [topics.epoch_info(asdict(epoch)) for epoch in epochs]


def follow(
    catalog: Catalog, storage: Storage, waker: Waker, which: EpochFilter, timeout: float | None, poll: float
) -> Iterator[EpochInfo]:
    """As ``Log.follow``: give a page of epochs, and when there is none wait for a commit, ``poll`` or the timeout."""
    with waker.listen() as listener:
        deadline = Deadline(timeout)
        while True:
            epochs = page(catalog, storage, which)
            for info in epochs:
                yield info
                which = replace(which, after=info.epoch)
            if epochs:
                deadline = Deadline(timeout)
                continue
            if not deadline.left:
                return
            relocation.check(catalog)
            listener.wait(min(poll, deadline.left))


def wait_for(cut: Callable[[str | int], Cut], waker: Waker, position: str | int, timeout: float) -> Cut:
    """As ``Log.wait_for``; ``cut`` is what resolves a position."""
    if not isinstance(parse(position), AtEpoch | AtLsn):
        raise UsageError(f"{position!r} is neither an epoch nor an LSN", hint="ask the source for its LSN")
    pause, deadline = _FIRST_PAUSE, Deadline(timeout)
    with waker.listen() as listener:
        while True:
            try:
                return cut(position)
            except BeyondLog as error:
                if deadline.left <= 0:
                    raise NotYet(
                        f"the log does not hold {position} after {timeout:g} s: {error.message}",
                        hint="wait longer; tailrace status says whether capture is at work",
                    ) from None
            # How far it is without new rows nobody is woken for.
            listener.wait(min(pause, deadline.left))
            pause = min(2 * pause, _LONGEST_PAUSE)
