"""Folding: rows of old epochs move from the catalog's table to files, which are merged by size tier like segments.

The newest ``keep_epochs`` stay, and with them every epoch that is not sealed: the files hold a prefix of the epochs
without a gap. An epoch's row has two hashes, its own and its content's; its row in a file has only the first. So the
chain is checked once more before rows leave. One transaction takes ``CHUNK`` rows out and names their file; it is
small, since a capture waits behind it. Merging epoch files is like merging segments (``merge``): write, swap, retire.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import Row, delete, func, insert, select

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import tables, terms
from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.maintenance.files import tiers
from tailrace.eventstore.maintenance.files.retired import retire
from tailrace.eventstore.metadata import topics
from tailrace.eventstore.metadata.epochs import (
    SCHEMA,
    EpochFilter,
    Timeline,
    joined_spans,
    open_file,
    spans_from_json,
    spans_of,
    spans_to_json,
    table_of,
)
from tailrace.eventstore.segment import encoding, file_reader, hash_chain

CHUNK = 8192
_ROWS_PER_GROUP = 16_384  # what a look-up decodes
_NEAR = ["epoch", "commit_lsn", "end_lsn", "first_lsn", "last_lsn", "commit_ts", "first_ts", "last_ts"]

_Row = Row[*tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class FoldResult:
    """What became one file: rows of the table, or files."""

    rows: int = 0
    files: int = 0
    bytes: int = 0


def fold(log: Log, keep_epochs: int) -> Iterator[FoldResult]:
    """Fold until fewer than ``CHUNK`` rows are left to it, and merge; one file per step. Raises Fenced when another
    fold began."""
    term: int | None = None
    while (chunk := _chunk(log, keep_epochs)) is not None:
        term = terms.begin(log.catalog, terms.FOLD) if term is None else term
        yield _fold_one(log, *chunk, term)
    while groups := _groups(log):
        term = terms.begin(log.catalog, terms.FOLD) if term is None else term
        for group in groups:
            yield _merge_one(log, group, term)


def _chunk(log: Log, keep_epochs: int) -> tuple[int, int] | None:
    """The oldest epochs that may go, first and last, when they are enough."""
    table = tables.epochs
    with log.catalog.read() as connection:
        head = topics.head_epoch(connection)
        unsealed = topics.oldest_unsealed(connection)
        first = connection.scalar(select(func.min(table.c.epoch)))
    last = head - keep_epochs if unsealed is None else min(head - keep_epochs, unsealed - 1)
    if first is None or last - first + 1 < CHUNK:
        return None
    return first, first + CHUNK - 1


def _fold_one(log: Log, first: int, last: int, term: int) -> FoldResult:
    with log.catalog.read() as connection:
        rows = Timeline(connection, log.storage).page(EpochFilter(after=first - 1, upto=last), CHUNK)
    if [row.epoch for row in rows] != list(range(first, last + 1)):
        raise IntegrityError(
            f"epochs {first} to {last} are not all in the catalog",
            hint="the catalog was changed from outside; restore it from a backup",
        )
    _require_chain(log, first, last)
    table = table_of(rows)
    values = write(log, [table], term)
    failpoints.hit("fold_written")
    values |= {"first_epoch": first, "last_epoch": last}
    values["spans"] = spans_to_json(spans_of(table))
    epochs = tables.epochs
    with log.catalog.write() as connection:
        terms.check(connection, terms.FOLD, term)
        sealed = epochs.c.blob_bytes.is_(None)
        gone = connection.execute(delete(epochs).where(epochs.c.epoch.between(first, last), sealed))
        if gone.rowcount != len(rows):
            raise IntegrityError(
                f"epochs {first} to {last} changed while they were folded; nothing was changed",
                hint="fold again",
            )
        connection.execute(insert(tables.epoch_files).values(values))
    failpoints.hit("fold_swapped")
    return FoldResult(rows=len(rows), bytes=values["bytes"])


def _require_chain(log: Log, first: int, last: int) -> None:
    """Each hash must follow from the one before it."""
    table = tables.epochs
    with log.catalog.read() as connection:
        previous = Timeline(connection, log.storage).last(EpochFilter(upto=first - 1)) if first > 1 else None
        digest = "" if previous is None else previous.hash
        rows = connection.execute(
            select(table).where(table.c.epoch.between(first, last)).order_by(table.c.epoch)
        )
        for row in rows:
            if hash_chain.epoch_hash(digest, row._asdict()) != row.hash:
                raise IntegrityError(
                    f"the hash of epoch {row.epoch} does not match its catalog row",
                    hint="the catalog was changed from outside; `tailrace log verify` says what else is wrong",
                )
            digest = row.hash


def _groups(log: Log) -> list[list[_Row]]:
    table = tables.epoch_files
    with log.catalog.read() as connection:
        rows = {row.path: row for row in connection.execute(select(table).order_by(table.c.first_epoch))}
    files = [
        tiers.TierFile(row.path, 1, row.first_epoch, row.last_epoch - row.first_epoch + 1, row.bytes)
        for row in rows.values()
    ]
    return [[rows[file.path] for file in group] for group in tiers.plan(files)]


def _merge_one(log: Log, group: Sequence[_Row], term: int) -> FoldResult:
    values = write(log, _groups_of(log, group), term)
    failpoints.hit("fold_written")
    spans = [span for row in group for span in spans_from_json(row.spans)]
    values |= {"first_epoch": group[0].first_epoch, "last_epoch": group[-1].last_epoch}
    values["spans"] = spans_to_json(joined_spans(spans))
    table = tables.epoch_files
    with log.catalog.write() as connection:
        terms.check(connection, terms.FOLD, term)
        gone = connection.execute(delete(table).where(table.c.path.in_([row.path for row in group])))
        if gone.rowcount != len(group):
            raise IntegrityError("files of epochs changed while they were merged; nothing was changed")
        connection.execute(insert(table).values(values))
        retire(connection, [(row.path, row.bytes) for row in group])
    failpoints.hit("fold_swapped")
    return FoldResult(files=len(group), bytes=values["bytes"])


def _groups_of(log: Log, group: Sequence[_Row]) -> Iterator[pa.Table]:
    """Row groups of files, small ones put together."""
    pending: list[pa.Table] = []
    for row in group:
        with open_file(log.storage, row) as file:
            for at in range(file.num_row_groups):
                pending.append(file.read_row_group(at))
                if sum(table.num_rows for table in pending) >= _ROWS_PER_GROUP:
                    yield pa.concat_tables(pending)
                    pending = []
    if pending:
        yield pa.concat_tables(pending)


def write(log: Log, groups: Iterator[pa.Table] | Sequence[pa.Table], term: int) -> dict[str, Any]:
    """A durable file of these row groups: path, bytes and checksum. At most ``tiers.MAX_BYTES`` are held."""
    out = io.BytesIO()
    with pq.ParquetWriter(
        out,
        SCHEMA,
        compression="zstd",
        use_dictionary=["source", "topics", "incarnation", "transactions", "rows"],
        column_encoding=dict.fromkeys(_NEAR, "DELTA_BINARY_PACKED"),
    ) as writer:
        encoding.mark(writer)
        for table in groups:
            writer.write_table(table, row_group_size=max(1, table.num_rows))
    data = out.getbuffer()
    path = terms.new_parquet("epochs", terms.FOLD, term)
    log.storage.write(path, pa.py_buffer(data))
    failpoints.hit("segment_written")
    return {"path": path, "bytes": len(data), "checksum": file_reader.checksum(data)}
