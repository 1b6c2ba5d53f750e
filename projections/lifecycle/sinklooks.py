"""Looks at the sinks of many projections, for who cannot wait for one that hangs: a scrape, somebody who looks."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence

from tailrace.eventstore import disclosure
from tailrace.projections.context import ProjectionContext
from tailrace.projections.generations.generation import Generation
from tailrace.projections.lifecycle.progress import SinkLook, sink_look

SECONDS = 3.0
"""For all looks of a scrape: Prometheus gives up after ten, and then has none of the metrics."""

# Projections of one sink: a healthy one answers many in the time, a sick one holds no more threads.
_AT_ONCE = 4


class SinkLooks:
    """Sinks are asked at the same time, and whoever has not answered in time is told as that. While a sink owes an
    answer it is not asked again. Threads of sinks that never answer end with the process."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._under_way: dict[str, list[threading.Thread]] = {}
        self._lock = threading.Lock()

    def __call__(self, ctx: ProjectionContext, generations: Sequence[Generation]) -> Mapping[str, SinkLook]:
        """By projection. Scrapes at the same time come one after another."""
        with self._lock:
            end = time.monotonic() + self._seconds
            found: dict[str, SinkLook] = {}
            by_sink: dict[str, deque[Generation]] = {}
            for generation in generations:
                by_sink.setdefault(_place(generation), deque()).append(generation)
            for place, todo in by_sink.items():
                self._begin(ctx, place, todo, found, end)
            for place in by_sink:
                for thread in self._under_way[place]:
                    thread.join(max(end - time.monotonic(), 0.0))
            late = SinkLook(None, f"the sink has not answered within {self._seconds:g} s")
            return {each.projection: found.get(each.projection, late) for each in generations}

    def _begin(
        self,
        ctx: ProjectionContext,
        place: str,
        todo: deque[Generation],
        found: dict[str, SinkLook],
        end: float,
    ) -> None:
        if any(thread.is_alive() for thread in self._under_way.get(place, ())):
            return

        def ask() -> None:
            while time.monotonic() < end:
                try:
                    generation = todo.popleft()
                except IndexError:
                    return
                found[generation.projection] = _looked(ctx, generation)

        count = min(_AT_ONCE, len(todo))
        self._under_way[place] = [
            threading.Thread(target=ask, name=f"look-{place}", daemon=True) for _ in range(count)
        ]
        for thread in self._under_way[place]:
            thread.start()


def _looked(ctx: ProjectionContext, generation: Generation) -> SinkLook:
    try:
        return sink_look(ctx, generation)
    except Exception as error:  # noqa: BLE001 a sink of one's own may raise anything
        return SinkLook(None, disclosure.in_words(error))


def _place(generation: Generation) -> str:
    """Sinks of one's own have no name: each is taken for another one."""
    name = generation.sink_name
    return f"sink {name}" if name else f"projection {generation.projection}"
