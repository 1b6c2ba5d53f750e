"""Repartitioning: later rows of a topic are spread over another number of partitions, from one epoch on.

One transaction, under the lock of the source's row, as one of its writer's: a control epoch records it, the
topic gets a new incarnation (``partitioning``) for the rows behind that epoch, and its new partitions begin at offset
0. No row is rewritten: earlier rows keep their partitions and offsets. A writer that has arranged rows over the
former partitions finds other offsets than it left, writes nothing, and arranges them again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from sqlalchemy import Connection, select, update

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.log import control_epochs
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.metadata import topics
from tailrace.eventstore.model.info import TopicInfo
from tailrace.eventstore.model.partitioning import TopicIncarnation
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment import hash_chain
from tailrace.eventstore.settings import PARTITIONS_MAX


@dataclass(frozen=True, slots=True)
class RepartitionResult:
    """``epoch`` is the control epoch that records it, 0 when the topic had as many partitions already. Rows of later
    epochs are in the partitions of ``after``; earlier ones stay in those of ``before`` and of incarnations before
    that."""

    topic: TopicId
    epoch: int
    before: TopicIncarnation
    after: TopicIncarnation


def repartition(log: Log, topic: TopicId, partitions: int) -> RepartitionResult:
    """Safe beside the source's writer, readers, consumers and upkeep. Raises UsageError: no such topic, no such number;
    OperatorError: no right to; Fenced: the store has moved, or is being moved."""
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise UsageError(
            f"{topic} cannot have {partitions:,} partitions", hint=f"1 to {PARTITIONS_MAX:,} partitions"
        )
    before = log.topic(topic).partitioning.current
    if before.count == partitions:
        return RepartitionResult(topic, 0, before, before)
    with log.catalog.write() as connection:
        source = control_epochs.locked_source(connection, topic.source)
        info, topic_id = _current_topic(connection, topic)
        before = info.partitioning.current
        if before.count == partitions:  # somebody was faster
            return RepartitionResult(topic, 0, before, before)
        _add_partitions(connection, topic_id, partitions)
        log.waker.notify_in(connection)
        content = hash_chain.partitioning_hash(topic.text, info.partitioning.total, partitions)
        epoch = control_epochs.add_control_epoch(
            connection,
            log.storage,
            source,
            content,
            declare=lambda epoch: topics.set_partitioning(
                connection, topic_id, info.partitioning.repartition(partitions, epoch)
            ),
        )
        following = info.partitioning.repartition(partitions, epoch)
        failpoints.hit("repartition_written")
    failpoints.hit("repartition_committed")
    log.waker.notify(epoch)
    return RepartitionResult(topic, epoch, before, following.current)


def _current_topic(connection: Connection, topic: TopicId) -> tuple[TopicInfo, int]:
    found = topics.declared_topic(connection, topic)
    assert found is not None  # topics are never removed
    return topics.topic_info(found.row, found.schemas[-1].version), found.row.id


def _add_partitions(connection: Connection, topic_id: int, count: int) -> None:
    """Add offsets of the new partitions: they are empty, and nothing of them is gone."""
    table = tables.topic_offsets
    mine = table.c.topic_id == topic_id
    row = connection.execute(select(table).where(mine).with_for_update()).one()
    zeros = [0] * count
    longer = {
        name: json.dumps([*json.loads(row._mapping[name]), *zeros])
        for name in ("next_offsets", "log_starts", "whole_from")
    }
    connection.execute(update(table).where(mine).values(longer))
