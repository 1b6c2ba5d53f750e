"""A store as upkeep would leave it after very many epochs, laid out at once: rows of the catalog, and files of epochs.

Its catalog has the rows that a forecast ends with, and its files of epochs hold every epoch there was, so opening it,
its status and finding a moment in it are what they would be. Files of rows are named and not written: none of these
reads them. Hashes are any. (So such a store can be measured, and neither read nor verified.)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from sqlalchemy import Connection, insert, select, update

from benchmarks.eventstore.flushes import PER_SECOND, lsn_of, register, time_of
from benchmarks.eventstore.forecast import Forecast, Topic
from tailrace.eventstore.catalog import tables, terms
from tailrace.eventstore.maintenance.files import fold
from tailrace.eventstore.maintenance.files.retired import retire
from tailrace.eventstore.maintenance.files.tiers import TierFile
from tailrace.eventstore.metadata import epochs, segment_index
from tailrace.eventstore.model.segment_ref import PartitionRange
from tailrace.eventstore.model.time import to_micros
from tailrace.eventstore.segment.content_hash import Content
from tailrace.eventstore.store import Store

_GROUP = 16_384  # epochs in a row group, as ``fold`` leaves them
_AT_ONCE = 10_000


def lay_out(store: Store, forecast: Forecast) -> None:
    """Into a new store."""
    register(store, forecast.load.topics)
    with store.catalog.read() as connection:
        ids = list(connection.scalars(select(tables.topics.c.id).order_by(tables.topics.c.id)))
    topics = segment_index.topics_text(ids)
    term = terms.begin(store.catalog, terms.FOLD)
    for file in forecast.folded:
        _fold(store, file, forecast, topics, term)
    for first in range(forecast.folded_upto + 1, forecast.epoch + 1, _AT_ONCE):
        last = min(first + _AT_ONCE - 1, forecast.epoch)
        with store.catalog.write() as connection:
            rows = [_epoch(epoch, forecast, topics) for epoch in range(first, last + 1)]
            connection.execute(insert(tables.epochs), rows)
    kinds = [kind for kind, count in forecast.kinds for _ in range(count)]
    with store.catalog.write() as connection:
        for topic_id, kind in zip(ids, kinds, strict=True):
            _topic(connection, topic_id, kind, store.settings.partitions)
        retired = forecast.held().rows["retired"]
        if retired:
            retire(connection, [(_path("gone"), 1) for _ in range(retired)])
        at = lsn_of(forecast.epoch)
        position = {"commit_lsn": at, "end_lsn": at + 1, "through_lsn": at + 1, "loaded": True}
        connection.execute(update(tables.sources).values(position))
        connection.execute(update(tables.log_head).values(epoch=forecast.epoch, hash=os.urandom(32).hex()))


def _fold(store: Store, file: TierFile, forecast: Forecast, topics: str, term: int) -> None:
    first, last = file.first_row + 1, file.end_row
    groups = (
        _group(at, min(at + _GROUP - 1, last), forecast, topics) for at in range(first, last + 1, _GROUP)
    )
    values = fold.write(store, groups, term)
    values |= {"first_epoch": first, "last_epoch": last}
    ends = _group(last, last, forecast, topics)
    values["spans"] = epochs.spans_to_json(epochs.spans_of(ends))
    with store.catalog.write() as connection:
        connection.execute(insert(tables.epoch_files).values(values))


def _group(first: int, last: int, forecast: Forecast, topics: str) -> pa.Table:
    """These epochs in ``timeline.SCHEMA``."""
    epoch = np.arange(first, last + 1)
    count = len(epoch)
    lsn, when = lsn_of(1) * epoch, (to_micros(time_of(0)) or 0) + epoch * (1_000_000 // PER_SECOND)
    hashes = pa.Array.from_buffers(pa.binary(32), count, [None, pa.py_buffer(os.urandom(32 * count))])
    columns = {
        "epoch": epoch, "source": pa.repeat("shop", count), "incarnation": np.ones(count, np.int32),
        "commit_lsn": lsn, "end_lsn": lsn + 1, "first_lsn": lsn, "last_lsn": lsn,
        "commit_ts": when, "first_ts": when, "last_ts": when,
        "transactions": np.ones(count, np.int64), "rows": np.full(count, _rows(forecast)),
        "hash": hashes, "topics": pa.repeat(topics, count),
    }  # fmt: skip
    return pa.Table.from_arrays(
        [pa.array(columns[name]) for name in epochs.SCHEMA.names], schema=epochs.SCHEMA
    )


def _epoch(epoch: int, forecast: Forecast, topics: str) -> dict[str, Any]:
    at, when = lsn_of(epoch), to_micros(time_of(epoch))
    return {
        "epoch": epoch, "append_id": f"{epoch:032x}", "source": "shop", "incarnation": 1, "commit_lsn": at,
        "end_lsn": at + 1, "first_lsn": at, "last_lsn": at, "commit_ts": when, "first_ts": when, "last_ts": when,
        "transactions": 1, "rows": _rows(forecast), "content": os.urandom(32).hex(), "hash": os.urandom(32).hex(),
        "topics": topics, "parts": "[]", "blob_bytes": None,
    }  # fmt: skip


def _rows(forecast: Forecast) -> int:
    return forecast.load.topics * forecast.load.rows_per_epoch


def _topic(connection: Connection, topic_id: int, topic: Topic, partitions: int) -> None:
    files = list(_files(topic_id, topic, partitions))
    if files:
        connection.execute(insert(tables.segments), files)
    runs = [
        {
            "path": _path(str(topic_id)), "topic_id": topic_id, "after_epoch": run.after, "epoch": run.epoch,
            "number": 0, "version": 1, "first_epoch": run.after + 1, "last_epoch": run.epoch,
            "rows": run.refs[0].rows, "bytes": run.bytes, "checksum": os.urandom(8).hex(),
            "ranges": _ranges(0, run.refs[0].rows, partitions),
        }
        for run in topic.runs
    ]  # fmt: skip
    if runs:
        connection.execute(insert(tables.state_runs), runs)


def _files(topic_id: int, topic: Topic, partitions: int) -> Iterator[dict[str, Any]]:
    for file in topic.files:
        first, last = topic.first_epoch(file), topic.last_epoch(file)
        yield {
            "path": _path(str(topic_id)), "topic_id": topic_id, "version": 1, "first_epoch": first,
            "last_epoch": last, "first_lsn": lsn_of(first), "last_lsn": lsn_of(last), "first_row": file.first_row,
            "rows": file.rows, "bytes": file.bytes, "checksum": os.urandom(8).hex(),
            "ranges": _ranges(file.first_row, file.rows, partitions), "sealed": True,
            "content": Content().text, "origin": "",
        }  # fmt: skip


def _ranges(first_row: int, rows: int, partitions: int) -> str:
    """As evenly spread as keys are."""
    share = rows // partitions
    return segment_index.ranges_to_json(
        [PartitionRange(partition, first_row // partitions, share) for partition in range(partitions)]
    )


def _path(folder: str) -> str:
    return f"log/shop/{folder}/merge-t1-{os.urandom(16).hex()}.parquet"
