"""Rows of a source that native capture brought in while it had taken the source over: the connector sends them again.

They stand in a topic of their own, by topic and by portion: transaction, LSN, operation and hash of the key of each, as
64-bit numbers in a row. What the log has of them has no LSN of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import numpy as np
import pyarrow as pa

from tailrace.cdc.kafka.repeats.duplicates import RowIdentity
from tailrace.eventstore.model.epoch import TopicRows
from tailrace.eventstore.model.keys import hash_texts
from tailrace.eventstore.model.schema import MESSAGE_SCHEMA, change_schema
from tailrace.eventstore.model.topic import Op, TopicId
from tailrace.eventstore.store import Store

_OPERATIONS = [each.value for each in Op]
_NUMBERS = 4


def taken_topic(source: str) -> TopicId:
    """No table can have this name: ``pg_`` is reserved."""
    return TopicId((source, "pg_kafka", "taken"))


def taken_row(
    topic: TopicId, rows: Sequence[RowIdentity], lsn: int, ordinal: int, moment: datetime
) -> TopicRows:
    """For rows of a topic, in an epoch at ``lsn``."""
    numbers = [(xid, row, _OPERATIONS.index(operation), key) for xid, row, operation, key in rows]
    row = {
        "_hash": hash_texts([topic.text]),
        "_op": Op.MESSAGE.value,
        "_lsn": lsn,
        "_txn": 0,
        "_ordinal": ordinal,
        "_commit_ts": moment,
        "key": {"prefix": topic.text},
        "after": {"prefix": topic.text, "content": np.array(numbers, "<i8").tobytes()},
        "_before": "none",
    }
    table = pa.Table.from_pylist([row], schema=change_schema(MESSAGE_SCHEMA))
    return TopicRows(taken_topic(topic.source), MESSAGE_SCHEMA.version, table)


def taken_rows(store: Store, topic: TopicId) -> set[RowIdentity]:
    """The rows of a topic that native capture had taken when it was taken back."""
    kept = taken_topic(topic.source)
    found: set[RowIdentity] = set()
    if kept not in {info.id for info in store.topics(topic.source)}:
        return found
    for batch in store.read(kept, columns=["after"]):
        for row in batch.to_pylist():
            if row["after"]["prefix"] == topic.text:
                numbers = np.frombuffer(row["after"]["content"], "<i8").reshape(-1, _NUMBERS)
                found |= {(xid, lsn, _OPERATIONS[op], key) for xid, lsn, op, key in numbers.tolist()}
    return found
