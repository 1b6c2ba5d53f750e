"""Steps brought to their sinks beside the next ones' being computed: a sink is mostly waited for.

Refreshes have a thread of their own, so that they do not wait for first builds, which bring all rows of a result. Of
these several are brought side by side, where the machine has room.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tailrace.eventstore.model.position import Cut
from tailrace.projections.context import ProjectionContext
from tailrace.projections.refresh.refresh import RefreshOutcome, Rest, finished
from tailrace.projections.sinks.kept import kept_connections

_MOST = 4
"""Projections whose steps are on their way to sinks. More would only be older when they get there."""
_BUILDS_MOST = 4
_CORES_OF_A_BUILD = 2
"""One for what sends its rows, one for a sink on this machine. The computation beside has as many."""


@dataclass(frozen=True, slots=True)
class Refreshed:
    """A projection that was to be brought to ``cut``, and what became of that."""

    name: str
    cut: Cut
    outcomes: list[RefreshOutcome]


class Beside:
    """Does what is left of refreshes and builds on threads of its own. They end with the context, when all is done."""

    def __init__(self, ctx: ProjectionContext) -> None:
        self._look = ctx.store.look
        self._connections = ExitStack()
        self._refreshes = ThreadPoolExecutor(1, "tailrace-apply", self._keep_connections)
        self._builds_at_once = min((os.cpu_count() or 1) // _CORES_OF_A_BUILD - 1, _BUILDS_MOST)
        self._builds = ThreadPoolExecutor(max(1, self._builds_at_once), "tailrace-build")
        self._refreshing: list[Future[Refreshed]] = []
        self._building: list[Future[Refreshed]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        wait(self._running)
        self._builds.shutdown()
        self._refreshes.submit(self._connections.close)
        self._refreshes.shutdown()

    def begin(
        self,
        name: str,
        cut: Cut,
        begun: Sequence[RefreshOutcome | Rest],
        held: AbstractContextManager[object] | None = None,
    ) -> None:
        """Have the rest done, if there is any, and ``held`` left then. Waits as long as too many others do."""
        rests = [each for each in begun if isinstance(each, Rest)]
        is_build = any(each.is_build for each in rests)
        held = held or nullcontext()
        if not rests or (is_build and self._builds_at_once < 1):
            settled: Future[Refreshed] = Future()
            settled.set_result(self._finish(name, cut, begun, held))
            self._refreshing.append(settled)
        elif is_build:
            self._wait_until_fewer(self._building, self._builds_at_once + 1)  # one waits its turn
            self._building.append(self._builds.submit(self._finish, name, cut, begun, held))
        else:
            self._wait_until_fewer(self._refreshing, _MOST)
            self._refreshing.append(self._refreshes.submit(self._finish, name, cut, begun, held))

    def wait(self, seconds: float | None = None) -> None:
        """Until one more is done, at most so long."""
        wait([each for each in self._running if not each.done()], seconds, FIRST_COMPLETED)

    def take(self) -> list[Refreshed]:
        """Those that were done since the last call. Raises what ended one that has no outcome."""
        done = [each for each in self._running if each.done()]
        self._refreshing = [each for each in self._refreshing if each not in done]
        self._building = [each for each in self._building if each not in done]
        return [each.result() for each in done]

    @property
    def is_busy(self) -> bool:
        """Whether any is not taken yet."""
        return bool(self._running)

    @property
    def _running(self) -> list[Future[Refreshed]]:
        return [*self._refreshing, *self._building]

    def _wait_until_fewer(self, running: Sequence[Future[Refreshed]], most: int) -> None:
        while len(under_way := [each for each in running if not each.done()]) >= most:
            wait(under_way, None, FIRST_COMPLETED)

    def _finish(
        self,
        name: str,
        cut: Cut,
        begun: Sequence[RefreshOutcome | Rest],
        held: AbstractContextManager[object],
    ) -> Refreshed:
        with held, self._look.taken(cut), kept_connections():
            return Refreshed(name, cut, finished(begun))

    def _keep_connections(self) -> None:
        """On the thread of refreshes itself, for all that it does."""
        self._connections.enter_context(kept_connections())
