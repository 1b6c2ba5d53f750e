"""The state of a topic at a cut: the newest row of every living key, by buckets.

``plan_state`` asks the catalog once and gives a picklable ``StateInput``; ``compute_states`` needs only that and the
segments folder, so Spark tasks call it without a catalog. ``state`` is both, for callers without Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import UnknownCell, UnreadableCell, UsageError
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.model import keys
from tailrace.eventstore.model.partitioning import Partitioning
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.postgres_text import postgres_texts
from tailrace.eventstore.model.schema import Column, TopicSchema, unify
from tailrace.eventstore.model.segment_ref import SegmentRef
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment.segment import read_segment
from tailrace.eventstore.state.assembly import ERASED, STATE_FIELDS
from tailrace.eventstore.state.bucket_passes import Buckets, ReadPartition, passes
from tailrace.eventstore.state.moved_cells import MovedCells
from tailrace.eventstore.state.row_layout import SILENT, Layout, Rows, conform
from tailrace.eventstore.storage import LocalStorage, Storage

# What a reader does with cells that the typed column cannot hold: raise, read them as NULL, or read the whole column
# as Postgres' text.
OnUnreadable = Literal["error", "null", "text"]

# A task's share of memory. The kernel folds as it reads, so this bounds the state of a bucket from above.
BUCKET_BYTES = 256 << 20
# Stored bytes (zstd, level 1) of change rows decode to about this many times as much (measured: 2.4 on orders).
_DECODED = 2.5
_MOST_SPLITS = 256


@dataclass(frozen=True, slots=True)
class StateInput:
    """All that is needed to compute the state of a topic at a cut. Pickles small, apart from inline segments."""

    topic: TopicId
    target: TopicSchema
    versions: Mapping[int, TopicSchema]
    partitioning: Partitioning  # the incarnations of which there are rows
    split: int
    refs: tuple[SegmentRef, ...]
    columns: tuple[str, ...]
    on_unreadable: Mapping[str, OnUnreadable]

    @property
    def partitions(self) -> int:
        """How many partitions the buckets are cut of: those of the last incarnation with rows."""
        return self.partitioning.current.count

    @property
    def spread(self) -> Buckets:
        return Buckets(self.partitions, self.split)

    @property
    def buckets(self) -> int:
        """Buckets are numbered 0 ≤ b < buckets; b // split is the partition, counted from the first one of its
        incarnation (``keys.bucket_of``)."""
        return self.spread.count

    def of(self, refs: Iterable[SegmentRef]) -> StateInput:
        """Of these rows only."""
        chosen = tuple(refs)
        return replace(self, refs=chosen, partitioning=self.partitioning.holding(_partitions(chosen)))

    @property
    def layout(self) -> Layout:
        return Layout.of(self.target, self.columns)

    @property
    def schema(self) -> pa.Schema:
        """Of what ``readable_state`` gives: position columns, which cells were erased, then the chosen columns in the
        topic's order."""
        return pa.schema([*STATE_FIELDS, ERASED, *(self._field(column) for column in self.chosen)])

    @property
    def chosen(self) -> tuple[Column, ...]:
        return tuple(column for column in self.target.columns if column.name in self.columns)

    def _field(self, column: Column) -> pa.Field:
        as_text = self.on_unreadable.get(column.name, "error") == "text"
        return column.field.with_type(pa.string()) if as_text else column.field

    def rows(self) -> int:
        """Changes that will be read: what progress is measured against."""
        return sum(ref.rows for ref in self.refs)


def plan_state(
    log: Log,
    topic: TopicId,
    cut: Cut,
    *,
    columns: Sequence[str] | None = None,
    on_unreadable: OnUnreadable | Mapping[str, OnUnreadable] = "error",
    split: int | None = None,
    incomplete: bool = False,
    every_row: bool = False,
) -> StateInput:
    """What to read for the state of ``topic`` at ``cut``.

    ``columns`` defaults to all; ``on_unreadable`` is one policy or one per column. ``split`` (a power of two)
    defaults to the smallest that keeps a bucket's decoded changes within ``BUCKET_BYTES``; ``incomplete`` plans a state
    that is not known as far as it is; ``every_row`` one that goes by no state run but that at the topic's start. Raises
    UsageError for an unknown column or policy, IncompleteTopic when the topic's state is not known at the cut,
    HistoryGone when retention removed what it was made of.
    """
    info = log.topic(topic)
    if not incomplete:
        log.require_complete(topic, cut)
    refs = tuple(log.state_segments(topic, cut, every_row=every_row))
    versions = {schema.version: schema for schema in log.schemas(topic)}
    partitioning = info.partitioning.holding(_partitions(refs))
    target = unify([*(versions[ref.version] for ref in refs), *log.schemas_at(topic, cut)])
    names = tuple(column.name for column in target.columns) if columns is None else tuple(columns)
    _check_names(topic, target, names)
    policies = dict.fromkeys(names, on_unreadable) if isinstance(on_unreadable, str) else on_unreadable
    _check_names(topic, target, policies)
    _check_policies(policies)
    return StateInput(
        topic=topic,
        target=target,
        versions=versions,
        partitioning=partitioning,
        split=split or _split(refs, partitioning.current.count),
        refs=refs,
        columns=names,
        on_unreadable=dict(policies),
    )


def _check_names(
    topic: TopicId, target: TopicSchema, names: Sequence[str] | Mapping[str, OnUnreadable]
) -> None:
    held = {column.name for column in target.columns}
    missing = [name for name in names if name not in held]
    if missing:
        raise UsageError(
            f"{topic} has no column {', '.join(map(repr, missing))}",
            hint=f"its columns are {', '.join(sorted(held))}",
        )


def _check_policies(policies: Mapping[str, str]) -> None:
    allowed = get_args(OnUnreadable)
    for name, policy in policies.items():
        if policy not in allowed:
            raise UsageError(
                f"{policy!r} is no way to read column {name!r}", hint=f"choose one of {', '.join(allowed)}"
            )


def _partitions(refs: Iterable[SegmentRef]) -> set[int]:
    return {piece.partition for ref in refs for piece in ref.ranges}


def _split(refs: Sequence[SegmentRef], partitions: int) -> int:
    decoded = sum(ref.bytes for ref in refs) * _DECODED / partitions
    split = 1
    while decoded > split * BUCKET_BYTES and split < _MOST_SPLITS:
        split *= 2
    return split


def compute_states(storage: Storage | Path, wanted: StateInput, buckets: range) -> Iterator[pa.Table]:
    """State of some buckets in ``assembly.state_schema``: key and chosen columns, ``_raw`` and ``_unknown``. As few
    tables as their size allows, each of buckets of one partition.

    One row per living key, in each table sorted by (``_hash``, key). Raises IntegrityError when a segment is missing or
    damaged.
    """
    local = LocalStorage(storage) if isinstance(storage, Path) else storage
    layout = wanted.layout
    resolver = MovedCells(wanted.target, reader_of(local, wanted))
    for compactor in passes(partition_reader(local, wanted, layout), layout, wanted.spread, buckets):
        yield compactor.finish(resolver.resolve)


def compute_state(storage: Storage | Path, wanted: StateInput, bucket: int) -> pa.Table:
    """``compute_states`` of one bucket."""
    (table,) = compute_states(storage, wanted, range(bucket, bucket + 1))
    return table


def readable_states(storage: Storage | Path, wanted: StateInput, buckets: range) -> Iterator[pa.Table]:
    """``compute_states`` as plain columns (``wanted.schema``), after the policies for what has no value in its type.
    Erased cells are NULL under every policy, and ``_erased`` names them.

    Raises UnreadableCell (policy ``error``) and UnknownCell (always: unknown is never read as NULL).
    """
    return (readable(table, wanted) for table in compute_states(storage, wanted, buckets))


def readable_state(storage: Storage | Path, wanted: StateInput, bucket: int) -> pa.Table:
    """``readable_states`` of one bucket."""
    return readable(compute_state(storage, wanted, bucket), wanted)


def state(
    log: Log,
    topic: TopicId,
    cut: Cut,
    *,
    columns: Sequence[str] | None = None,
    on_unreadable: OnUnreadable | Mapping[str, OnUnreadable] = "error",
) -> Iterator[pa.Table]:
    """The state of a topic at a cut, in tables (``StateInput.schema``) that share no key, without Spark.

    Raises what ``plan_state`` and ``readable_states`` raise.
    """
    wanted = plan_state(log, topic, cut, columns=columns, on_unreadable=on_unreadable)
    return readable_states(log.storage, wanted, range(wanted.buckets))


def unknown_keys(log: Log, topic: TopicId, *, since: int) -> Iterator[tuple[str, ...]]:
    """Key texts (in the schema's order) of the rows with a cell whose value was never sent, of an incomplete topic
    whose state begins with epoch ``since``."""
    cut = log.cut()
    unsent: set[int] = set()
    for batch in log.read(topic, after_epoch=since - 1, cut=cut, columns=["_unchanged"]):
        marks = batch.column("_unchanged")
        if marks.null_count < len(marks):
            unsent.update(pc.list_flatten(marks).to_pylist())
    if not unsent:
        return
    latest = unify(log.schemas(topic))
    names = [column.name for column in latest.columns if column.key or column.id in unsent]
    whole = plan_state(log, topic, cut, columns=names, incomplete=True)
    wanted = whole.of(ref for ref in whole.refs if ref.last_epoch >= since)
    for table in compute_states(log.storage, wanted, range(wanted.buckets)):
        table = table.filter(table["_unknown"].is_valid())
        if table.num_rows:
            raw = _raw_cells(table)
            cells = [
                _as_texts(table, wanted, column, raw.get(column.id, {})).to_pylist()
                for column in wanted.target.key
            ]
            yield from zip(*cells, strict=True)


def source_texts(log: Log, topic: TopicId, cut: Cut, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The state of a topic at a cut as its source printed it, in tables of binary columns that share no key: to be
    compared with the source byte by byte, also where it is no text. Erased cells are NULL, and ``_erased`` names them.

    Raises what ``plan_state`` and ``compute_states`` raise, and UnknownCell.
    """
    wanted = plan_state(log, topic, cut, columns=columns, on_unreadable="text")
    for table in compute_states(log.storage, wanted, range(wanted.buckets)):
        _refuse_unknown(table, wanted)
        raw = _raw_cells(table)
        cells = {
            column.name: _printed(table[column.name], raw.get(column.id, {})) for column in wanted.chosen
        }
        yield pa.table({**cells, ERASED.name: _erased_names(table.num_rows, wanted, raw)})


def partition_reader(storage: Storage, wanted: StateInput, layout: Layout) -> ReadPartition:
    """How a partition, counted from the first one of its incarnation, is read for ``passes``."""
    if wanted.partitioning.mixed:
        return _mixed_reader(storage, wanted, layout)
    first = wanted.partitioning.current.first
    refs = list(wanted.refs)

    def read(partition: int) -> Iterator[Rows]:
        number = first + partition
        for at, ref in enumerate(refs):
            if all(piece.partition != number for piece in ref.ranges):
                continue
            version = wanted.versions[ref.version]
            table = read_segment(
                storage,
                ref,
                columns=[*layout.needs(version), "_offset", "_epoch"],
                partitions=(number,),
                silent=SILENT,
                coded=layout.coded(version),
            )
            refs[at] = replace(ref, checksum="")  # once is enough for all partitions
            yield from conform(table, version, layout)

    return read


def _mixed_reader(storage: Storage, wanted: StateInput, layout: Layout) -> ReadPartition:
    """After a repartition: a key's rows come in the order of its partitions, and truncates, which stand in each
    partition, are carried out here. What the last one emptied is left out, and so are they."""
    current = wanted.partitioning.current

    def read(partition: int) -> Iterator[Rows]:
        chosen = wanted.partitioning.sharing(current.first + partition)
        emptied = _last_truncate(storage, wanted)
        for ref in wanted.refs:
            if all(piece.partition not in chosen for piece in ref.ranges):
                continue
            version = wanted.versions[ref.version]
            names = [*layout.needs(version), "_offset", "_epoch"]
            table = read_segment(storage, ref, columns=names, partitions=chosen)
            mine = keys.partitions_of(table["_hash"].combine_chunks(), current.count) == partition
            yield from conform(_behind(table.filter(pa.array(mine)), emptied), version, layout)

    return read


_PLACE = ("_epoch", "_lsn", "_ordinal")
Place = tuple[int, int, int]


def _last_truncate(storage: Storage, wanted: StateInput) -> Place | None:
    """Where the last one stands. One partition of each incarnation has all of them."""
    firsts = [each.first for each in wanted.partitioning.incarnations]
    places: list[Place] = []
    for ref in wanted.refs:
        if any(piece.partition in firsts for piece in ref.ranges):
            table = read_segment(storage, ref, columns=["_op", *_PLACE], partitions=firsts)
            found = table.filter(pc.equal(table["_op"], "t"))
            places += zip(*(found[name].to_pylist() for name in _PLACE), strict=True)
    return max(places, default=None)


def _behind(table: pa.Table, emptied: Place | None) -> pa.Table:
    """Rows without truncates, and without what lies before the place ``emptied``."""
    keep = pc.not_equal(table["_op"], "t")
    if emptied is not None:
        epoch, lsn, ordinal = (table[name] for name in _PLACE)
        counts = pc.greater_equal(ordinal, emptied[2])
        counts = pc.or_(pc.greater(lsn, emptied[1]), pc.and_(pc.equal(lsn, emptied[1]), counts))
        counts = pc.or_(pc.greater(epoch, emptied[0]), pc.and_(pc.equal(epoch, emptied[0]), counts))
        keep = pc.and_(keep, counts)
    return table.filter(keep)


def reader_of(
    storage: Storage, wanted: StateInput
) -> Callable[
    [Sequence[int] | None, Callable[[TopicSchema], Sequence[str]]], Iterator[tuple[TopicSchema, pa.Table]]
]:
    """How ``MovedCells`` reads rows of other buckets."""

    def read(
        epochs: Sequence[int] | None, columns: Callable[[TopicSchema], Sequence[str]]
    ) -> Iterator[tuple[TopicSchema, pa.Table]]:
        for ref in wanted.refs:
            if epochs is None or any(ref.first_epoch <= epoch <= ref.last_epoch for epoch in epochs):
                version = wanted.versions[ref.version]
                yield version, read_segment(storage, ref, columns=columns(version))

    return read


def readable(table: pa.Table, wanted: StateInput) -> pa.Table:
    """A computed state as plain columns; see ``readable_state``."""
    _refuse_unknown(table, wanted)
    raw = _raw_cells(table)
    arrays = [*(table[field.name] for field in STATE_FIELDS), _erased_names(table.num_rows, wanted, raw)]
    for column in wanted.chosen:
        cells, entries = table[column.name], raw.get(column.id, {})
        texts = {row: text for row, text in entries.items() if text is not None}
        policy = wanted.on_unreadable.get(column.name, "error")
        if policy == "text":
            cells = _as_texts(table, wanted, column, texts)
        elif texts and policy == "error":
            raise _unreadable(table, wanted, column, *next(iter(texts.items())))
        elif texts:
            # not replace_with_mask, which has no kernel for lists
            cells = pc.if_else(_at(len(cells), texts), pa.scalar(None, cells.type), cells)
        arrays.append(cells)
    return pa.Table.from_arrays(arrays, schema=wanted.schema)


def _raw_cells(table: pa.Table) -> dict[int, dict[int, bytes | None]]:
    """Column id -> row -> source text, None where it was erased."""
    cells: dict[int, dict[int, bytes | None]] = {}
    for row, entries in _marked(table["_raw"]):
        for column_id, text in entries:
            cells.setdefault(column_id, {})[row] = text
    return cells


def _erased_names(rows: int, wanted: StateInput, raw: Mapping[int, Mapping[int, bytes | None]]) -> pa.Array:
    names: dict[int, list[str]] = {}
    for column in wanted.chosen:
        for row, text in raw.get(column.id, {}).items():
            if text is None:
                names.setdefault(row, []).append(column.name)
    if not names:
        return pa.nulls(rows, ERASED.type)
    return pa.array([names.get(row) for row in range(rows)], ERASED.type)


def _marked(marks: pa.ChunkedArray) -> Iterator[tuple[int, list[Any]]]:
    """The rows that have marks, and these: few of many, so the others do not become Python values."""
    if marks.null_count < len(marks):
        rows = pc.indices_nonzero(marks.is_valid())
        yield from zip(rows.to_pylist(), marks.take(rows).to_pylist(), strict=True)


def _as_texts(
    table: pa.Table, wanted: StateInput, column: Column, texts: Mapping[int, bytes | None]
) -> pa.ChunkedArray:
    try:
        return _printed(table[column.name], texts).cast(pa.string())
    except pa.ArrowInvalid:
        wrong = (
            (row, text) for row, text in sorted(texts.items()) if text is not None and not _is_text(text)
        )
        raise _unreadable(table, wanted, column, *next(wrong)) from None


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _printed(cells: pa.ChunkedArray, texts: Mapping[int, bytes | None]) -> pa.ChunkedArray:
    """The cells as their source printed them, binary: those of the typed column, and ``texts`` of those it lacks."""
    rendered = pa.chunked_array([postgres_texts(chunk) for chunk in cells.chunks], pa.string()).cast(
        pa.binary()
    )
    values = pa.array([texts[row] for row in sorted(texts)], pa.binary())
    return pc.replace_with_mask(rendered, _at(len(rendered), texts), values) if texts else rendered


def _at(length: int, rows: Iterable[int]) -> pa.BooleanArray:
    """A mask that is true at ``rows``."""
    return pc.is_in(pa.array(range(length), pa.int64()), value_set=pa.array(rows, pa.int64()))


def _refuse_unknown(table: pa.Table, wanted: StateInput) -> None:
    chosen = {column.id: column for column in wanted.chosen}
    for row, ids in _marked(table["_unknown"]):
        for column_id in ids:
            if column_id in chosen:
                raise UnknownCell(
                    f"{wanted.topic}: the value of column {chosen[column_id].name!r} of the row"
                    f" {_key_of(table, wanted, row)} was never sent (an unchanged TOASTed value)",
                    hint="read the topic again from its source, or leave the column out",
                )


def _unreadable(table: pa.Table, wanted: StateInput, column: Column, row: int, text: bytes) -> UnreadableCell:
    where = f"{wanted.topic}: column {column.name!r} of the row {_key_of(table, wanted, row)} holds"
    if not _is_text(text):
        return UnreadableCell(
            f"{where} {disclosure.value(text[:80])}, which is not UTF-8",
            hint="read the column with on_unreadable 'null', or mend the text in the source",
        )
    shown = disclosure.value(text[:80].decode(errors="replace"))
    return UnreadableCell(
        f"{where} {shown}, which {column.arrow} cannot{_former_type(wanted, column)}",
        hint="read the column with on_unreadable 'text' (its source text) or 'null', leave it out (columns), or mend"
        " the row in the source",
    )


def _former_type(wanted: StateInput, column: Column) -> str:
    """Of a column whose type changed: both types, and the versions that have them."""
    for version in sorted(wanted.versions.values(), key=lambda schema: -schema.version):
        former = next((other for other in version.columns if other.id == column.id), None)
        if version.version < wanted.target.version and former is not None and former.arrow != column.arrow:
            return (
                f" (it was {former.type_name or former.arrow} in version {version.version} of the topic, and is "
                f"{column.type_name or column.arrow} in version {wanted.target.version})"
            )
    return ""


def _key_of(table: pa.Table, wanted: StateInput, row: int) -> str:
    return ", ".join(
        f"{column.name}={disclosure.value(table[column.name][row].as_py())}" for column in wanted.target.key
    )
