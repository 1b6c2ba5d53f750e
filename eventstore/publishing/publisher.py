"""``Publisher``: from a feed of the log to a destination, each record once.

The life of a session::

    open      the destination ends what the publisher before left open, and fences it
    position  read from where the destination keeps it, compared with the log
    portion   records of the feed, sent with the position behind them; again and again
    unclear   an answer that did not come: the session is thrown away, the next one asks where it stands

What is published is what the destination's committed position says, and nothing else is remembered. The store is told
of it, so that retention keeps what is not published yet.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Protocol

from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import HistoryGone, TailraceError, TransientError
from tailrace.eventstore.log.log import POLL_SECONDS, Log
from tailrace.eventstore.publishing.dead_letters import dead_letters
from tailrace.eventstore.publishing.feed import Feed, FeedPortion
from tailrace.eventstore.publishing.log_feed import LogFeed
from tailrace.eventstore.publishing.parked import PARKED_MAX, NotTaken, ParkedKey, without_parked
from tailrace.eventstore.publishing.portions import PortionLimits
from tailrace.eventstore.publishing.position import Position
from tailrace.eventstore.publishing.progress import PublicationProgress
from tailrace.eventstore.publishing.records import Published, TopicRecords, bytes_of
from tailrace.eventstore.settings import PublicationSettings

PAUSE_SECONDS = 5.0  # before a destination that was out of reach is tried again
IDLE_SECONDS = 60.0  # after which a position is committed that no record goes with
TELL_SECONDS = 10.0  # between two times that the store is told how far a publication is


class Session(Protocol):
    """A destination in our hands alone. Every method raises Fenced when another one opened it since, and
    TransientError when it is not known what became of the call."""

    place: str
    """Where the position is kept, for people."""
    portion_bytes: int
    """How much one ``publish`` takes where the settings do not say."""

    def state(self) -> tuple[Position | None, list[ParkedKey]]:
        """Behind what is committed, None when nothing ever was; and the keys that wait."""

    def require_apart(self, topics: Sequence[Published]) -> None:
        """Before anything of them is sent. Raises OperatorError for topics of the log that could not be told apart at
        the destination."""

    def publish(
        self,
        records: Sequence[TopicRecords],
        position: Position,
        parked: Sequence[ParkedKey] = (),
        released: Sequence[ParkedKey] = (),
        dead: Sequence[TopicRecords] = (),
    ) -> None:
        """Records and dead letters are sent; position, and which keys wait no longer or from now on, in this order, are
        stored when all of them are, where the destination has transactions in one with them. Raises NotTaken for a
        record that can never be sent; nothing was stored then, and the session goes on."""

    def close(self) -> None: ...


OpenSession = Callable[[], Session]


@dataclass(frozen=True, slots=True)
class PublishedCounts:
    """What one portion brought."""

    epoch: int
    records: int


class Publisher:
    """Publishes until it is stopped, by default the topics of the settings. ``report`` gets what each transaction
    brought, ``note`` a line for people."""

    def __init__(
        self,
        log: Log,
        name: str,
        settings: PublicationSettings,
        open_session: OpenSession,
        *,
        stop: threading.Event,
        feed: Feed | None = None,
        report: Callable[[PublishedCounts], None] = lambda _: None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        log.groups_database  # noqa: B018 opened here, as it imports modules: publishers run in threads
        self._log = log
        self._name = name
        self._settings = settings
        self._open = open_session
        self._feed: Feed = feed or LogFeed(log, name, settings)
        self._stop = stop
        self._report = report
        self._note = note
        self._parked: list[ParkedKey] = []
        self._committed, self._committed_at = Position(log.log_id), 0.0
        self._told_at = 0.0
        self.progress = PublicationProgress()
        """What this publisher did so far. To be read only."""

    def run(self) -> None:
        """Follow the log; a destination out of reach is tried again. Raises Fenced when another publisher began,
        OperatorError when somebody has to act."""
        while not self._stop.is_set():
            try:
                with self._counting_failures(), closing(self._open()) as session:
                    self._follow(session)
            except TransientError as error:
                if not self._stop.is_set():
                    self._note(f"{error.message}; trying again")
                    self._stop.wait(PAUSE_SECONDS)

    def run_once(self) -> Position:
        """Publish what the log holds by now. Raises as ``run`` does, and TransientError."""
        with self._counting_failures(), closing(self._open()) as session:
            position = self._publish_to_head(session, self._begin(session))
            self._commit_idle(session, position)
            self._tell()
            return position

    @contextmanager
    def _counting_failures(self) -> Iterator[None]:
        try:
            with self._passed_by_retention():
                yield
        except TailraceError as error:
            self.progress.failing += 1
            self.progress.failures[type(error).__name__] += 1
            self.progress.failed_at = time.time()
            raise

    @contextmanager
    def _passed_by_retention(self) -> Iterator[None]:
        """Says what becomes of a publication whose rows are gone."""
        try:
            yield
        except HistoryGone as error:
            raise HistoryGone(
                f"publication {self._name} was passed by retention: {error.message}",
                hint="publish what is left under another name, or delete what was published and its position and"
                " publish anew. A larger retention_waits keeps rows longer for a publication that stands still",
            ) from error

    def _follow(self, session: Session) -> None:
        position = self._begin(session)
        with self._log.waker.listen() as listener:
            while not self._stop.is_set():
                before, position = position, self._publish_to_head(session, position)
                if before == position:
                    self.progress.failing = 0
                    listener.wait(POLL_SECONDS)
                if time.monotonic() - self._committed_at > IDLE_SECONDS:
                    self._commit_idle(session, position)
                if time.monotonic() - self._told_at > TELL_SECONDS:
                    self._tell()

    def _begin(self, session: Session) -> Position:
        found, parked = session.state()
        position = self._feed.begin(found, session.place)
        self._parked = parked
        self._note_committed(position)
        self._tell()
        if not position.inside and position.towards is None:
            self._try_parked(session, position)
        return position

    def _note_committed(self, position: Position) -> None:
        self._committed, self._committed_at = position, time.monotonic()
        self.progress.epoch, self.progress.parked = position.whole_epoch, len(self._parked)

    def _commit_idle(self, session: Session, position: Position) -> None:
        """Where nothing was there to be sent, so that no row stays for this publication, and none seems to be gone."""
        if position != self._committed:
            session.publish([], position)
            self._note_committed(position)

    def _tell(self) -> None:
        """Tell the store what is committed."""
        if not self._log.groups_database.read_only:
            self._feed.tell(self._committed, self._parked)
        self._told_at = time.monotonic()

    def _try_parked(self, session: Session, position: Position) -> None:
        """Whether the destination takes them now."""
        for each in list(self._parked):
            try:
                self._publish_waiting(session, each, position)
            except NotTaken as error:
                self._note(f"still waiting: {error.message}")
            else:
                self._note(f"no longer waiting: a key of {each.topic}")

    def _publish_waiting(self, session: Session, parked: ParkedKey, position: Position) -> None:
        limit = self._settings.transaction_bytes or session.portion_bytes
        for records, rest in self._feed.waiting(parked, position, limit):
            behind = [] if rest is None else [rest]
            session.publish(records, position, parked=behind, released=[parked])
            at = self._parked.index(parked)
            self._parked[at : at + 1] = behind
            parked = rest or parked

    def _publish_to_head(self, session: Session, position: Position) -> Position:
        limits = PortionLimits(
            self._settings.transaction_bytes or session.portion_bytes, self._settings.transaction_seconds
        )
        before = position
        for portion in self._feed.portions(position, limits, session.require_apart):
            position = portion.position
            if portion.records:
                self._publish(session, portion, before)
            before = position
            if time.monotonic() - self._told_at > TELL_SECONDS:
                self._tell()
            if self._stop.is_set():
                break
        return position

    def _publish(self, session: Session, portion: FeedPortion, before: Position) -> None:
        made, position = portion.records, portion.position
        failpoints.hit("portion_read")
        new: list[ParkedKey] = []
        released = self._feed.replaced(made, self._parked)
        self._parked = [each for each in self._parked if each not in released]
        while True:
            records = [without_parked(each, self._parked) for each in made]
            dead = self._dead_letters(made)
            try:
                session.publish(records, position, parked=new, released=released, dead=dead)
                break
            except NotTaken as error:
                for refused in (error, *error.others):
                    if len(self._parked) == PARKED_MAX:
                        raise
                    self._note(f"its key waits: {refused.message}")
                    new.append(refused.parked(before.whole_epoch))
                    self._parked.append(new[-1])
        self._note_committed(position)
        failpoints.hit("portion_published")
        counts = PublishedCounts(position.epoch, sum(each.records.num_rows for each in records))
        done = self.progress
        done.transactions, done.records, done.failing = (
            done.transactions + 1,
            done.records + counts.records,
            0,
        )
        done.bytes += sum(bytes_of(each) for each in records)
        done.dead_letters += sum(each.records.num_rows for each in dead)
        self._report(counts)

    def _dead_letters(self, made: Sequence[TopicRecords]) -> list[TopicRecords]:
        if self._settings.dead_letter is None or not self._parked:
            return []
        found = [dead_letters(each, self._parked) for each in made]
        return [each for each in found if each.records.num_rows]
