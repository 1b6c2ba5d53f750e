"""The one writer of a source's topics: batches become epochs, each in one fenced catalog transaction.

Planning an append may be slow and runs in no transaction (``append_plan``); ``commit`` makes it visible. A topic that
was repartitioned between the two is noticed at the commit, and the append is planned again.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa
from sqlalchemy import update

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import IntegrityError, TailraceError
from tailrace.eventstore.log import sources
from tailrace.eventstore.log.append_plan import (
    Append,
    add_blob,
    add_file,
)
from tailrace.eventstore.log.commit import (
    EpochCommit,
    KnownTopic,
    StalePartitioning,
    fenced_error,
    retry_while_away,
    state_after,
)
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.metadata import quarantine, topics
from tailrace.eventstore.model.epoch import EpochBatch, UndecodedFrames
from tailrace.eventstore.model.info import EpochInfo, SourceState
from tailrace.eventstore.model.partitioning import Partitioning
from tailrace.eventstore.model.position import format_lsn
from tailrace.eventstore.model.schema import TopicSchema, change_schema
from tailrace.eventstore.model.segment_ref import PreparedSegment
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment import file_reader, segment

_T = TypeVar("_T")


class SourceWriter:
    """Appends to one source under one term. ``append`` and ``advance`` are called from one thread at a time,
    ``prepare`` from any number, also meanwhile. Made by ``Store.take_over``."""

    def __init__(self, log: Log, state: SourceState, last_append: str) -> None:
        self._log = log
        self._state = state
        self._last_append = last_append
        self._topics: dict[TopicId, KnownTopic] = {}
        self._topics_lock = threading.Lock()
        self._append_lock = threading.Lock()
        self._commit = EpochCommit(log.catalog, log.waker, self._topic)

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
        name = self._new_file(topic, known.id)
        return segment.write_segment(self._log.storage, topic, version, rows, known.incarnation, name)

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
            batch = self._check_batch(batch)
            plan, info = self._commit_batch(batch)
            self._state = state_after(self._state, batch)
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
                raise fenced_error(self._state)
        self._state = replace(self._state, repairing=True)

    def set_timeline(self, timeline: int) -> None:
        """Record the server's timeline, of which the log's position is a part."""
        table = tables.sources
        if timeline != self._state.timeline:
            with self._log.catalog.write() as connection:
                mine = (table.c.name == self._state.name, table.c.term == self._state.term)
                connection.execute(update(table).where(*mine).values(timeline=timeline))
            self._state = replace(self._state, timeline=timeline)

    def set_slot(self, slot: str, publication: str) -> None:
        """Record from which slot the source is captured. Raises Fenced when another writer took over."""
        table = tables.sources
        with self._log.catalog.write() as connection:
            mine = (table.c.name == self._state.name, table.c.term == self._state.term)
            values = {"slot": slot, "publication": publication}
            if connection.execute(update(table).where(*mine).values(values)).rowcount != 1:
                raise fenced_error(self._state)
        self._state = replace(self._state, slot=slot, publication=publication)

    def advance(self, end_lsn: int, through_lsn: int) -> None:
        """Record that everything committing below ``through_lsn`` is in the log (idle keepalives). Never backwards."""
        self.append(EpochBatch(self._state.name, self._state.commit_lsn, end_lsn, through_lsn))

    def _commit_batch(self, batch: EpochBatch) -> tuple[Append, EpochInfo | None]:
        """The append that was committed. It is planned again when a topic of it was repartitioned meanwhile."""
        while True:
            plan = self._plan(batch)
            try:
                info = self._commit.settle(plan)
            except StalePartitioning:
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

    def _check_batch(self, batch: EpochBatch) -> EpochBatch:
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
                f"source {state.name!r} is at commit {format_lsn(state.commit_lsn)}; a batch of "
                f"{batch.transactions} transactions ends at {format_lsn(batch.commit_lsn)}",
                hint="a transaction would be appended twice or out of order; report this",
            )
        return replace(
            batch,
            end_lsn=max(batch.end_lsn, state.end_lsn),
            through_lsn=max(batch.through_lsn, state.through_lsn),
        )

    def _plan(self, batch: EpochBatch) -> Append:
        plan = Append(uuid.uuid4().hex, batch, self._state, self._last_append)
        known = self._add_schemas(batch.new_schemas)
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
            add_file(plan, self._rearrange(plan, file, topic, schema), topic)
        if small:
            add_blob(plan, small, known)
        return plan

    def _rearrange(
        self, plan: Append, file: PreparedSegment, topic: KnownTopic, schema: TopicSchema
    ) -> PreparedSegment:
        """A file as it is; one that was prepared before its topic was repartitioned is written once more."""
        if all(partition in topic.incarnation.numbers for partition, _ in file.counts):
            return file
        rows = segment.read_prepared(self._log.storage, file, schema)
        anew = self.prepare(file.topic, file.version, rows)
        plan.made.append(anew.path)
        plan.replaced.append(file.path)
        return anew

    def _add_schemas(
        self, new_schemas: Sequence[tuple[TopicId, TopicSchema]]
    ) -> Callable[[TopicId], KnownTopic]:
        """Look-up of topics, with the versions a batch brings. A topic of theirs that is not registered yet (a
        category first seen in the stream) is registered now: an empty topic harms nobody if the append then fails."""
        for topic, schema in new_schemas:
            if self._find(topic) is None:
                sources.register_topic(self._log, topic, schema, reason=topics.first_reason(schema.kind))
            self._topic(topic).schemas.setdefault(schema.version, schema)
        return self._topic

    def _topic(self, topic: TopicId) -> KnownTopic:
        found = self._find(topic)
        if found is None:
            self._log.topic(topic)  # raises UsageError with a hint
            raise IntegrityError(f"topic {topic} vanished from the catalog")
        return found

    def _find(self, topic: TopicId) -> KnownTopic | None:
        with self._topics_lock:
            known = self._topics.get(topic)
            if known is None:
                known = retry_while_away(lambda: self._load(topic))
                if known is not None:
                    self._topics[topic] = known
            return known

    def _load(self, topic: TopicId) -> KnownTopic | None:
        with self._log.catalog.read() as connection:
            found = topics.declared_topic(connection, topic)
            if found is None or found.row.source != self._state.name:
                return None
            row = found.row
            offsets = json.loads(topics.next_offsets(connection, row.id))
            schemas = {schema.version: schema for schema in topics.versions(found)}
            return KnownTopic(row.id, Partitioning.from_json(row.partitioning).current, offsets, schemas)

    def _new_file(self, topic: TopicId, topic_id: int) -> str:
        return f"{segment.folder_of(topic, topic_id)}/t{self._state.term}-{uuid.uuid4().hex}"


def _version(topic: TopicId, known: KnownTopic, version: int) -> TopicSchema:
    schema = known.schemas.get(version)
    if schema is None:
        raise IntegrityError(f"rows of {topic} name version {version}, which neither log nor batch has")
    return schema


def _check_columns(topic: TopicId, schema: TopicSchema, rows: pa.Table) -> None:
    if not rows.schema.equals(change_schema(schema), check_metadata=False):
        raise IntegrityError(
            f"rows of {topic} do not have the columns of its version {schema.version}: {rows.schema.to_string()}"
        )
