"""Events that were just appended change their rows, in the same transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from tailrace.eventstore.streams.inline_rows.projection import inline_projections
from tailrace.eventstore.streams.rows import Keeper
from tailrace.eventstore.streams.stream import Stream


def with_rows(keeper: Keeper, categories: Iterable[str]) -> AbstractAsyncContextManager[None]:
    """Where events are appended to these categories: together with their rows, where they have any."""
    return keeper.as_one() if any(map(inline_projections, categories)) else nullcontext()


async def apply_inline(keeper: Keeper, stream: Stream, events: Sequence[object]) -> None:
    """The head of the stream is locked by the append, so nobody else changes these rows meanwhile."""
    for each in inline_projections(stream.category):
        if each.concerns(events):
            before = await keeper.read_row(each.table, each.key, stream.id)
            after, written = each.follow(events, before)
            if after is not None:
                await keeper.put_row(each.table, each.key, stream.id, written or {})
            elif before is not None:
                await keeper.delete_row(each.table, each.key, stream.id)
