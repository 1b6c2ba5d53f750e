"""One member of a consumer group: it gets batches of its partitions, commits them, and shares with the others."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from sqlalchemy import Connection

from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import Fenced, OperatorError, TransientError, UsageError, damaged_row
from tailrace.eventstore.log.wakeup import Deadline
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.subscriptions import dead_letters, membership
from tailrace.eventstore.subscriptions.assignment import Slot
from tailrace.eventstore.subscriptions.batch import Batch
from tailrace.eventstore.subscriptions.cursor import Cursor
from tailrace.eventstore.subscriptions.dead_letters import FailedEvent
from tailrace.eventstore.subscriptions.delivery import Delivery, Handler, Retries
from tailrace.eventstore.subscriptions.effects import Effects, restored_error
from tailrace.eventstore.subscriptions.group_progress import Bounds, GroupPartitions
from tailrace.eventstore.subscriptions.join_options import Options
from tailrace.eventstore.subscriptions.membership import BeatWatch, HeldSlot, StartPosition
from tailrace.eventstore.subscriptions.read_ahead import AheadCursor, ReadAhead

if TYPE_CHECKING:
    from sqlalchemy.orm import Session  # takes long to import, and is only a type here

_POLL_SECONDS = 1.0
_NEVER = 1 << 62


@dataclass
class _HeldPartition:
    """A partition of ours: the consumer was ``given`` rows up to an offset; what is ``committed`` survives us."""

    holding: HeldSlot
    cursor: Cursor | AheadCursor
    committed: StartPosition
    given: int
    in_effects: bool = False  # a commit inside the consumer's transaction has not been looked for yet
    open: bool = False  # the group is done with what came before it, under earlier partitions of its topic

    @property
    def settled(self) -> bool:
        return self.committed.next_offset >= self.given


class Member:
    """Iterate over it, or ``poll``; leaving the block gives the partitions back. For one thread, but for ``stop``."""

    def __init__(self, group: GroupPartitions, name: str, token: str, options: Options) -> None:
        self.name = name
        self.dropped = 0
        """Rows left out so far because this consumer was too slow (``slow="drop"``)."""
        self.group = group
        self.group_name = group.name
        self.database = group.database
        self.log = group.log
        self._me = membership.MemberId(group.name, name, token)
        self._options = options
        self._effects: Effects | None = None
        self._ahead: ReadAhead | None = None
        self._held: dict[Slot, _HeldPartition] = {}
        self._watch = BeatWatch(options.lease)
        self._turn: list[Slot] = []
        self._bounds: Mapping[TopicId, Bounds] = {}
        self._shared_at = float("-inf")
        self._asked_at = group.clock()
        self._lost: Fenced | None = None
        self._stop = threading.Event()
        self._stack = ExitStack()

    def with_effects(self, effects: Effects) -> Self:
        self._effects = effects
        return self

    def __enter__(self) -> Self:
        with self.database.write() as connection:
            membership.join(connection, self._me)
        failpoints.hit("group_joined")
        self._listener = self._stack.enter_context(self.log.waker.listen())
        if self._options.buffer_bytes is not None:
            self._ahead = self._stack.enter_context(ReadAhead(self._options.buffer_bytes))
        beating = threading.Thread(target=self._keep_beating, name=f"tailrace-{self.name}", daemon=True)
        beating.start()
        self._stack.callback(beating.join)
        self._stack.callback(self._stop.set)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        self._look_for_effects()
        with self.database.write() as connection:
            membership.leave(connection, self._me)

    @property
    def slots(self) -> list[Slot]:
        """The partitions that it has at the moment."""
        return sorted(self._held)

    @property
    def buffered(self) -> int:
        """Bytes that were read for this consumer and wait for it in memory (``slow="buffer"``)."""
        return 0 if self._ahead is None else self._ahead.buffered_bytes

    def stop(self) -> None:
        """End the iteration after the current batch. Any thread or signal handler may call it."""
        self._stop.set()

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def batches(self, timeout: float | None = None) -> Iterator[Batch]:
        """Batches as they come, without end; with a ``timeout`` until none has come for so many seconds."""
        while not self._stop.is_set():
            batch = self.poll(timeout)
            if batch is not None:
                yield batch
            elif timeout is not None:
                return

    def poll(self, timeout: float | None = 0.0) -> Batch | None:
        """The next batch, waiting up to ``timeout`` seconds for one (None: for ever, until ``stop``).

        Raises Fenced when another process has this member's name, or it was silent for longer than its lease,
        HistoryGone when retention was forced past the group: reset it, then join again.
        """
        deadline = Deadline(timeout)
        self._look_for_effects()
        while not self._stop.is_set():
            self._asked_at = self.group.clock()
            if self._lost is not None:
                raise self._lost
            self._share_out()
            batch = self._next()
            if batch is not None:
                return batch
            if self._finished_partitions() or not self.group.has_starts(self._bounds):
                continue  # nothing to wait for: others may go on, or there are more partitions
            if deadline.left <= 0:
                return None
            self._listener.wait(min(deadline.left, _POLL_SECONDS, self._options.lease / 3))
        return None

    def process(
        self,
        handler: Handler,
        *,
        attempts: int = 5,
        pause: float = 0.2,
        longest_pause: float = 30.0,
        order: Literal["key", "none"] = "key",
        concurrency: int = 1,
        timeout: float | None = None,
    ) -> None:
        """Give every event to ``handler`` (a ``Change``; of topics of domain events a ``Recorded``) until ``stop``, or
        until none came for ``timeout`` seconds.

        A handler that raises is called again, ``attempts`` times in all with growing pauses; then the event is parked
        and the rest goes on. ``order`` "key" parks later events of its key behind it, "none" lets them pass.
        ``concurrency`` keys are handled beside each other, the events of one key in order. What somebody asked to be
        replayed is given between batches. At least once: after a crash the events of a batch come again.
        """
        if self._effects is not None:
            raise UsageError("process() keeps positions in the group; iterate to make effects transactional")
        delivery = Delivery(
            self,
            handler,
            Retries(attempts, pause, longest_pause),
            keep_order=order == "key",
            workers=concurrency,
            wanted=self._options.filter.events,
        )
        deadline = Deadline(timeout)
        try:
            while not self._stop.is_set():
                delivery.replay(self._stop)
                batch = self.poll(min(_POLL_SECONDS, deadline.left))
                if batch is not None:
                    failed = delivery.batch(batch, self._stop)
                    if failed is None:
                        return
                    self._finish(batch, failed)
                    deadline = Deadline(timeout)
                elif deadline.left <= 0:
                    delivery.replay(self._stop)  # of partitions that it has only now
                    return
        finally:
            delivery.close()

    def _finish(self, batch: Batch, failed: Sequence[FailedEvent]) -> None:
        """Parked and passed in one transaction."""
        held = self._held[Slot(batch.topic, batch.partition)]
        following = StartPosition(batch.end_offset, batch.last_epoch)
        with self.database.write() as connection:
            if failed:
                dead_letters.park(connection, self.group.name, held.holding.slot, failed)
            membership.commit(
                connection, self.group.name, self.name, held.holding, held.committed.next_offset, following
            )
        failpoints.hit("position_committed")
        held.committed = following

    def alive(self) -> None:
        """Say that the consumer is at work, when a batch takes longer than its patience."""
        self._asked_at = self.group.clock()

    def require(self, connection: Connection, slot: Slot) -> None:
        """Inside a transaction: raises Fenced when the partition is not ours any more."""
        held = self._held.get(slot)
        if held is None:
            raise membership.stale_error(self.group.name, slot)
        membership.require(connection, self.group.name, self.name, held.holding)

    # partitions

    def _share_out(self) -> None:
        """Every third of a lease, whenever a partition is to be given up, and when there are more of them."""
        ended = self._finished_partitions()
        giving = [
            held
            for held in self._held.values()
            if held.holding.wanted is not None and held.settled and held not in ended
        ]
        now = self.group.clock()
        changed = ended or giving or not self.group.has_starts(self._bounds)
        if not changed and now - self._shared_at < self._options.lease / 3:
            return
        starts, closed = self.group.starts(), self.group.closed_ends()
        with self.database.write() as connection:
            # Before any partition: who changes the group has its row, and waits for partitions.
            membership.lock(connection, self.group.name)
            for held in giving:
                membership.give_up(connection, self.group.name, self.name, held.holding)
            for held in ended:
                membership.finish(connection, self.group.name, self.name, held.holding, held.cursor.position)
            mine = membership.share_out(connection, self._me, starts, closed, self._watch, now)
        failpoints.hit("partitions_shared")
        self._shared_at = now
        self._take(mine)

    def _finished_partitions(self) -> list[_HeldPartition]:
        """Partitions that get no more rows, and whose last one is done."""
        return [
            held
            for slot, held in self._held.items()
            if slot.topic in self._bounds
            and held.settled
            and not held.in_effects
            and held.cursor.position.next_offset >= self._bounds[slot.topic].ends.get(slot.partition, _NEVER)
        ]

    def answers_for(self, slot: Slot, key_hash: int) -> Slot | None:
        """The partition of ours under which a parked event may be given again: its own, or, when the group is done with
        that one, the one that its key has now. None: another member's."""
        if slot in self._held:
            return slot
        bounds = self._bounds.get(slot.topic)
        if bounds is None or slot.partition not in bounds.partitioning.closed_partitions:
            return None
        now = Slot(slot.topic, bounds.partitioning.current.partition_of(key_hash))
        return now if now in self._held and self._held[now].open else None

    def _take(self, mine: list[HeldSlot]) -> None:
        held: dict[Slot, _HeldPartition] = {}
        bounds = self.group.bounds({each.slot.topic for each in mine}) if self._is_new(mine) else {}
        for holding in mine:
            known = self._held.get(holding.slot)
            if known is not None and known.holding.generation == holding.generation:
                known.holding = holding
                held[holding.slot] = known
                continue
            at = StartPosition(holding.next_offset, holding.epoch)
            if holding.slot.topic in bounds:
                self._require_within(holding.slot, at, bounds[holding.slot.topic])
            if self._effects is not None:
                at = self._take_effects(self._effects, holding)
            held[holding.slot] = _HeldPartition(
                holding, self._cursor(holding.slot, at), at, given=at.next_offset
            )
            if at.next_offset != holding.next_offset:
                self._record(held[holding.slot], StartPosition(holding.next_offset, holding.epoch), at)
        for slot, gone in self._held.items():
            if held.get(slot) is not gone:
                gone.cursor.close()
        self._held = held
        self._turn = [slot for slot in self._turn if slot in held]
        self._turn += [slot for slot in held if slot not in self._turn]

    def _is_new(self, mine: Iterable[HeldSlot]) -> bool:
        """Whether any of these was not ours before in the same generation."""
        known = {(slot, held.holding.generation) for slot, held in self._held.items()}
        return any((each.slot, each.generation) not in known for each in mine)

    def _require_within(self, slot: Slot, at: StartPosition, bounds: Bounds) -> None:
        """Raises IntegrityError for a partition that there is not, and OperatorError for a stored position behind the
        end: its member would wait until the log has come that far, and never get the rows before."""
        if not 0 <= slot.partition < len(bounds.offsets):
            raise damaged_row(
                f"group_partitions, group {self.group.name!r}, {slot}", "there is no such partition"
            )
        _, end = bounds.offsets[slot.partition]
        if at.next_offset > end:
            raise OperatorError(
                f"group {self.group.name!r} is at offset {at.next_offset} of {slot}, and the log ends at {end}: it was"
                " restored from a backup, or somebody else moved the group",
                hint=f"tailrace group reset {self.group.name} --to latest, or to where its consumer stands",
            )

    def _cursor(self, slot: Slot, at: StartPosition) -> Cursor | AheadCursor:
        cursor = Cursor(
            self.log,
            slot,
            at,
            self._options.filter,
            batch_rows=self._options.batch_rows,
            drop_beyond=self._options.drop_beyond,
        )
        return cursor if self._ahead is None else AheadCursor(cursor, self._ahead)

    def _take_effects(self, effects: Effects, holding: HeldSlot) -> StartPosition:
        """Raises OperatorError when the consumer's database knows more than the log: that was restored from a copy."""
        slot = holding.slot
        try:
            at = effects.take(holding)
        except Fenced:
            with self.database.read() as connection:
                mine = membership.holdings(connection, self.group.name, self.name)
            if all((each.slot, each.generation) != (slot, holding.generation) for each in mine):
                raise
            # Nobody took it from us since, so it is the group's generations that have gone back.
            raise restored_error(self.group.name, slot, "in a later generation", "knows none of it") from None
        _, end = self.group.bounds([slot.topic])[slot.topic].offsets[slot.partition]
        if at.next_offset > end:
            raise restored_error(self.group.name, slot, f"at offset {at.next_offset}", f"ends at {end}")
        failpoints.hit("partition_taken")
        return at

    def _next(self) -> Batch | None:
        """The next batch, partitions by turns. One that is wanted elsewhere gives nothing more."""
        self._bounds = bounds = self.group.bounds({slot.topic for slot in self._turn})
        self._open(bounds)
        for _ in range(len(self._turn)):
            slot = self._turn.pop(0)
            self._turn.append(slot)
            held = self._held[slot]
            if held.holding.wanted is not None or not held.open:
                continue
            first, end = bounds[slot.topic].offsets[slot.partition]
            if held.cursor.position.next_offset < first:
                raise self.group.history_gone(slot, held.cursor.position.next_offset, first)
            found = self._fetch(held, end)
            if found is not None:
                return found
        return None

    def _open(self, bounds: Mapping[TopicId, Bounds]) -> None:
        """Partitions of a repartitioned topic give nothing before the group is done with all that came before, so that
        each key's rows stay in order."""
        waiting = [(slot, held) for slot, held in self._held.items() if not held.open]
        if not waiting:
            return
        closed = {
            Slot(topic, number): end for topic, each in bounds.items() for number, end in each.ends.items()
        }
        with self.database.read() as connection:
            left = closed.keys() - membership.finished_slots(connection, self.group.name, closed)
        for slot, held in waiting:
            first = bounds[slot.topic].partitioning.incarnation_of(slot.partition).first
            held.open = not any(each.topic == slot.topic and each.partition < first for each in left)

    def _fetch(self, held: _HeldPartition, end: int) -> Batch | None:
        while True:
            batch = held.cursor.next(end)
            if batch is None:
                return None
            self.dropped += batch.dropped
            if (
                batch.rows.num_rows == 0
            ):  # a filter left out everything: passed, unless something is open before it
                if held.settled and self._effects is None:
                    self._commit_to(held, held.cursor.position)
                continue
            if self._options.at_most_once:
                self._commit_to(held, held.cursor.position)
            held.given = batch.end_offset
            failpoints.hit("batch_given")
            return replace(batch, _commit=self._commit)

    # commits

    def _commit(self, batch: Batch, transaction: Connection | Session | None) -> None:
        held = self._held.get(Slot(batch.topic, batch.partition))
        if held is None:
            raise membership.stale_error(self.group.name, Slot(batch.topic, batch.partition))
        if batch.end_offset <= held.committed.next_offset and not held.in_effects:
            return
        following = StartPosition(batch.end_offset, batch.last_epoch)
        if self._effects is None:
            if transaction is not None:
                raise UsageError(
                    "this member keeps its positions in the group, so a batch cannot be part of a transaction",
                    hint="group.join(…, effects=engine), with the engine of the database that holds the effects",
                )
            self._commit_to(held, following)
            return
        if transaction is None:
            raise UsageError(
                "this member keeps its positions in the consumer's database",
                hint="batch.commit(session), inside the transaction that holds the effects",
            )
        self._effects.commit(transaction, held.holding, held.committed.next_offset, following)
        held.committed, held.in_effects = following, True

    def _commit_to(self, held: _HeldPartition, following: StartPosition) -> None:
        self._record(held, held.committed, following)
        held.committed = following

    def _record(self, held: _HeldPartition, previous: StartPosition, following: StartPosition) -> None:
        with self.database.write() as connection:
            membership.commit(
                connection, self.group.name, self.name, held.holding, previous.next_offset, following
            )
        failpoints.hit("position_committed")

    def _look_for_effects(self) -> None:
        """What became of commits inside the consumer's transactions: landed, or rolled back and given again."""
        if self._effects is None:
            return
        for held in self._held.values():
            if not held.in_effects:
                continue
            landed = self._effects.committed_position(held.holding)
            failpoints.hit("effects_found")
            if landed.next_offset < held.committed.next_offset:
                held.cursor.move(landed)
                held.given = landed.next_offset
            held.committed, held.in_effects = landed, False
            with self.database.write() as connection:
                membership.report(connection, self.group.name, self.name, held.holding, landed)

    # liveness

    def _keep_beating(self) -> None:
        """Beats as long as the consumer comes back for batches; then its partitions go to others."""
        while not self._stop.wait(self._options.lease / 3):
            if self.group.clock() - self._asked_at > self._options.patience:
                continue
            try:
                with self.database.write() as connection:
                    membership.beat(connection, self._me)
            except Fenced as error:
                self._lost = error
                return
            except TransientError:
                continue  # the database is away: for everybody
