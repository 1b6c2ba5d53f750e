"""References to the rows that make a topic's state: those of its state runs, and all rows behind them.

A runner asks for them at two positions of every step, half a second after it last did, and nearly all are the same. So
what was resolved last is gone on from, as long as nothing of it was replaced.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from tailrace.eventstore.catalog import terms
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.errors import TransientError
from tailrace.eventstore.log.reader import require_end
from tailrace.eventstore.metadata import log_start, segment_index, state_runs
from tailrace.eventstore.metadata.log_start import LogStart
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.segment_ref import SegmentRef
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.storage import Storage

_TRIES = 5  # each can fail only because retention moved the topic's start meanwhile
_KEPT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class _Seen:
    """What stays as it is while no reference is replaced: the topic's ``start``, and how many files of the log were
    ``retired``. Parts of the catalog are good for ever, but those that were ``sealed`` since are better read as a
    file."""

    start: LogStart
    retired: int
    sealed: int


@dataclass(frozen=True, slots=True)
class StateSegments:
    """References that make a topic's state at the end of an epoch, and what was ``seen`` of the catalog before they
    were resolved. ``row``: how many rows of the topic come before what follows, where that is known. Behind
    ``files_end`` each epoch's rows are in the catalog, by themselves."""

    epoch: int
    refs: tuple[SegmentRef, ...]
    row: int | None
    files_end: int
    seen: _Seen

    @property
    def inline_bytes(self) -> int:
        return sum(ref.bytes for ref in self.refs if ref.path is None)

    def up_to(self, epoch: int) -> StateSegments | None:
        """Those of an earlier epoch; None where a file may have rows of before and after it."""
        if epoch < self.files_end:
            return None
        kept = tuple(ref for ref in self.refs if ref.last_epoch <= epoch)
        return replace(self, epoch=epoch, refs=kept, row=None)


@dataclass(frozen=True, slots=True)
class StateReader:
    """Resolves the state of one topic."""

    catalog: Catalog
    storage: Storage
    topic: TopicId
    topic_id: int

    def segments(self, cut: Cut, *, every_row: bool) -> StateSegments:
        """As ``Log.state_segments``."""
        for _ in range(_TRIES):
            found = self._segments(cut, every_row)
            if found is not None:
                return found
        raise TransientError(f"the start of {self.topic} moved again and again meanwhile", hint="try again")

    def gone_on(self, known: StateSegments, cut: Cut) -> StateSegments | None:
        """Those at another end of an epoch, made of what is ``known``; None where that does not tell."""
        with self.catalog.read() as connection:
            seen = self._seen(connection)
            if seen != known.seen:
                return None
            if cut.epoch <= known.epoch:
                return known if cut.epoch == known.epoch else known.up_to(cut.epoch)
            page = segment_index.page(connection, self.topic, self.topic_id, cut, known.epoch, known.row)
        require_end(self.topic, self.topic_id, seen.start, cut, page)
        if page.through < cut.epoch:  # it is as well to begin anew
            return None
        end = _files_end(page.refs, known.files_end)
        return StateSegments(cut.epoch, (*known.refs, *page.refs), page.row, end, seen)

    def _segments(self, cut: Cut, every_row: bool) -> StateSegments | None:
        """None when the topic's start moved between two pages."""
        with self.catalog.read() as connection:
            seen = self._seen(connection)
            start = seen.start
            if not start.has(self.topic, cut):
                raise log_start.history_gone(connection, self.storage, self.topic, start)
            runs = state_runs.runs_of(connection, self.topic, self.topic_id)
        if every_row:
            runs = [run for run in runs if run.epoch == start.epoch]
        refs: list[SegmentRef] = []
        after, row = start.epoch, None
        for run in [*state_runs.chain(runs, self.topic, start, cut), None]:
            upto, row = cut if run is None else Cut(run.after), None
            while after < upto.epoch:
                with self.catalog.read() as connection:
                    now = log_start.read(connection, self.topic_id)
                    if now.epoch != start.epoch:
                        return None
                    if row is None:
                        row = max(sum(now.whole), segment_index.rows_up_to(connection, self.topic_id, after))
                    page = segment_index.page(connection, self.topic, self.topic_id, upto, after, row)
                require_end(self.topic, self.topic_id, now, cut, page)
                refs += page.refs
                after, row = page.through, page.row
            if run is not None:
                refs += run.refs
                after = run.epoch
        runs_end = max([start.epoch, *(run.epoch for run in runs if run.epoch <= cut.epoch)])
        return StateSegments(cut.epoch, tuple(refs), row, _files_end(refs, runs_end), seen)

    def _seen(self, connection: Connection) -> _Seen:
        start = log_start.read(connection, self.topic_id)
        return _Seen(start, terms.current(connection, terms.RETIRED), terms.current(connection, terms.SEAL))


def _files_end(refs: Iterable[SegmentRef], least: int) -> int:
    return max([least, *(ref.last_epoch for ref in refs if ref.path is not None)])


class KnownStates:
    """The last answer for each topic, with at most ``_KEPT_BYTES`` of parts of the catalog. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, StateSegments] = {}

    def segments(self, reader: StateReader, cut: Cut) -> StateSegments:
        """As ``StateReader.segments``, for the end of an epoch."""
        with self._lock:
            known = self._held.get(reader.topic_id)
        found = None if known is None else reader.gone_on(known, cut)
        if found is None:
            found = reader.segments(cut, every_row=False)
        if known is None or found.seen != known.seen or found.epoch > known.epoch:
            self._keep(reader.topic_id, found)
        return found

    def _keep(self, topic_id: int, found: StateSegments) -> None:
        with self._lock:
            self._held.pop(topic_id, None)
            self._held[topic_id] = found
            while sum(each.inline_bytes for each in self._held.values()) > _KEPT_BYTES:
                del self._held[next(iter(self._held))]
