"""The one writer of a source's topics: batches become epochs, each in one fenced catalog transaction.

The order of statements is the design (``SourceWriter._commit``):

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
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa
from sqlalchemy import Connection, bindparam, insert, select, update

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import Fenced, IntegrityError, TailraceError, TransientError
from tailrace.eventstore.log import sources
from tailrace.eventstore.log.append_plan import (
    Append,
    add_blob,
    add_file,
    content_hash,
    epoch_values,
    segment_values,
)
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.metadata import load_progress, quarantine, topics
from tailrace.eventstore.model.epoch import EpochBatch, UndecodedFrames
from tailrace.eventstore.model.info import EpochInfo, SourceState
from tailrace.eventstore.model.partitioning import Partitioning, TopicIncarnation
from tailrace.eventstore.model.position import format_lsn
from tailrace.eventstore.model.schema import TopicSchema, change_schema
from tailrace.eventstore.model.segment_ref import PreparedSegment
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment import file_reader, segment

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
class _Topic:
    """What the writer knows about one of its topics. While the term is ours nobody else changes it, but for an
    operator who repartitions the topic: that is noticed at the next commit to it."""

    id: int
    incarnation: TopicIncarnation
    next_offsets: list[int]
    schemas: dict[int, TopicSchema]


class SourceWriter:
    """Appends to one source under one term. ``append`` and ``advance`` are called from one thread at a time,
    ``prepare`` from any number, also meanwhile. Made by ``Store.take_over``."""

    def __init__(self, log: Log, state: SourceState, last_append: str) -> None:
        self._log = log
        self._state = state
        self._last_append = last_append
        self._topics: dict[TopicId, _Topic] = {}
        self._topics_lock = threading.Lock()
        self._append_lock = threading.Lock()

    @property
    def state(self) -> SourceState:
        """The source's position after the last append or advance of this writer."""
        return self._state

    @property
    def term(self) -> int:
        return self._state.term

    def prepare(self, topic: TopicId, version: int, rows: pa.Table) -> PreparedSegment:
        """Write rows as a durable file that no epoch names yet. Give it to a later ``append`` (``EpochBatch.files``).

        ``rows`` are in ``change_schema`` of the version, which may be one that the same append brings as new.
        """
        known = self._topic(topic)
        schema = known.schemas.get(version)
        if schema is not None:
            _check_columns(topic, schema, rows)
        name, spread = self._new_file(topic, known.id), known.incarnation
        return segment.write_segment(
            self._log.storage, topic, version, rows, spread.count, name, spread.first
        )

    def store_undecoded(
        self, topic: TopicId, data: bytes, frames: int, *, as_file: bool = False
    ) -> UndecodedFrames:
        """Frames that came for a topic in quarantine; durable once they are given to an ``append``
        (``EpochBatch.undecoded``). Many of them, or all with ``as_file``, are written to a file now."""
        digest = file_reader.checksum(data)
        if not as_file and len(data) <= self._log.settings.inline_bytes:
            return UndecodedFrames(topic, frames, len(data), digest, data=data)
        path = f"{self._new_file(topic, self._topic(topic).id)}{quarantine.SUFFIX}"
        self._log.storage.write(path, data)
        failpoints.hit("frames_kept")
        return UndecodedFrames(topic, frames, len(data), digest, path=path)

    def append(self, batch: EpochBatch) -> EpochInfo | None:
        """Make the batch visible, atomically, and move the source's position.

        None when there was nothing to make visible (only the position moved, no epoch number is used up). Raises
        Fenced when another writer took over, TransientError when the catalog stayed out of reach (then whether the
        batch landed is open: take over again and look at ``state``), IntegrityError on a batch that goes backwards.
        """
        with self._append_lock:
            batch = self._checked(batch)
            plan, info = self._written(batch)
            self._state = _moved(self._state, batch)
            self._last_append = plan.id
            with self._topics_lock:
                for topic, offsets in plan.next_offsets.items():
                    self._topics[topic].next_offsets = offsets
        failpoints.hit("epoch_committed")
        if info is not None:
            self._log.waker.notify(info.epoch)
        return info

    def begin_repair(self) -> None:
        """Record, before the slot is replaced, that nothing may be streamed until an append begins a new incarnation.

        Raises Fenced when another writer took over."""
        table = tables.sources
        with self._log.catalog.write() as connection:
            mine = (table.c.name == self._state.name, table.c.term == self._state.term)
            if connection.execute(update(table).where(*mine).values(repairing=True)).rowcount != 1:
                raise self._fenced()
        self._state = replace(self._state, repairing=True)

    def on_timeline(self, timeline: int) -> None:
        """Record the server's timeline, of which the log's position is a part."""
        table = tables.sources
        if timeline != self._state.timeline:
            with self._log.catalog.write() as connection:
                mine = (table.c.name == self._state.name, table.c.term == self._state.term)
                connection.execute(update(table).where(*mine).values(timeline=timeline))
            self._state = replace(self._state, timeline=timeline)

    def advance(self, end_lsn: int, through_lsn: int) -> None:
        """Record that everything committing below ``through_lsn`` is in the log (idle keepalives). Never backwards."""
        self.append(EpochBatch(self._state.name, self._state.commit_lsn, end_lsn, through_lsn))

    def _written(self, batch: EpochBatch) -> tuple[Append, EpochInfo | None]:
        """The append that was committed. It is planned again when a topic of it was repartitioned meanwhile."""
        while True:
            plan = self._plan(batch)
            try:
                info = self._settle(plan)
            except _Repartitioned:
                self._forget(plan.made)
                with self._topics_lock:
                    for topic in plan.next_offsets:
                        self._topics.pop(topic, None)
                continue
            self._forget(plan.replaced)
            return plan, info

    def _forget(self, paths: Sequence[str]) -> None:
        """Files that no epoch will name. Those that stay, because the disk refuses, are orphans of this term."""
        for path in paths:
            with suppress(TailraceError):
                self._log.storage.delete(path)

    # planning: no transaction, may be slow

    def _checked(self, batch: EpochBatch) -> EpochBatch:
        """The batch with ``end_lsn`` and ``through_lsn`` that never go back: a late, lower one says nothing new."""
        state = self._state
        if batch.source != state.name:
            raise IntegrityError(f"a batch of source {batch.source!r} came to the writer of {state.name!r}")
        if batch.incarnation is not None:
            if batch.incarnation.number != state.incarnation + 1:
                raise IntegrityError(f"source {state.name!r} is in its incarnation {state.incarnation}")
            return batch
        again = batch.transactions and batch.commit_lsn == state.commit_lsn and state.loaded
        if batch.commit_lsn < state.commit_lsn or again:
            raise IntegrityError(
                f"source {state.name!r} stands at commit {format_lsn(state.commit_lsn)}; a batch of "
                f"{batch.transactions} transactions leads to {format_lsn(batch.commit_lsn)}",
                hint="a transaction would be appended twice or out of order; report this",
            )
        return replace(
            batch,
            end_lsn=max(batch.end_lsn, state.end_lsn),
            through_lsn=max(batch.through_lsn, state.through_lsn),
        )

    def _plan(self, batch: EpochBatch) -> Append:
        plan = Append(uuid.uuid4().hex, batch, self._state, self._last_append)
        known = self._with_new_schemas(batch.new_schemas)
        files = list(batch.files)
        small = [rows for rows in batch.rows if rows.rows.num_rows]
        for rows in small:
            _check_columns(rows.topic, _version(rows.topic, known(rows.topic), rows.version), rows.rows)
        if sum(rows.rows.nbytes for rows in small) > self._log.settings.inline_bytes:
            prepared = [self.prepare(rows.topic, rows.version, rows.rows) for rows in small]
            plan.made += [file.path for file in prepared]
            files += prepared
            small = []
        for file in files:
            topic = known(file.topic)
            schema = _version(file.topic, topic, file.version)
            add_file(plan, self._arranged_anew(plan, file, topic, schema), topic)
        if small:
            add_blob(plan, small, known)
        return plan

    def _arranged_anew(
        self, plan: Append, file: PreparedSegment, topic: _Topic, schema: TopicSchema
    ) -> PreparedSegment:
        """A file as it is; one that was prepared before its topic was repartitioned is written once more."""
        if all(partition in topic.incarnation.numbers for partition, _ in file.counts):
            return file
        rows = segment.read_prepared(self._log.storage, file, schema)
        anew = self.prepare(file.topic, file.version, rows)
        plan.made.append(anew.path)
        plan.replaced.append(file.path)
        return anew

    def _with_new_schemas(
        self, new_schemas: Sequence[tuple[TopicId, TopicSchema]]
    ) -> Callable[[TopicId], _Topic]:
        """Look-up of topics, with the versions a batch brings. A topic of theirs that is not registered yet (a
        category first seen in the stream) is registered now: an empty topic harms nobody if the append then fails."""
        for topic, schema in new_schemas:
            if self._find(topic) is None:
                sources.register_topic(self._log, topic, schema, reason=topics.first_reason(schema.kind))
            self._topic(topic).schemas.setdefault(schema.version, schema)
        return self._topic

    def _topic(self, topic: TopicId) -> _Topic:
        found = self._find(topic)
        if found is None:
            self._log.topic(topic)  # raises UsageError with a hint
            raise IntegrityError(f"topic {topic} vanished from the catalog")
        return found

    def _find(self, topic: TopicId) -> _Topic | None:
        with self._topics_lock:
            found = self._topics.get(topic)
            if found is None:
                found = _patiently(lambda: self._load(topic))
                if found is not None:
                    self._topics[topic] = found
            return found

    def _load(self, topic: TopicId) -> _Topic | None:
        with self._log.catalog.read() as connection:
            row = topics.topic_row(connection, topic)
            if row is None or row.source != self._state.name:
                return None
            offsets = json.loads(topics.next_offsets(connection, row.id))
            schemas = {schema.version: schema for schema in topics.schemas(connection, row.id)}
            return _Topic(row.id, Partitioning.from_json(row.partitioning).current, offsets, schemas)

    def _new_file(self, topic: TopicId, topic_id: int) -> str:
        return f"{segment.folder_of(topic, topic_id)}/t{self._state.term}-{uuid.uuid4().hex}"

    # the commit

    def _settle(self, plan: Append) -> EpochInfo | None:
        """Commit until the outcome is known (see the head of this file)."""
        unknown = False

        def attempt() -> EpochInfo | None:
            nonlocal unknown
            if unknown:
                landed, info = self._look(plan)
                if landed:
                    return info
            unknown = True
            return self._commit(plan)

        try:
            return _patiently(attempt)
        except _ZeroRows:
            landed, info = _patiently(lambda: self._look(plan))
            if landed:
                return info
            raise self._fenced() from None

    def _look(self, plan: Append) -> tuple[bool, EpochInfo | None]:
        """Whether the append has landed. Raises Fenced when the source has another term now."""
        with self._log.catalog.read() as connection:
            table = tables.sources
            row = connection.execute(
                select(table.c.term, table.c.last_append).where(table.c.name == self._state.name)
            ).one_or_none()
            if row is not None and row.last_append == plan.id:
                return True, topics.epoch_of_append(connection, plan.id)
            if row is None or row.term != self._state.term:
                raise self._fenced()
            return False, None

    def _fenced(self) -> Fenced:
        return Fenced(
            f"source {self._state.name!r} has another writer now; term {self._state.term} is over",
            hint="two captures of one source run; stop one of them",
        )

    def _commit(self, plan: Append) -> EpochInfo | None:
        info: EpochInfo | None = None
        with self._log.catalog.write() as connection:
            self._move_source(connection, plan)
            for topic, published in plan.batch.published:
                topics.set_published(connection, self._topic(topic).id, published)
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
                quarantine.release(connection, self._topic(topic).id, number)
            if plan.is_epoch:
                self._log.waker.notify_in(connection)
                info = self._write_epoch(connection, plan)
            for frames in plan.batch.undecoded:
                quarantine.add(connection, self._topic(frames.topic).id, frames)
            failpoints.hit("inside_commit")
        return info

    def _move_source(self, connection: Connection, plan: Append) -> None:
        batch, previous = plan.batch, plan.previous
        moved_to = _moved(previous, batch)
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
                "incarnation": moved_to.incarnation,
                "system_id": moved_to.system_id,
                "timeline": moved_to.timeline,
                "repairing": moved_to.repairing,
                "loaded": moved_to.loaded,
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
            known = self._topic(topic)
            mine = json.dumps(known.next_offsets)
            changes.append({"topic": known.id, "mine": mine, "following": json.dumps(following)})
        if connection.execute(statement, changes).rowcount != len(changes):
            for topic in plan.next_offsets:
                row = topics.topic_row(connection, topic)
                known = self._topic(topic)
                if row is None or Partitioning.from_json(row.partitioning).current != known.incarnation:
                    raise _Repartitioned
            raise IntegrityError(
                f"the offsets of topics of {self._state.name!r} in the catalog are not those its only writer left",
                hint="the catalog was changed from outside; restore it from a backup",
            )

    def _write_epoch(self, connection: Connection, plan: Append) -> EpochInfo:
        content = content_hash(plan)
        epoch, before = topics.next_epoch(connection)
        values = epoch_values(plan, epoch, before, content)
        topics.add_epoch(connection, values)
        files = [segment_values(part, epoch) for part in plan.parts if part.path is not None]
        if files:
            connection.execute(insert(tables.segments), files)
        for topic, schema in plan.batch.new_schemas:
            topics.add_schema(connection, self._topic(topic).id, topic, schema, epoch=epoch)
        for topic in plan.batch.completes:
            topics.complete(connection, self._topic(topic).id, epoch)
        for topic, reason in plan.batch.suspends:
            topics.suspend(connection, self._topic(topic).id, epoch, reason)
        for each in plan.batch.quarantined:
            topic_id = self._topic(each.topic).id
            topics.suspend(connection, topic_id, epoch, quarantine.reason(each))
            quarantine.begin(connection, topic_id, each)
        for load in plan.batch.load_begins:
            load_progress.begin(connection, self._topic(load.topic).id, load, epoch)
        for step in plan.batch.load_steps:
            load_progress.step(connection, step, lambda topic: self._topic(topic).id)
        return topics.epoch_info(values)


def _version(topic: TopicId, known: _Topic, version: int) -> TopicSchema:
    schema = known.schemas.get(version)
    if schema is None:
        raise IntegrityError(f"rows of {topic} name version {version}, which neither log nor batch has")
    return schema


def _check_columns(topic: TopicId, schema: TopicSchema, rows: pa.Table) -> None:
    if not rows.schema.equals(change_schema(schema), check_metadata=False):
        raise IntegrityError(
            f"rows of {topic} do not have the columns of its version {schema.version}: {rows.schema.to_string()}"
        )


class _Repartitioned(Exception):
    """The rows were arranged over partitions that get no more of them; nothing was written."""


class _ZeroRows(Exception):
    """The compare-and-set on the source changed nothing: fenced, or this very append landed before."""


def _patiently(action: Callable[[], _T]) -> _T:
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


def _moved(state: SourceState, batch: EpochBatch) -> SourceState:
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
