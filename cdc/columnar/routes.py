"""Which way the rows of each table take, as the kernels want it: numbered, in arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from tailrace.cdc.columnar.relations import EventsRoute, IgnoredRoute, Route, TableRoute
from tailrace.cdc.columnar.values import require_key
from tailrace.cdc.kernels import rows


class RouteTable:
    """Routes of one connection. Numbers hold within a block and rise with time: of two versions of a topic, the later
    has the higher number."""

    def __init__(self) -> None:
        self._routes: list[Route] = []
        self._numbers: dict[int, int] = {}  # by table oid
        self._counts = np.zeros(0, np.int64)
        self._arrays: rows.Routes | None = None

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def __getitem__(self, number: int) -> Route:
        return self._routes[number]

    def begin(self) -> None:
        """A block begins: routes nobody takes any more are dropped, counts start at 0."""
        taken = sorted(set(self._numbers.values()))
        if len(taken) < len(self._routes):
            places = {number: place for place, number in enumerate(taken)}
            self._routes = [self._routes[number] for number in taken]
            self._numbers = {relid: places[number] for relid, number in self._numbers.items()}
            self._arrays = None
        self._counts = np.zeros(rows.COUNTS * len(self._routes), np.int64)
        if self._arrays is not None:
            self._arrays = self._arrays._replace(counts=self._counts)

    def number(self, relid: int) -> int | None:
        return self._numbers.get(relid)

    def forget(self, relid: int) -> None:
        """The table was announced again: its next row says which way."""
        if self._numbers.pop(relid, None) is not None:
            self._arrays = None

    def forget_all(self) -> None:
        """Every table's next row says which way."""
        self._numbers.clear()
        self._arrays = None

    def set_route(self, relid: int, route: Route) -> int:
        """Rows of a table take this route from now on. Raises OperatorError for a topic without key."""
        number = self._current(route) if isinstance(route, TableRoute) else None
        if number is None:
            if isinstance(route, TableRoute):
                require_key(route.schema, route.topic.text)
            number = len(self._routes)
            self._routes.append(route)
            self._counts = np.concatenate([self._counts, np.zeros(rows.COUNTS, np.int64)])
        self._numbers[relid] = number
        self._arrays = None
        return number

    def _current(self, route: TableRoute) -> int | None:
        """The topic's route, when it is of the same version; nothing may lead to one of another any more."""
        same = None
        for number, known in enumerate(self._routes):
            if isinstance(known, TableRoute) and known.topic == route.topic:
                if known.schema is route.schema:
                    same = number
                else:
                    same = None
                    self._numbers = {r: n for r, n in self._numbers.items() if n != number}
        return same

    def arrays(self) -> rows.Routes:
        if self._arrays is None:
            relids = sorted(self._numbers)
            keys = [
                [at for at, column in enumerate(route.schema.sent) if column.key]
                if isinstance(route, TableRoute)
                else []
                for route in self._routes
            ]
            self._arrays = rows.Routes(
                relids=np.array(relids, np.int64),
                numbers=np.array([self._numbers[relid] for relid in relids], np.int32),
                kinds=np.array([_kind(route) for route in self._routes], np.uint8),
                widths=np.array([_width(route) for route in self._routes], np.int32),
                key_ends=np.cumsum([len(places) for places in keys], dtype=np.int32),
                key_places=np.array([place for places in keys for place in places], np.int32),
                counts=self._counts,
            )
        return self._arrays

    def has_unsent(self, number: int) -> bool:
        """Whether a row of this route has cells that were not sent."""
        return bool(self._counts[number * rows.COUNTS + rows.COUNT_UNSENT])

    def ignored_changes(self, number: int) -> Counter[str]:
        """Changes of this route that became no row, by reason."""
        counts = self._counts[number * rows.COUNTS :]
        route = self._routes[number]
        ignored: dict[str, int] = {}
        if isinstance(route, IgnoredRoute):
            ignored["table " + ".".join(route.table)] = int(counts[rows.COUNT_IGNORED])
        elif isinstance(route, EventsRoute):
            ignored["event updated"] = int(counts[rows.COUNT_UPDATED])
            ignored["event deleted"] = int(counts[rows.COUNT_DELETED])
        return Counter({reason: count for reason, count in ignored.items() if count})


def _kind(route: Route) -> int:
    match route:
        case TableRoute():
            return rows.TABLE
        case EventsRoute():
            return rows.EVENTS
        case IgnoredRoute():
            return rows.IGNORED


def _width(route: Route) -> int:
    match route:
        case TableRoute():
            return len(route.schema.sent)
        case EventsRoute():
            return route.width
        case IgnoredRoute():
            return 0
