"""Texts of columns, one a record, as rows of the log: put together by the code of native capture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.cdc.columnar.relations import TableRoute
from tailrace.cdc.columnar.rows import table_rows
from tailrace.cdc.columnar.scan import ScanResult
from tailrace.cdc.kafka.decoded import ORIGINS, Place
from tailrace.cdc.kafka.decoding.block import Block
from tailrace.cdc.kafka.decoding.records import DELETE, Ops
from tailrace.cdc.kernels import rows as kernels
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.wire.replication import UNIX_EPOCH_MICROS
from tailrace.eventstore.model.epoch import TopicRows
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId


def rows_of_texts(
    topic: TopicId,
    schema: TopicSchema,
    records: pa.Table,
    op: Ops,
    texts: Sequence[pa.Array],
    place: Place,
    policies: Policies,
) -> TopicRows:
    """``texts``: by column of the schema, of all ``records``; of one whose ``op`` is DELETE those of the key count. The
    moment of a row is that of its record."""
    count = len(op)
    block = Block(len(schema.sent))
    first = block.add(count, schema.places, texts, [None] * len(texts))
    data, cells = block.finish()
    deleted = op == DELETE
    rows = kernels.Rows(
        route=np.zeros(count, np.int32),
        op=op.astype(np.uint8),
        known=np.where(deleted, kernels.BEFORE_KEY, kernels.BEFORE_NONE).astype(np.uint8),
        stamp=(np.arange(count) << kernels.STAMP_SHIFT) + place.first_ordinal + np.arange(count),
        first=first,
        old=np.where(deleted, first, -1).astype(np.int32),
    )
    millis = pc.fill_null(records["timestamp"].combine_chunks().cast(pa.int64()), 0)
    micros = pc.multiply(millis, 1000).to_numpy(zero_copy_only=False) - UNIX_EPOCH_MICROS
    zeros = np.zeros(count, np.int64)
    scan = ScanResult(data, rows, cells, np.column_stack([zeros + place.lsn, zeros, micros]))
    return table_rows(scan, np.arange(count), TableRoute(topic, schema), policies, unsent=False)


def origins_of(records: pa.Table) -> pa.Table:
    """Of records that say nothing of a place in Postgres."""
    columns = {field.name: pa.nulls(records.num_rows, field.type) for field in ORIGINS}
    return pa.table({**columns, "offset": records["offset"].combine_chunks()}, schema=ORIGINS)
