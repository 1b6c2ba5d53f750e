"""Requests of other processes to a Kafka source's capture that it answers while it reads: parked records are tried
again or given up."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.cdc.kafka.decoded import Place
from tailrace.cdc.kafka.epochs.epoch import EpochBuilder
from tailrace.cdc.kafka.parked.parking import record_of
from tailrace.cdc.kafka.repeats.positions import later_keys
from tailrace.eventstore.catalog.requests import Request, RequestState
from tailrace.eventstore.errors import TransientError
from tailrace.eventstore.kafka.reader import Partition
from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.metadata.kafka_progress import parked
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.kafka import ParkedRecord, RecordPlace
from tailrace.eventstore.store import Store

PARKED = "parked"  # option discard: they are given up
REREAD = "reread"
ReadAgain = Callable[[RecordPlace], pa.Table | None]
"""A record as Kafka has it; None when it has it no more."""


def is_waiting(store: Store, source: str, kind: str) -> bool:
    return bool(store.requests.list_open(source, kind))


def answer_parked(store: Store, writer: SourceWriter, builder: EpochBuilder, read_again: ReadAgain) -> None:
    """Try parked records again, or give them up, where that is asked for."""
    source = builder.known.source
    for request in store.requests.list_open(source, PARKED):
        mine = [
            record
            for record in parked(store.catalog, source)
            if builder.known.routes.get(record.place.topic) == request.topic
        ]
        refusals = [_refusal(store, writer, builder, request, record, read_again) for record in mine]
        failed = [reason for reason in refusals if reason]
        state = RequestState.FAILED if failed else RequestState.DONE
        word = "given up" if request.options.get("discard") else "in the log now"
        done = f"{len(mine) - len(failed)} of {len(mine)} records are {word}"
        store.requests.answer([request.id], state, "; ".join([done, *failed[:3]]))


def _refusal(
    store: Store,
    writer: SourceWriter,
    builder: EpochBuilder,
    request: Request,
    record: ParkedRecord,
    read_again: ReadAgain,
) -> str:
    """Append what a record brings; gives why it stays parked, "" when it does not."""
    known, place = builder.known, record.place
    lsn = known.position + 1
    batch = EpochBatch(known.source, lsn, lsn, lsn, unparked=[place])
    if not request.options.get("discard"):
        try:
            records = record_of(record, read_again(place))
        except TransientError as error:
            return f"{place}: {error.message}"
        if records is None:
            return f"{place}: Kafka has it no more; give it up with --discard"
        decoded = builder.decode(request.topic, known.latest.get(request.topic), records, Place(lsn))
        if decoded.parked:
            return f"{place}: {decoded.parked[0].reason}"
        keys = {key for each in decoded.rows for key in each.rows["_hash"].to_pylist()}
        partition = Partition(place.topic, place.partition)
        # Events without a key have no order among them.
        ordered = place.topic not in known.plain or not known.latest[request.topic].bag
        if ordered and later_keys(store, request.topic, partition, place.offset) & keys:
            return f"{place}: a later record of its key is in the log; give it up with --discard"
        rows = [each for each in decoded.rows if _is_new(builder, each)]
        moments = [pc.max(each.rows["_commit_ts"]).as_py() for each in rows]
        batch = EpochBatch(
            known.source,
            lsn,
            lsn,
            lsn,
            max(moments, default=None),
            len(rows),
            rows=rows,
            new_schemas=[(request.topic, schema) for schema in decoded.schemas],
            unparked=[place],
        )
    writer.append(batch)
    known.after(batch)
    return ""


def _is_new(builder: EpochBuilder, rows: TopicRows) -> bool:
    """Of a record that was parked: an event of an outbox may have come again since."""
    if builder.events is None or not rows.topic.is_events:
        return True
    return bool(builder.events.fresh(rows.topic, rows.rows).all())
