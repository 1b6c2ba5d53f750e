"""Take an adoption back: the source reads its topics of Kafka on from where it was.

The connector sends again what native capture brought in meanwhile. The slot, which is where the connector left it,
tells once more which rows those were, with their LSNs; so each is known when it comes (``cdc.kafka.repeats.taken``).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from tailrace.cdc.adoption.ending import adopted_slot, require_unconfirmed
from tailrace.cdc.adoption.window import Reading, Slot
from tailrace.cdc.columnar.decode import BlockDecoder
from tailrace.cdc.kafka.repeats.taken import taken_row, taken_topic
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.postgres.connect import Address
from tailrace.cdc.postgres.message_secrets import secrets_reader
from tailrace.cdc.postgres.slot import require_idle
from tailrace.cdc.setup import adopted
from tailrace.cdc.setup.adopted import Adoption
from tailrace.cdc.stream.own_messages import OwnMessages
from tailrace.cdc.topics import Topics
from tailrace.cdc.wire.pgoutput import Relation
from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog.leases import work_lease
from tailrace.eventstore.compiled.compiler import load_compiler
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.log.sources import chained_partitions
from tailrace.eventstore.model.epoch import EpochBatch, Incarnation, TopicRows
from tailrace.eventstore.model.info import SourceState
from tailrace.eventstore.model.position import format_lsn
from tailrace.eventstore.model.schema import MESSAGE_SCHEMA, TopicSchema
from tailrace.eventstore.store import Store


def undo(store: Store, source: str, address: Address) -> Adoption:
    """Raises UsageError, SlotActive beside a capture, OperatorError when the connector was started already."""
    load_compiler()
    state, adoption = require_unconfirmed(store, source)
    slot = adopted_slot(state, address)
    require_idle(slot, address)
    if slot.confirmed_flush > adoption.lsn:
        raise OperatorError(
            f"slot {slot.name} was confirmed up to {format_lsn(slot.confirmed_flush)} since it was taken over at "
            f"{format_lsn(adoption.lsn)}: the connector was started before, and what native capture brought in "
            "cannot be told any more",
            hint=f"go on natively: stop the connector, then `tailrace source repair {source}`",
        )
    with work_lease(store.catalog, {f"kafka:{source}": f"source {source} is given back"}, "adopt"):
        writer = store.take_over(source)
        batch = _batch(store, writer.state, adoption, Slot(address, adoption.slot, adoption.publication))
        failpoints.hit("adoption_read")
        writer.append(batch)
        writer.set_slot("", "")
    adopted.end(store, adoption, confirmed=False)
    return adoption


def _batch(store: Store, state: SourceState, adoption: Adoption, slot: Slot) -> EpochBatch:
    position = adoption.position + 1
    rows = _rows(store, state, slot, position)
    last = state.commit_lsn
    new = (
        []
        if not rows or taken_topic(state.name) in {info.id for info in store.topics(state.name)}
        else rows[:1]
    )
    return EpochBatch(
        state.name,
        position,
        position,
        position,
        rows=rows,
        new_schemas=[(each.topic, MESSAGE_SCHEMA) for each in new],
        # All that commits up to the last commit in the log came before, whatever partition it comes from.
        progress=[
            replace(each, commit_lsn=max(last, each.commit_lsn), row_lsn=max(last, each.row_lsn))
            for each in chained_partitions(store, state.name)
        ],
        incarnation=Incarnation(state.incarnation + 1, adoption.cluster, 0),
    )


def _rows(store: Store, state: SourceState, slot: Slot, position: int) -> list[TopicRows]:
    """Which rows the slot sends up to the last commit in the log."""
    topics = Topics.read(store, state.name)
    schemas = {relid: found for relid, found in topics.schemas.items() if relid}

    def describe(relation: Relation) -> TopicSchema | None:
        known = schemas.get(relation.relid)
        return known[1] if known else None

    decoder = BlockDecoder(state.name, topics.latest, describe, Policies(), known=topics.others)
    own = OwnMessages(secrets_reader(slot.address), lambda content: False)
    reading = Reading(decoder, own, {relid: topic for relid, (topic, _) in schemas.items()})
    rows: list[TopicRows] = []
    upto = max(state.end_lsn, state.commit_lsn)
    for part in reading.parts(slot.messages(upto), state.commit_lsn + 1):
        for topic, identities in part.identities.items():
            if identities:
                rows.append(taken_row(topic, identities, position, len(rows), datetime.now(UTC)))
    return rows
