"""What a query finds, and what of it was read: a boundary, behind which an append may be refused."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.streams.blocking import finish
from tailrace.eventstore.streams.boundaries.query import Item, Query
from tailrace.eventstore.streams.database.source import AnyConnection, keeper_of
from tailrace.eventstore.streams.models.event_types import names_of_hidden_tags
from tailrace.eventstore.streams.outcomes import Conflict
from tailrace.eventstore.streams.personal.keys import hide_tags
from tailrace.eventstore.streams.recorded import Recorded, recorded
from tailrace.eventstore.streams.rows import Asked, Keeper, TaggedRow


@dataclass(frozen=True, slots=True)
class Boundary:
    """The ``events`` that a query asks for, in the order of their commits where they share a tag, and what was seen of
    its tags. ``append(…, boundary=…)`` appends if there is no other one by then."""

    query: Query
    events: tuple[Recorded[Any], ...]
    asked: tuple[Asked, ...] = field(repr=False)

    def conflict(self, item: int, version: int) -> Conflict:
        """That there is another event of a part of the query, whose tag is at ``version`` now."""
        return Conflict(version, self.asked[item].version, tag=self.asked[item].tag)


def load_boundary(connection: AnyConnection, query: Query) -> Boundary:
    """Read the events that a query asks for, wherever they are. Sees what the caller's transaction sees. Raises what
    ``load`` raises."""
    return finish(loading_boundary(keeper_of(connection), query))


async def loading_boundary(keeper: Keeper, query: Query) -> Boundary:
    """``load_boundary``, where something keeps the streams."""
    asked = [await _asked(keeper, item) for item in query.items]
    versions, rows = await keeper.read_tagged(asked)
    events = tuple(
        each for row in in_order(rows) for each in recorded(row.stream, row.row) if query.matches(each.data)
    )
    seen = tuple(each._replace(version=versions.get(each.tag, 0)) for each in asked)
    return Boundary(query, events, seen)


async def _asked(keeper: Keeper, item: Item) -> Asked:
    names = names_of_hidden_tags([tag.partition(":")[0] for tag in item.tags], item.models)
    tags = await hide_tags(keeper.keys, item.tags, names) if names else item.tags
    return Asked(tags[0], 0, item.names, tags)


def in_order(rows: Sequence[TaggedRow]) -> list[TaggedRow]:
    """Each event once: those of a tag in its order, whatever the clock said; the others as they were recorded."""
    places: dict[str, list[tuple[int, TaggedRow]]] = defaultdict(list)
    first: dict[Any, TaggedRow] = {}
    for row in rows:
        places[row.tag].append((row.version, row))
        first.setdefault(row.row.event_id, row)
    followers: dict[Any, list[Any]] = defaultdict(list)
    waiting: dict[Any, int] = dict.fromkeys(first, 0)
    for found in places.values():
        ids = [row.row.event_id for _, row in sorted(found, key=lambda each: each[0])]
        for before, after in itertools.pairwise(ids):
            if before != after:
                followers[before].append(after)
                waiting[after] += 1
    ready = [_recorded(row) for event_id, row in first.items() if not waiting[event_id]]
    heapq.heapify(ready)
    ordered: list[TaggedRow] = []
    while ready:
        event_id = heapq.heappop(ready)[-1]
        ordered.append(first[event_id])
        for after in followers[event_id]:
            waiting[after] -= 1
            if not waiting[after]:
                heapq.heappush(ready, _recorded(first[after]))
    if len(ordered) < len(first):
        raise IntegrityError(
            f"the orders of tags {', '.join(sorted(places))} contradict each other",
            hint="somebody wrote to table tailrace.tagged_events; restore it from a backup",
        )
    return ordered


def _recorded(row: TaggedRow) -> tuple[Any, ...]:
    return row.row.recorded_at, row.stream, row.row.version, row.row.event_id
