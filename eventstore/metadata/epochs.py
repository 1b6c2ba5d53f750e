"""All epochs in order: the newest in the catalog's table, older ones folded into files. Both answer the same questions.

A file holds a run of epochs without gaps, so the row of an epoch follows from its number. What a file can hold at all
(its *spans*: per source and incarnation the largest LSN and times) is in the catalog, so that a look-up opens one
file, and of that only the row groups it needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from sqlalchemy import ColumnElement, Connection, Row, or_, select

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import damaged_row
from tailrace.eventstore.segment import encoding, file_reader
from tailrace.eventstore.storage import Storage

SCHEMA = pa.schema(
    [
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("incarnation", pa.int32(), nullable=False),
        pa.field("commit_lsn", pa.int64(), nullable=False),
        pa.field("end_lsn", pa.int64(), nullable=False),
        pa.field("first_lsn", pa.int64()),
        pa.field("last_lsn", pa.int64()),
        pa.field("commit_ts", pa.int64()),
        pa.field("first_ts", pa.int64()),
        pa.field("last_ts", pa.int64()),
        pa.field("transactions", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("hash", pa.binary(32), nullable=False),  # the catalog's hexadecimal text
        pa.field("topics", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Epoch:
    """One row of ``epochs``, wherever it is kept now. Times are µs since 1970."""

    epoch: int
    source: str
    incarnation: int
    commit_lsn: int
    end_lsn: int
    first_lsn: int | None
    last_lsn: int | None
    commit_ts: int | None
    first_ts: int | None
    last_ts: int | None
    transactions: int
    rows: int
    hash: str
    topics: str


_COLUMNS = [tables.epochs.c[field.name] for field in fields(Epoch)]


@dataclass(frozen=True, slots=True)
class EpochFilter:
    """Conditions that an epoch must meet, all at once. One that is None (or False) is no condition."""

    source: str | None = None
    incarnation: int | None = None
    later_incarnation_than: int | None = None
    reaches_lsn: int | None = None  # has rows at or above it
    later_than: int | None = None  # has a commit later than it, µs
    after: int = 0
    upto: int | None = None
    dated: bool = False  # has a commit time
    topics: frozenset[int] | None = None  # has rows of one of them

    def sql(self) -> list[ColumnElement[bool]]:
        table = tables.epochs.c
        conditions = [table.epoch > self.after]
        if self.upto is not None:
            conditions.append(table.epoch <= self.upto)
        if self.source is not None:
            conditions.append(table.source == self.source)
        if self.incarnation is not None:
            conditions.append(table.incarnation == self.incarnation)
        if self.later_incarnation_than is not None:
            conditions.append(table.incarnation > self.later_incarnation_than)
        if self.reaches_lsn is not None:
            conditions.append(table.last_lsn >= self.reaches_lsn)
        if self.later_than is not None:
            conditions.append(table.last_ts > self.later_than)
        if self.dated:
            conditions.append(table.commit_ts.is_not(None))
        if self.topics is not None:
            conditions.append(or_(*(table.topics.like(f"%,{topic},%") for topic in sorted(self.topics))))
        return conditions

    def mask(self, rows: pa.Table) -> pa.ChunkedArray:
        """The same of a file's rows."""
        found = pc.greater(rows["epoch"], self.after)
        more: list[pa.ChunkedArray] = []
        if self.upto is not None:
            more.append(pc.less_equal(rows["epoch"], self.upto))
        if self.source is not None:
            more.append(pc.equal(rows["source"], self.source))
        if self.incarnation is not None:
            more.append(pc.equal(rows["incarnation"], self.incarnation))
        if self.later_incarnation_than is not None:
            more.append(pc.greater(rows["incarnation"], self.later_incarnation_than))
        if self.reaches_lsn is not None:
            more.append(pc.greater_equal(rows["last_lsn"], self.reaches_lsn))
        if self.later_than is not None:
            more.append(pc.greater(rows["last_ts"], self.later_than))
        if self.dated:
            more.append(pc.is_valid(rows["commit_ts"]))
        if self.topics is not None:
            texts = "|".join(str(topic) for topic in sorted(self.topics))
            more.append(pc.match_substring_regex(rows["topics"], f",({texts}),"))
        for each in more:
            found = pc.and_(found, each)
        return pc.fill_null(found, False)

    def columns(self) -> list[str]:
        """What ``mask`` looks at."""
        compared = {
            "source": self.source is not None,
            "incarnation": self.incarnation is not None or self.later_incarnation_than is not None,
            "last_lsn": self.reaches_lsn is not None,
            "last_ts": self.later_than is not None,
            "commit_ts": self.dated,
            "topics": self.topics is not None,
        }
        return ["epoch", *(name for name, needed in compared.items() if needed)]

    def may_be_in(self, span: Span) -> bool:
        return (
            (self.source is None or span.source == self.source)
            and (self.incarnation is None or span.incarnation == self.incarnation)
            and (self.later_incarnation_than is None or span.incarnation > self.later_incarnation_than)
            and (
                self.reaches_lsn is None or (span.last_lsn is not None and span.last_lsn >= self.reaches_lsn)
            )
            and (self.later_than is None or (span.last_ts is not None and span.last_ts > self.later_than))
            and (not self.dated or span.dated)
        )


@dataclass(frozen=True, slots=True)
class Span:
    """What a file holds of one source's incarnation: the largest LSN and time, and whether any epoch has one."""

    source: str
    incarnation: int
    last_lsn: int | None
    last_ts: int | None
    dated: bool


def spans_of(rows: pa.Table) -> list[Span]:
    grouped = rows.group_by(["source", "incarnation"]).aggregate(
        [("last_lsn", "max"), ("last_ts", "max"), ("commit_ts", "count")]
    )
    return [
        Span(
            row["source"],
            row["incarnation"],
            row["last_lsn_max"],
            row["last_ts_max"],
            row["commit_ts_count"] > 0,
        )
        for row in grouped.sort_by([("source", "ascending"), ("incarnation", "ascending")]).to_pylist()
    ]


def joined_spans(spans: Sequence[Span]) -> list[Span]:
    joined: dict[tuple[str, int], Span] = {}
    for span in spans:
        key = (span.source, span.incarnation)
        so_far = joined.get(key, span)
        lsns = [lsn for lsn in (so_far.last_lsn, span.last_lsn) if lsn is not None]
        times = [ts for ts in (so_far.last_ts, span.last_ts) if ts is not None]
        joined[key] = Span(
            *key, max(lsns, default=None), max(times, default=None), so_far.dated or span.dated
        )
    return list(joined.values())


def spans_to_json(spans: Sequence[Span]) -> str:
    return json.dumps([list(asdict(span).values()) for span in spans], separators=(",", ":"))


def spans_from_json(text: str) -> list[Span]:
    return [Span(*values) for values in json.loads(text)]


def _spans_in(row: Row[*tuple[Any, ...]]) -> list[Span]:
    try:
        return spans_from_json(row.spans)
    except (ValueError, TypeError):
        raise damaged_row(f"epoch_files: path {row.path}", "its spans cannot be read") from None


@dataclass(frozen=True, slots=True)
class Timeline:
    """The epochs that one snapshot of the catalog shows. Raises MissingFile when a file was merged away since, and
    IntegrityError for a damaged one."""

    connection: Connection
    storage: Storage

    def first(self, which: EpochFilter) -> Epoch | None:
        """The earliest epoch that passes the filter."""
        return next(iter(self.page(which, 1)), None)

    def last(self, which: EpochFilter) -> Epoch | None:
        """The latest epoch that passes the filter."""
        query = select(*_COLUMNS).where(*which.sql()).order_by(tables.epochs.c.epoch.desc()).limit(1)
        row = self.connection.execute(query).one_or_none()
        if row is not None:
            return Epoch(*row)
        for file in reversed(self._files(which)):
            for found in self._epochs_in_file(file, which, backwards=True):
                return found[-1]
        return None

    def page(self, which: EpochFilter, limit: int) -> list[Epoch]:
        """The first ``limit`` epochs that pass the filter, in order."""
        epochs: list[Epoch] = []
        for file in self._files(which):
            for some in self._epochs_in_file(file, which, limit - len(epochs)):
                epochs += some[: limit - len(epochs)]
                if len(epochs) >= limit:
                    return epochs
        query = select(*_COLUMNS).where(*which.sql()).order_by(tables.epochs.c.epoch)
        return epochs + [Epoch(*row) for row in self.connection.execute(query.limit(limit - len(epochs)))]

    def _files(self, which: EpochFilter) -> list[Row[*tuple[Any, ...]]]:
        table = tables.epoch_files
        query = select(table).where(table.c.last_epoch > which.after).order_by(table.c.first_epoch)
        if which.upto is not None:
            query = query.where(table.c.first_epoch <= which.upto)
        return [
            row
            for row in self.connection.execute(query)
            if any(which.may_be_in(span) for span in _spans_in(row))
        ]

    def _epochs_in_file(
        self,
        row: Row[*tuple[Any, ...]],
        which: EpochFilter,
        limit: int | None = None,
        *,
        backwards: bool = False,
    ) -> Iterator[list[Epoch]]:
        """Matching epochs of a file, row group by row group; of each the first ``limit``."""
        with open_file(self.storage, row) as file, open_file(self.storage, row, whole=True) as whole:
            lengths = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
            bounds = (np.cumsum([0, *lengths]) + row.first_epoch).tolist()
            groups = range(file.num_row_groups)
            for group in reversed(groups) if backwards else groups:
                below_upto = which.upto is None or bounds[group] <= which.upto
                if bounds[group + 1] - 1 <= which.after or not below_upto:
                    continue
                looked_at = file.read_row_group(group, columns=which.columns())
                matching = np.flatnonzero(which.mask(looked_at).to_numpy())
                if len(matching):
                    chosen = matching[-1:] if backwards else matching[:limit]
                    yield rows_of(whole.read_row_group(group).take(pa.array(chosen)))


def open_file(storage: Storage, row: Row[*tuple[Any, ...]], *, whole: bool = False) -> pq.ParquetFile:
    """A file of ``epoch_files``, checked. ``whole``: for taking a few whole rows; texts, which repeat, stay as they
    are stored."""
    data = storage.open(row.path)
    if not whole and file_reader.checksum(data) != row.checksum:
        raise file_reader.damage_error(storage.place(row.path))
    file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=["source", "topics"] if whole else None)
    encoding.require_known(file.metadata, storage.place(row.path))
    return file


def rows_of(table: pa.Table) -> list[Epoch]:
    return [Epoch(**{**row, "hash": row["hash"].hex()}) for row in table.to_pylist()]


def table_of(epochs: Sequence[Epoch]) -> pa.Table:
    """Rows as a file holds them."""
    columns = {
        field.name: [getattr(epoch, field.name) for epoch in epochs]
        for field in SCHEMA
        if field.name != "hash"
    }
    columns["hash"] = [bytes.fromhex(epoch.hash) for epoch in epochs]
    return pa.Table.from_pydict(columns, schema=SCHEMA)
