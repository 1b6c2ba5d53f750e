"""Wait until readers of a projection see a position, so that a service reads its own writes.

A sink knows its epoch, but not the LSNs of epochs; and it does not move at epochs without rows of the projection's
inputs. Only the log knows these, so both are asked.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tailrace.eventstore.errors import BeyondLog, NotYet, OperatorError, UsageError
from tailrace.eventstore.log.as_of import AtEpoch, AtLsn, parse
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.topic import TopicId
from tailrace.projections.generations.generation import Generation
from tailrace.projections.generations.result_input import changed_topics
from tailrace.projections.sinks.open import open_sink
from tailrace.projections.sinks.reader import nothing_live_error
from tailrace.projections.sinks.record import SinkClasses

if TYPE_CHECKING:
    from tailrace.eventstore.settings import Settings
    from tailrace.eventstore.store import Store

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.25


def wait_for(
    settings: Settings,
    log: Store,
    projection: str,
    position: str | int,
    *,
    timeout: float = 10.0,
) -> int:
    """Wait until readers of a projection see everything up to a position, and return its epoch.

    ``position`` is an epoch or an LSN (``0/16B3748``, ``SOURCE=0/16B3748`` where there are several sources). To read
    its own write a service commits, asks ``SELECT pg_current_wal_flush_lsn()``, and waits for that.

    ``timeout`` is in seconds; 0 looks once. Raises NotYet when the time is over; OperatorError when nothing is live, or
    the live generation will never get there (it is pinned, or its sink belongs to another log); UsageError for a text
    that is no position, and for a time: no log knows whether everything that committed before a time has arrived.
    """
    if not isinstance(parse(position), AtEpoch | AtLsn):
        raise UsageError(f"{position!r} is neither an epoch nor an LSN", hint="ask the source for its LSN")
    waiting = _Waiting(settings, log, projection)
    ends = time.monotonic() + timeout
    pause = _FIRST_PAUSE
    cut: Cut | None = None
    while True:
        try:
            cut = cut or log.cut(position)
            missing = waiting.missing_part(cut.epoch)
        except BeyondLog as error:
            missing = error.message
        if cut is not None and missing is None:
            return cut.epoch
        left = ends - time.monotonic()
        if left <= 0:
            raise NotYet(
                f"projection {projection!r} does not show {position} after {timeout:g} s: {missing}",
                hint="wait longer; tailrace status says whether capture and tailrace run are at work",
            )
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)


class _Waiting:
    def __init__(self, settings: Settings, log: Store, projection: str) -> None:
        self._settings, self._log, self._projection = settings, log, projection

    def missing_part(self, epoch: int) -> str | None:
        """What the sink lacks up to an epoch; None when everything is there."""
        generation = self._live()
        classes = SinkClasses(self._settings.projections.sinks_from)
        sink = open_sink(generation.sink(classes), self._settings)
        store = self._settings.store.name
        if sink.live(store, self._projection) != generation.number:
            return f"{generation} is promoted, but not shown yet"
        fence = sink.fence(generation.target(store, self._log.log_id))
        if fence is None:
            return f"the sink holds nothing of {generation}"
        if fence.log_id != self._log.log_id:
            raise OperatorError(
                f"the sink holds {generation} from log {fence.log_id}, this is log {self._log.log_id}",
                hint=f"wait with the log it is built from, or tailrace rebuild {self._projection}",
            )
        topics = [TopicId.parse(need.topic) for need in generation.inputs]
        changed = changed_topics(self._log, topics, fence.epoch, epoch)
        return f"it is at epoch {fence.epoch:,}, before changes of {', '.join(changed)}" if changed else None

    def _live(self) -> Generation:
        number = self._log.derived.live(self._projection)
        infos = self._log.derived.generations(self._projection)
        for generation in map(Generation.of, infos):
            if generation.number == number:
                if generation.pin is not None:
                    raise OperatorError(
                        f"{generation} is live and was built as of {generation.pin.text}: it does not move on",
                        hint=f"tailrace rebuild {self._projection}, or promote a generation that follows the log",
                    )
                return generation
        raise nothing_live_error(self._projection)
