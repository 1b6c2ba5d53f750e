"""Steps brought to their sinks beside the next ones' being computed: a sink is mostly waited for."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tailrace.eventstore.model.position import Cut
from tailrace.projections.context import ProjectionContext
from tailrace.projections.refresh.refresh import RefreshOutcome, Rest, finished
from tailrace.projections.sinks.kept import kept_connections

_MOST = 4
"""Projections whose steps are on their way to sinks. More would only be older when they get there."""


@dataclass(frozen=True, slots=True)
class Refreshed:
    """A projection that was to be brought to ``cut``, and what became of that."""

    name: str
    cut: Cut
    outcomes: list[RefreshOutcome]


class Beside:
    """Does what is left of refreshes on a thread of its own, one after the other. The thread ends with the context,
    when all is done."""

    def __init__(self, ctx: ProjectionContext) -> None:
        self._look = ctx.store.look
        self._connections = ExitStack()
        self._pool = ThreadPoolExecutor(1, "tailrace-apply", self._keep_connections)
        self._running: list[Future[Refreshed]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running:
            wait(self._running)
        self._pool.submit(self._connections.close)
        self._pool.shutdown()

    def begin(self, name: str, cut: Cut, begun: Sequence[RefreshOutcome | Rest]) -> None:
        """Have the rest done, if there is any. Waits as long as too many others do."""
        if all(isinstance(each, RefreshOutcome) for each in begun):
            settled: Future[Refreshed] = Future()
            settled.set_result(Refreshed(name, cut, finished(begun)))
            self._running.append(settled)
            return
        while sum(not each.done() for each in self._running) >= _MOST:
            self.wait()
        self._running.append(self._pool.submit(self._finish, name, cut, begun))

    def wait(self, seconds: float | None = None) -> None:
        """Until one more is done, at most so long."""
        wait([each for each in self._running if not each.done()], seconds, FIRST_COMPLETED)

    def take(self) -> list[Refreshed]:
        """Those that were done since the last call, in their order. Raises what ended one that has no outcome."""
        done = [each for each in self._running if each.done()]
        self._running = [each for each in self._running if each not in done]
        return [each.result() for each in done]

    @property
    def is_busy(self) -> bool:
        """Whether any is not taken yet."""
        return bool(self._running)

    def _finish(self, name: str, cut: Cut, begun: Sequence[RefreshOutcome | Rest]) -> Refreshed:
        with self._look.taken(cut):
            return Refreshed(name, cut, finished(begun))

    def _keep_connections(self) -> None:
        """On the thread itself, for all that it does."""
        self._connections.enter_context(kept_connections())
