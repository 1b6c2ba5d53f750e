"""The truncate in front of rows that are read again: what was known of a topic before no longer counts. Pure."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa

from tailrace.eventstore.model.model import Op
from tailrace.eventstore.model.schema import TopicSchema, change_schema


def truncate(schema: TopicSchema, lsn: int, commit_ts: int | datetime) -> pa.Table:
    """One row in the topic's change schema, as the first of its transaction. ``commit_ts``: µs since 1970, or aware."""
    target = change_schema(schema)
    row = dict.fromkeys(target.names) | {
        "_hash": 0,
        "_op": Op.TRUNCATE.value,
        "_lsn": lsn,
        "_txn": 0,
        "_ordinal": 0,
        "_commit_ts": commit_ts,
        "_before": "none",
    }
    return pa.Table.from_pylist([row], schema=target)
