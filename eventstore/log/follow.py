"""Visible epochs, in order: a page of them, and those that come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from tailrace.eventstore.catalog import relocation
from tailrace.eventstore.log.wakeup import Deadline
from tailrace.eventstore.metadata import topics as registry
from tailrace.eventstore.metadata.epochs import Timeline, Which
from tailrace.eventstore.model.model import EpochInfo

if TYPE_CHECKING:
    from tailrace.eventstore.store import Store

_PAGE_EPOCHS = 1000


def page(store: Store, which: Which, limit: int = _PAGE_EPOCHS) -> list[EpochInfo]:
    """Up to ``limit`` of the epochs asked for, without gaps."""
    found = store.looked_up(lambda connection: Timeline(connection, store.storage).page(which, limit))
    return [registry.epoch_info(asdict(epoch)) for epoch in found]


def follow(
    store: Store, topics: frozenset[int] | None, after_epoch: int, timeout: float | None, poll: float
) -> Iterator[EpochInfo]:
    """``Store.follow`` of topics by their ids."""
    with store.waker.listen() as listener:
        deadline = Deadline(timeout)
        while True:
            found = page(store, Which(after=after_epoch, topics=topics))
            for info in found:
                yield info
                after_epoch = info.epoch
            if found:
                deadline = Deadline(timeout)
                continue
            if not deadline.left:
                return
            relocation.check(store.catalog)
            listener.wait(min(poll, deadline.left))
