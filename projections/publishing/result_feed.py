"""The result of a projection as it changes: a record for each row that is new or has another value, a tombstone for
each key that is gone.

What is published is always what leads from the step that was published last to another one: the last step of the
generation that is live when this begins. It goes on to its end in as many portions as it takes, whatever is promoted
meanwhile, so that the destination comes from one state of the projection to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.errors import HistoryGone, OperatorError, UsageError
from tailrace.eventstore.metadata.projection_steps import DerivedRun
from tailrace.eventstore.metadata.publications import NeededStep, record_need
from tailrace.eventstore.model import keys
from tailrace.eventstore.publishing.feed import FeedPortion
from tailrace.eventstore.publishing.parked import ParkedKey
from tailrace.eventstore.publishing.portions import PortionLimits
from tailrace.eventstore.publishing.position import Position, Towards, require_same_log
from tailrace.eventstore.publishing.records import Published, ResultId, TopicRecords, bytes_of
from tailrace.eventstore.settings import PublicationSettings
from tailrace.eventstore.store import Store
from tailrace.projections.definition.findings import did_you_mean
from tailrace.projections.generations.difference import HASH
from tailrace.projections.generations.result_input import ResultStep, live_of, result_of
from tailrace.projections.publishing.change import Change, change_between
from tailrace.projections.publishing.row_records import upsert_records


class ResultFeed:
    """``name`` is the publication's, ``settings`` name the projection."""

    def __init__(self, store: Store, name: str, settings: PublicationSettings) -> None:
        assert settings.projection is not None
        self._store = store
        self._name = name
        self._settings = settings
        self._projection = settings.projection
        self._id = ResultId(settings.projection)

    def begin(self, found: Position | None, place: str) -> Position:
        position = found or Position(self._store.log_id)
        require_of_results(self._store, position, self._name, place)
        known = self._store.derived.projections()
        if self._projection not in known:
            raise UsageError(
                f"publication {self._name}: projection {self._projection!r} was never built",
                hint=did_you_mean(self._projection, known) or f"tailrace rebuild {self._projection}",
            )
        return position

    def portions(
        self, position: Position, limits: PortionLimits, require_apart: Callable[[Sequence[Published]], None]
    ) -> Iterator[FeedPortion]:
        require_apart([self._id])
        while (target := self._target(position)) is not None:
            before = self._published(position)
            change = change_between(self._store, before, target)
            for portion in self._portions_of(change, position, target, limits):
                if portion.position.towards is not None:
                    self._need(portion.position)
                yield portion
                position = portion.position

    def waiting(
        self, parked: ParkedKey, position: Position, bytes_max: int
    ) -> Iterator[tuple[list[TopicRecords], ParkedKey | None]]:
        """The row that the key has now. Of one that is gone nothing waits: its tombstone was sent."""
        yield self._row_of(parked, position), None

    def _row_of(self, parked: ParkedKey, position: Position) -> list[TopicRecords]:
        published = self._published(position)
        if published is None:
            return []
        result = result_of(published.info, published.step)
        (bucket,) = keys.buckets_of(pa.array([parked.hash], pa.int64()), result.partitions, result.split)
        rows = result.read(self._store.storage, int(bucket))
        mine = rows.filter(pc.equal(rows[HASH], parked.hash))
        return [TopicRecords(self._id, upsert_records(mine, result.key, int(bucket)))]

    def replaced(self, records: Sequence[TopicRecords], parked: Sequence[ParkedKey]) -> list[ParkedKey]:
        hashes = pa.array([each.hash for each in parked], pa.int64())
        named = [pc.is_in(hashes, value_set=each.records["hash"].combine_chunks()) for each in records]
        return [each for at, each in enumerate(parked) if any(found[at].as_py() for found in named)]

    def tell(self, committed: Position, parked: Sequence[ParkedKey]) -> None:
        self._need(committed)

    def _need(self, position: Position) -> None:
        """Its steps stay from now on."""
        steps = []
        if position.generation:
            steps.append(NeededStep(self._projection, position.generation, position.epoch))
        if position.towards is not None:
            steps.append(NeededStep(self._projection, position.towards.generation, position.towards.epoch))
        seconds = self._settings.retention_waits
        record_need(self._store.groups_database, self._name, (), position.epoch, {}, seconds, steps=steps)

    def _published(self, position: Position) -> ResultStep | None:
        """The step whose result is published, but for what leads to another one; None: nothing is."""
        if not position.generation:
            return None
        return self._step(position.generation, position.epoch, position.epoch_hash)

    def _target(self, position: Position) -> ResultStep | None:
        """The step to be published next; None: there is none."""
        if (towards := position.towards) is not None:
            return self._step(towards.generation, towards.epoch, towards.step_hash)
        info = live_of(self._store, self._projection)
        last = self._store.steps.last(self._projection, info.generation) if info else None
        if info is None or last is None:
            return None
        published = (position.generation, position.epoch, position.epoch_hash)
        return None if (info.generation, last.to_epoch, last.hash) == published else ResultStep(info, last)

    def _step(self, generation: int, epoch: int, step_hash: str) -> ResultStep:
        """Raises HistoryGone when it is not kept any more."""
        info = live_of(self._store, self._projection, generation)
        for step in self._store.steps.list(self._projection, generation) if info else ():
            if info and (step.to_epoch, step.hash) == (epoch, step_hash):
                return ResultStep(info, step)
        raise HistoryGone(
            f"generation {generation} of projection {self._projection} at epoch {epoch} is not kept any more",
            hint="publish under another name",
        )

    def _portions_of(
        self, change: Change, position: Position, target: ResultStep, limits: PortionLimits
    ) -> Iterator[FeedPortion]:
        generation, step = target.info.generation, target.step
        towards = position.towards or Towards(generation, step.to_epoch, step.hash, 0, 0)
        held = _Held(self._id, limits)
        for bucket in (each for each in change.buckets if each >= towards.bucket):
            records = change.records(bucket)
            row = towards.row if bucket == towards.bucket else 0
            while row < records.num_rows:
                taken = held.take(records.slice(row))
                row += taken
                if held.is_full:
                    behind = replace(towards, bucket=bucket, row=row)
                    yield FeedPortion(held.give(), replace(position, towards=behind))
        end = Position(self._store.log_id, step.to_epoch, step.hash, generation=generation)
        yield FeedPortion(held.give(), end)


def require_of_results(store: Store, position: Position, publication: str, place: str) -> None:
    """Raises OperatorError for the position of another log, or of topics."""
    require_same_log(store, position, publication, place)
    if position.epoch and not position.generation:
        raise OperatorError(
            f"publication {publication}: {place} holds the position of topics, and a projection is to be published",
            hint=f"give one of the two another name, or delete {place}, and what was published, and publish anew",
        )


def steps_behind(store: Store, projection: str, generation: int | None, epoch: int) -> list[DerivedRun]:
    """The steps of the live generation that are not published where a ``generation`` is up to an epoch: of another
    generation the last one. None: whichever is live."""
    live = store.derived.live(projection)
    if live is None:
        return []
    if generation in (None, live):
        return store.steps.list(projection, live, after=epoch)
    last = store.steps.last(projection, live)
    return [last] if last else []


@dataclass(slots=True)
class _Held:
    """Records of a portion that is not full yet."""

    id: ResultId
    limits: PortionLimits
    pieces: list[pa.Table] = field(default_factory=list)
    size: int = 0
    began: float = 0.0

    @property
    def is_full(self) -> bool:
        late = self.limits.clock() - self.began >= self.limits.seconds_max
        return bool(self.pieces) and (late or self.size >= self.limits.bytes_max)

    def take(self, records: pa.Table) -> int:
        """As many of the first records as there is room for, at least one. How many."""
        whole = bytes_of(TopicRecords(self.id, records))
        room = max(self.limits.bytes_max - self.size, 0)
        count: int = records.num_rows if whole <= room else max(records.num_rows * room // whole, 1)
        if not self.pieces:
            self.began = self.limits.clock()
        piece = records.slice(0, count)
        self.pieces.append(piece)
        self.size += bytes_of(TopicRecords(self.id, piece))
        return count

    def give(self) -> list[TopicRecords]:
        """What is held, and hold nothing."""
        found = [TopicRecords(self.id, pa.concat_tables(self.pieces).combine_chunks())] if self.pieces else []
        self.pieces, self.size = [], 0
        return found
