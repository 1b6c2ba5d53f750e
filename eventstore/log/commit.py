"""The commit of an append: one fenced transaction of the catalog, tried until its outcome is known.

The order of statements is the design (``EpochCommit._commit``):

1. ``UPDATE sources … WHERE term = mine AND commit_lsn = previous AND last_append = previous`` is both fence and new
   position. A writer that lost its term changes zero rows, whatever it believed before.
2. Schemas, offsets, the blob: heavy or many, and touching rows of this source alone.
3. ``UPDATE log_head SET epoch = epoch + 1 RETURNING epoch`` and, behind it, only the few rows that carry the number.
   The row lock it takes is held until this transaction's end, so another capture gets n + 1 only when n is visible
   or rolled back: visible epochs are a prefix without gaps. (The number cannot come last in the literal sense:
   somebody must write it down. What matters is that nothing slow happens under the lock.)

After a lost connection the COMMIT may have landed or not. ``last_append`` holds the id of the append, so reading it
again tells: my id = landed; my previous id and my term = not landed, the same append is tried again (its
compare-and-set on ``last_append`` waits for, and then loses to, a commit still in flight on the server); another term
= fenced.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from sqlalchemy import Connection, bindparam, insert, select, update

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.errors import Fenced, IntegrityError, TransientError
from tailrace.eventstore.log.append_plan import Append, content_hash, epoch_values, segment_values
from tailrace.eventstore.log.wakeup import Waker
from tailrace.eventstore.metadata import kafka_progress, load_progress, quarantine, topics
from tailrace.eventstore.model.epoch import EpochBatch
from tailrace.eventstore.model.info import EpochInfo, SourceState
from tailrace.eventstore.model.partitioning import Partitioning, TopicIncarnation
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId

_T = TypeVar("_T")

# How long an append goes on trying to reach a catalog that is away before it gives up with TransientError.
RETRY_SECONDS = 60.0
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
# Fence and new position in one. Made once, and given its values as parameters: every epoch runs it.
_MOVE_SOURCE = update(tables.sources).where(
    tables.sources.c.name == bindparam("mine"),
    tables.sources.c.term == bindparam("my_term"),
    tables.sources.c.commit_lsn == bindparam("previous_lsn"),
    tables.sources.c.last_append == bindparam("previous_append"),
)


@dataclass(slots=True)
class KnownTopic:
    """What the writer knows about one of its topics. While the term is ours nobody else changes it, but for an
    operator who repartitions the topic: that is noticed at the next commit to it."""

    id: int
    incarnation: TopicIncarnation
    next_offsets: list[int]
    schemas: dict[int, TopicSchema]


@dataclass(frozen=True, slots=True)
class EpochCommit:
    """Commits appends of one source; ``topic`` finds what its writer knows about a topic."""

    catalog: Catalog
    waker: Waker
    topic: Callable[[TopicId], KnownTopic]

    def settle(self, plan: Append) -> EpochInfo | None:
        """Commit until the outcome is known. None: only the position moved. Raises Fenced, Repartitioned, and
        TransientError when the catalog stayed out of reach."""
        unknown = False

        def attempt() -> EpochInfo | None:
            nonlocal unknown
            if unknown:
                landed, info = self._has_landed(plan)
                if landed:
                    return info
            unknown = True
            return self._commit(plan)

        try:
            return retry_while_away(attempt)
        except _ZeroRows:
            landed, info = retry_while_away(lambda: self._has_landed(plan))
            if landed:
                return info
            raise fenced_error(plan.previous) from None

    def _has_landed(self, plan: Append) -> tuple[bool, EpochInfo | None]:
        """Whether the append has landed. Raises Fenced when the source has another term now."""
        with self.catalog.read() as connection:
            table = tables.sources
            row = connection.execute(
                select(table.c.term, table.c.last_append).where(table.c.name == plan.previous.name)
            ).one_or_none()
            if row is not None and row.last_append == plan.id:
                return True, topics.epoch_of_append(connection, plan.id)
            if row is None or row.term != plan.previous.term:
                raise fenced_error(plan.previous)
            return False, None

    def _commit(self, plan: Append) -> EpochInfo | None:
        info: EpochInfo | None = None
        with self.catalog.write() as connection:
            self._move_source(connection, plan)
            for topic, published in plan.batch.published:
                topics.set_published(connection, self.topic(topic).id, published)
            self._write_offsets(connection, plan)
            if plan.blob is not None:
                connection.execute(
                    insert(tables.blobs),
                    {
                        "append_id": plan.id,
                        "plain_bytes": plan.blob_plain_bytes,
                        "checksum": plan.blob_checksum,
                        "data": plan.blob,
                    },
                )
            for topic, number in plan.batch.released:
                quarantine.release(connection, self.topic(topic).id, number)
            if plan.is_epoch:
                self.waker.notify_in(connection)
                info = self._write_epoch(connection, plan)
            for frames in plan.batch.undecoded:
                quarantine.add(connection, self.topic(frames.topic).id, frames)
            failpoints.hit("inside_commit")
        return info

    def _move_source(self, connection: Connection, plan: Append) -> None:
        batch, previous = plan.batch, plan.previous
        after = state_after(previous, batch)
        moved = connection.execute(
            _MOVE_SOURCE,
            {
                "mine": previous.name,
                "my_term": previous.term,
                "previous_lsn": previous.commit_lsn,
                "previous_append": plan.previous_append,
                "commit_lsn": batch.commit_lsn,
                "end_lsn": batch.end_lsn,
                "through_lsn": batch.through_lsn,
                "last_append": plan.id,
                "incarnation": after.incarnation,
                "system_id": after.system_id,
                "timeline": after.timeline,
                "repairing": after.repairing,
                "loaded": after.loaded,
            },
        )
        if moved.rowcount != 1:
            raise _ZeroRows

    def _write_offsets(self, connection: Connection, plan: Append) -> None:
        if not plan.next_offsets:
            return
        table = tables.topic_offsets
        statement = (
            update(table)
            .where(table.c.topic_id == bindparam("topic"), table.c.next_offsets == bindparam("mine"))
            .values(next_offsets=bindparam("following"))
        )
        changes = []
        for topic, following in plan.next_offsets.items():
            known = self.topic(topic)
            mine = json.dumps(known.next_offsets)
            changes.append({"topic": known.id, "mine": mine, "following": json.dumps(following)})
        if connection.execute(statement, changes).rowcount != len(changes):
            for topic in plan.next_offsets:
                found = topics.declared_topic(connection, topic)
                known = self.topic(topic)
                if (
                    found is None
                    or Partitioning.from_json(found.row.partitioning).current != known.incarnation
                ):
                    raise StalePartitioning
            raise IntegrityError(
                f"the offsets of topics of {plan.previous.name!r} in the catalog are not those its only writer left",
                hint="the catalog was changed from outside; restore it from a backup",
            )

    def _write_epoch(self, connection: Connection, plan: Append) -> EpochInfo:
        content = content_hash(plan)
        epoch, before, declared = topics.next_epoch(connection)
        declared = declared.plus(self._declare(connection, plan, epoch))
        declared = declared.plus(kafka_progress.write(connection, plan.batch))
        values = epoch_values(plan, epoch, before, content, declared.text)
        topics.add_epoch(connection, values)
        files = [segment_values(part, epoch) for part in plan.parts if part.path is not None]
        if files:
            connection.execute(insert(tables.segments), files)
        for load in plan.batch.load_begins:
            load_progress.begin(connection, self.topic(load.topic).id, load, epoch)
        for step in plan.batch.load_steps:
            load_progress.step(connection, step, lambda topic: self.topic(topic).id)
        return topics.epoch_info(values)

    def _declare(self, connection: Connection, plan: Append, epoch: int) -> int:
        """Write what the epoch says of topics; gives how the sum over them changes."""
        batch, changed = plan.batch, 0
        for topic, schema in batch.new_schemas:
            changed += topics.add_schema(connection, self.topic(topic).id, topic, schema, epoch=epoch)
        for topic in batch.completes:
            changed += topics.complete(connection, self.topic(topic).id, epoch)
        for topic, reason in batch.suspends:
            changed += topics.suspend(connection, self.topic(topic).id, epoch, reason)
        for each in batch.quarantined:
            topic_id = self.topic(each.topic).id
            changed += topics.suspend(connection, topic_id, epoch, quarantine.reason(each))
            quarantine.begin(connection, topic_id, each)
        return changed


def fenced_error(state: SourceState) -> Fenced:
    """The error for a writer whose source has another one."""
    return Fenced(
        f"source {state.name!r} has another writer now; term {state.term} is over",
        hint="two captures of one source run; stop one of them",
    )


class StalePartitioning(Exception):
    """The rows were arranged over partitions that get no more of them; nothing was written."""


class _ZeroRows(Exception):
    """The compare-and-set on the source changed nothing: fenced, or this very append landed before."""


def retry_while_away(action: Callable[[], _T]) -> _T:
    """Repeat while the catalog is out of reach, up to RETRY_SECONDS after the first failure."""
    deadline: float | None = None
    pause = _FIRST_PAUSE
    while True:
        try:
            return action()
        except TransientError:
            deadline = deadline or time.monotonic() + RETRY_SECONDS
            if time.monotonic() > deadline:
                raise
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def state_after(state: SourceState, batch: EpochBatch) -> SourceState:
    """A source's state once the batch is in the log."""
    if batch.incarnation is not None:
        state = replace(
            state,
            incarnation=batch.incarnation.number,
            system_id=batch.incarnation.system_id,
            timeline=batch.incarnation.timeline,
            repairing=False,
        )
    return replace(
        state,
        commit_lsn=batch.commit_lsn,
        end_lsn=batch.end_lsn,
        through_lsn=batch.through_lsn,
        loaded=state.loaded or batch.commit_lsn > 0,
    )
