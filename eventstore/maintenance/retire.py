"""Retire a topic: nothing more is captured of it, so nobody waits for it.

Its history stays readable. One transaction under the lock of the source's row changes the reason for which the topic is
incomplete; a control epoch records it. A table of its name that is captured later is loaded, and ends that.
"""

from __future__ import annotations

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.log import control_epochs
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.metadata import topics
from tailrace.eventstore.model.info import DROPPED, LEFT, RETIRED, TopicInfo
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment import hash_chain


def retire(log: Log, topic: TopicId) -> int:
    """Retire a topic whose table was dropped or left the publication, beside everything else. The control epoch, 0 when
    it was retired before. Raises UsageError: no such topic, or one that is still captured; OperatorError: no right
    to."""
    if log.topic(topic).is_retired:
        return 0
    with log.catalog.write() as connection:
        source = control_epochs.locked_source(connection, topic.source)
        (info,) = topics.topic_infos(connection, tables.topics.c.name == topic.text)  # none is ever removed
        if info.is_retired:  # somebody was faster
            return 0
        _require_given_up(info)
        log.waker.notify_in(connection)
        content = hash_chain.retirement_hash(topic.text)
        topic_id = topics.topic_ids(connection, [topic])[topic]
        epoch = control_epochs.add_control_epoch(
            connection,
            log.storage,
            source,
            content,
            declare=lambda epoch: topics.suspend(connection, topic_id, epoch, RETIRED),
        )
    log.waker.notify(epoch)
    return epoch


def _require_given_up(topic: TopicInfo) -> None:
    if topic.complete_since is None and topic.reason in (DROPPED, LEFT):
        return
    state = f"it is incomplete: {topic.reason}" if topic.complete_since is None else "it is captured"
    raise UsageError(
        f"{topic.id} cannot be retired: {state}",
        hint="drop its table, or take it out of the publication, and let capture see that",
    )
