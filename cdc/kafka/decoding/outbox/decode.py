"""Records of a topic of the router as rows of domain events, as the events table of Postgres gives them. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tailrace.cdc.kafka.decoded import Decoded, Parked, Place
from tailrace.cdc.kafka.decoding.outbox.events import Event, NoEvent, OutboxDeclaration, event_of
from tailrace.cdc.kafka.decoding.records import CREATE
from tailrace.cdc.kafka.decoding.rows import origins_of, rows_of_texts
from tailrace.cdc.policy.policies import Policies
from tailrace.eventstore.model.epoch import TopicRows
from tailrace.eventstore.model.postgres_text import postgres_texts
from tailrace.eventstore.model.schema import EVENT_SCHEMA, TopicSchema
from tailrace.eventstore.model.topic import TopicId


def decode_outbox(
    records: pa.Table, topic: TopicId, declared: OutboxDeclaration, latest: TopicSchema | None, place: Place
) -> Decoded:
    """``records``: of one partition, as ``tailrace.eventstore.kafka.records`` has them, in offset order."""
    events: list[Event] = []
    at: list[int] = []
    parked: list[Parked] = []
    columns = (records[name].to_pylist() for name in ("offset", "key", "value", "headers"))
    for row, (offset, key, value, pairs) in enumerate(zip(*columns, strict=True)):
        headers = {pair["name"].decode(errors="replace"): pair["value"] for pair in pairs}
        try:
            events.append(event_of(declared, topic.parts[-1], key, value, headers, offset))
            at.append(row)
        except NoEvent as error:
            parked.append(Parked(offset, str(error)))
    kept = records.take(pa.array(at, pa.int64()))
    rows = list[TopicRows]()
    if events:
        texts = _texts(events, kept)
        op = np.full(len(events), CREATE, np.int64)
        rows = [rows_of_texts(topic, EVENT_SCHEMA, kept, op, texts, place, Policies())]
    return Decoded(
        rows=tuple(rows),
        schemas=(EVENT_SCHEMA,) if rows and latest is None else (),
        origins=origins_of(kept),
        parked=tuple(parked),
        ignored=0,
    )


def _texts(events: list[Event], records: pa.Table) -> list[pa.Array]:
    """By column of EVENT_SCHEMA. An event was recorded at the moment of its record, which the router takes from the
    outbox table where it is told to."""
    lists = [
        [event.stream for event in events],
        [str(event.version) for event in events],
        [event.type for event in events],
        [str(event.schema_version) for event in events],
        [event.data for event in events],
        [event.metadata for event in events],
        [str(event.id) for event in events],
    ]
    moments = records["timestamp"].combine_chunks().cast(pa.timestamp("us", "UTC"), safe=False)
    return [*(pa.array(each, pa.string()) for each in lists), postgres_texts(moments)]
