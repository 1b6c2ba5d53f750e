"""One session on a cluster: look, take the source over, then fetch, make epochs, append.

1. look: is it the cluster of before, which topics match, what became of those that were read?
2. take the source over: earlier writers are fenced
3. an epoch says where new partitions begin, so that nothing in front of a later look is passed over
4. fetch; when an epoch is due, make sure that the topics are those of before, and append it
5. look again now and then: new topics and partitions begin a new session
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from tailrace.cdc.kafka.epochs.epoch import Decode, EpochBuilder, Known
from tailrace.cdc.kafka.epochs.transactions import TransactionCut, tables_of
from tailrace.cdc.kafka.epochs.waiting import Waiting
from tailrace.cdc.kafka.parked.dead_letters import DeadLetters
from tailrace.cdc.kafka.registry.schemas import SchemaRegistry, schemas_of
from tailrace.cdc.kafka.repeats.event_ids import EventIds, latest_ids
from tailrace.cdc.kafka.repeats.positions import held_rows
from tailrace.cdc.kafka.requests import REREAD, answer_parked, is_waiting
from tailrace.cdc.kafka.rereading import Rereading
from tailrace.cdc.kafka.topics.discovery import Discovery, discover, require_beginning, require_same
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.setup.adopted import unconfirmed
from tailrace.cdc.status import CapturePhase, CaptureProgress
from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import OperatorError, TransientError, UsageError
from tailrace.eventstore.kafka.cluster import Cluster
from tailrace.eventstore.kafka.connection import OffsetLost
from tailrace.eventstore.kafka.group_offsets import GroupOffsets
from tailrace.eventstore.kafka.reader import Partition, PartitionReader
from tailrace.eventstore.kafka.single_record import read_record
from tailrace.eventstore.log.sources import chained_partitions
from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.metadata.topics import latest_schemas
from tailrace.eventstore.model.epoch import EpochBatch
from tailrace.eventstore.model.kafka import PartitionProgress, RecordPlace, SnapshotPhase
from tailrace.eventstore.settings import KafkaSourceSettings
from tailrace.eventstore.store import Store

_FETCH_SECONDS = 0.5
_LOOK_SECONDS = 10.0
_REQUEST_SECONDS = 0.5
_STUCK_SECONDS = 10.0  # then an epoch is cut without regard to transactions,
_STUCK_EPOCHS = 4  # or when so much waits, in sizes of an epoch


@dataclass(frozen=True, slots=True)
class KafkaTask:
    """Work on the source ``name`` of a store, until ``stop`` is set."""

    store: Store
    name: str
    settings: KafkaSourceSettings
    progress: CaptureProgress
    stop: threading.Event


class TopicsGrew(TransientError):
    """There are topics or partitions that this session did not begin with, or that begin again; a new one takes them
    in."""


class KafkaSession:
    """``tick`` is called often, from the thread of ``run``; ``decode`` makes rows of records under the ``policies``."""

    def __init__(self, task: KafkaTask, policies: Policies, decode: Decode, tick: Callable[[], None]) -> None:
        self._task = task
        self._policies = policies
        self._decode = decode
        self._tick = tick
        self._group: GroupOffsets | None = None
        self._dead_letters: DeadLetters | None = None
        self.term = 0

    def run(self) -> None:
        """Returns when the task is stopped. Raises TopicsGrew and other TransientErrors, OperatorError, Fenced,
        IntegrityError."""
        task = self._task
        with (
            Cluster(task.settings) as cluster,
            PartitionReader(task.settings, headers=True) as reader,
            self._told_group() as self._group,
            self._kept_dead_letters() as self._dead_letters,
        ):
            found = self._look(cluster)
            self._tick()
            writer = self._take_over()
            builder = self._begin(cluster, writer, found)
            task.progress.add_repeated(0)
            self._tell_group(builder.known)
            task.progress.set_phase(CapturePhase.STREAMING)
            self._read(cluster, reader, writer, builder, found)

    def _told_group(self) -> AbstractContextManager[GroupOffsets | None]:
        task, name = self._task, self._task.settings.offsets_group
        return nullcontext() if name is None else GroupOffsets(task.settings, name, task.progress.report)

    def _kept_dead_letters(self) -> AbstractContextManager[DeadLetters | None]:
        settings = self._task.settings
        return nullcontext() if settings.dead_letter is None else DeadLetters(settings, settings.dead_letter)

    def _tell_group(self, known: Known) -> None:
        if self._group is not None:
            self._group.tell({each: one.next_offset for each, one in known.progress.items()})

    def _look(self, cluster: Cluster) -> Discovery:
        task = self._task
        state = task.store.source(task.name)
        if state is None:
            raise UsageError(f"source {task.name} is not in the log", hint="run `tailrace init` first")
        there = cluster.id()
        if unconfirmed(task.store, state) is not None:
            raise OperatorError(
                f"source {task.name} was taken over from its topics of Kafka",
                hint='give it kind = "postgres" in the configuration, as `tailrace adopt` says; or take that back with'
                f" `tailrace adopt {task.name} --undo`",
            )
        if there != state.system_id:
            raise OperatorError(
                f"source {task.name} was read from cluster {state.system_id}, these brokers are of cluster {there}",
                hint="point its brokers back, or give the source of the new cluster another name",
            )
        return discover(cluster, task.name, task.settings)

    def _take_over(self) -> SourceWriter:
        task = self._task
        state = task.store.source(task.name)
        assert state is not None
        writer = task.store.take_over(task.name, confirmed=0 if state.loaded else None)
        self.term = writer.term
        return writer

    def _begin(self, cluster: Cluster, writer: SourceWriter, found: Discovery) -> EpochBuilder:
        task = self._task
        rows = chained_partitions(task.store, task.name)
        progress = {Partition(each.topic, each.partition): each for each in rows}
        offsets = cluster.offsets(found.partitions)
        known = Known(
            source=task.name,
            position=writer.state.commit_lsn,
            progress={each: progress[each] for each in found.partitions if each in progress},
            routes=found.routes,
            latest=latest_schemas(task.store.catalog, task.name),
            incomplete={info.id for info in task.store.topics(task.name) if info.complete_since is None},
            plain=frozenset(name for name in found.routes if not found.rules.needs_snapshot(name)),
        )
        begins = {each: self._beginning(each, found, offsets[each].earliest) for each in found.partitions}
        Rereading(task.store, writer, found, list(begins.values()), known).run(self._policies, task.progress)
        require_same(found, progress | known.progress, offsets)
        if new := [each for each in found.partitions if each not in known.progress]:
            require_beginning(found, new, known.progress, offsets)
            lsn = known.position + 1
            batch = EpochBatch(task.name, lsn, lsn, lsn, progress=[begins[each] for each in new])
            writer.append(batch)
            known.after(batch)
        return EpochBuilder(
            known,
            self._decode,
            partial(held_rows, task.store),
            lambda topic: _ends(cluster, found, topic),
            parks=task.settings.on_bad_record == "park",
            needs_snapshot=task.settings.without_snapshot == "incomplete",
            keeps=not self._policies.protect_something,
            parked_bytes=task.settings.parked_bytes,
            events=self._event_ids(),
        )

    def _event_ids(self) -> EventIds | None:
        store, outbox = self._task.store, self._task.settings.outbox
        return None if outbox is None else EventIds(outbox.remembered_events, partial(latest_ids, store))

    def _beginning(self, partition: Partition, found: Discovery, earliest: int) -> PartitionProgress:
        """A partition before its first record. One of a plain topic that has the first that ever was is whole."""
        whole = earliest == 0 or self._task.settings.without_snapshot == "complete"
        plain = partition.topic in found.routes and not found.rules.needs_snapshot(partition.topic)
        phase = SnapshotPhase.RUNNING if plain and whole else SnapshotPhase.UNSEEN
        return PartitionProgress(*partition, found.topics[partition.topic].id, earliest, snapshot=phase)

    def _read(
        self,
        cluster: Cluster,
        reader: PartitionReader,
        writer: SourceWriter,
        builder: EpochBuilder,
        found: Discovery,
    ) -> None:
        task, settings = self._task, self._task.settings
        reader.seek({each: progress.next_offset for each, progress in builder.known.progress.items()})
        waiting, looked, asked = Waiting(self._cut(found)), time.monotonic(), 0.0
        while not task.stop.is_set():
            now = time.monotonic()
            linger = settings.linger_ms / 1000
            patience = _FETCH_SECONDS if waiting.since is None else max(0.0, waiting.since + linger - now)
            try:
                for fetched in reader.fetch(min(patience, _FETCH_SECONDS)):
                    waiting.add(fetched, time.monotonic())
                    if waiting.bytes >= settings.epoch_bytes or waiting.rows >= settings.epoch_changes:
                        self._append(cluster, writer, builder, found, waiting)
            except OffsetLost:
                self._say_why(cluster, builder.known)
                raise
            self._tick()
            now = time.monotonic()
            if waiting.since is not None and now >= waiting.since + linger:
                self._append(cluster, writer, builder, found, waiting)
            if now - asked >= _REQUEST_SECONDS:
                asked = now
                answer_parked(
                    task.store, writer, builder, partial(self._read_again, cluster, builder.known, found)
                )
                if is_waiting(task.store, task.name, REREAD):
                    raise TopicsGrew("a topic is to be read again")
            if now - looked >= _LOOK_SECONDS:
                looked = now
                self._look_again(cluster, builder.known)
        if waiting.since is not None:
            self._append(cluster, writer, builder, found, waiting)

    def _cut(self, found: Discovery) -> TransactionCut | None:
        topic = self._task.settings.transaction_topic
        if topic is None:
            return None
        settings = self._task.settings.registry
        registry = SchemaRegistry.of(settings) if settings else None
        return TransactionCut(topic, tables_of(found.routes), partial(schemas_of, registry))

    def _append(
        self,
        cluster: Cluster,
        writer: SourceWriter,
        builder: EpochBuilder,
        found: Discovery,
        waiting: Waiting,
    ) -> None:
        now = time.monotonic()
        stuck = waiting.stuck_since is not None and now - waiting.stuck_since > _STUCK_SECONDS
        large = waiting.bytes > _STUCK_EPOCHS * self._task.settings.epoch_bytes
        parts, broken = waiting.take(now, everything=stuck or large)
        if not parts:
            return
        failpoints.hit("records_fetched")
        batch = builder.build(parts)
        if self._dead_letters is not None:
            self._dead_letters.send(batch.parked)
        failpoints.hit("epoch_decoded")
        _require_same(cluster, builder.known, found, {each.topic for each in parts})
        writer.append(batch)
        builder.known.after(batch)
        self._tell_group(builder.known)
        self._task.progress.add_epochs(
            epochs=1,
            transactions=batch.transactions,
            changes=sum(each.rows.num_rows for each in batch.rows),
            commit_ts=batch.commit_ts,
        )
        self._task.progress.set_position(received=batch.commit_lsn, durable=batch.commit_lsn)
        self._task.progress.add_repeated(builder.known.again)
        if builder.known.again:
            self._task.progress.note(f"{builder.known.again} rows that the log has came again")
            builder.known.again = 0
        if broken:
            self._task.progress.report(
                f"an epoch does not hold whole transactions: of {len(broken)} the ends were missing in "
                f"{self._task.settings.transaction_topic}, or counted more rows than came",
                again=True,
            )
        for record in batch.parked:
            self._task.progress.report(f"parked: {record.place}: {record.reason}")

    def _read_again(
        self, cluster: Cluster, known: Known, found: Discovery, place: RecordPlace
    ) -> pa.Table | None:
        record = read_record(self._task.settings, place)
        _require_same(cluster, known, found, [place.topic])
        return record

    def _say_why(self, cluster: Cluster, known: Known) -> None:
        """Raises OtherRecords where it shows what became of the records that are next."""
        found = discover(cluster, self._task.name, self._task.settings)
        there = {each: one for each, one in known.progress.items() if each in found.partitions}
        require_same(found, known.progress, cluster.offsets(there))

    def _look_again(self, cluster: Cluster, known: Known) -> None:
        found = discover(cluster, self._task.name, self._task.settings)
        require_same(found, known.progress, {})
        ends = cluster.offsets(known.progress)
        behind = [ends[each].last_stable - one.next_offset for each, one in known.progress.items()]
        self._tell_group(known)  # also when nothing comes: a broker forgets a group that nobody commits to
        self._task.progress.set_lag(sum(max(0, each) for each in behind))
        new = [each for each in found.partitions if each not in known.progress]
        if new:
            names = ", ".join(sorted({f"{topic}, partition {number}" for topic, number in new}))
            raise TopicsGrew(f"new in Kafka: {names}")


def _require_same(cluster: Cluster, known: Known, found: Discovery, topics: Collection[str]) -> None:
    """An id never comes back, so what was fetched before this look is of the topics that the log knows."""
    progress = {each: one for each, one in known.progress.items() if each.topic in topics}
    require_same(found.with_topics(cluster.described(topics)), progress, {})


def _ends(cluster: Cluster, found: Discovery, topic: str) -> Mapping[int, int]:
    offsets = cluster.offsets([each for each in found.partitions if each.topic == topic])
    return {each.partition: ends.last_stable for each, ends in offsets.items()}
