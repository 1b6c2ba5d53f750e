"""The state of a topic at a cut: the latest row of every living key, by buckets.

``input.plan_state`` reads the catalog once and gives a picklable ``StateInput``; ``compute_states`` needs only that and
the segments folder, so Spark tasks call it without a catalog. ``state`` does both, for callers without Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.log.log import Log
from tailrace.eventstore.model import keys
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.schema import TopicSchema, unify
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment.segment import DecodeHints, read_segment
from tailrace.eventstore.state.assembly import ERASED
from tailrace.eventstore.state.bucket_passes import ReadPartition, bucket_passes
from tailrace.eventstore.state.input import OnUnreadable, StateInput, plan_known_state, plan_state
from tailrace.eventstore.state.moved_cells import MovedCells
from tailrace.eventstore.state.readable import (
    as_texts,
    erased_names,
    raw_cells,
    refuse_unknown,
    source_cells,
    to_readable,
)
from tailrace.eventstore.state.row_layout import SILENT, Layout, StateRows, conform
from tailrace.eventstore.storage import LocalStorage, Storage


def compute_states(storage: Storage | Path, wanted: StateInput, buckets: range) -> Iterator[pa.Table]:
    """State of some buckets in ``assembly.state_schema``: key and chosen columns, ``_raw`` and ``_unknown``. As few
    tables as their size allows, each of buckets of one partition.

    One row per living key, in each table in the order of their last changes. Raises IntegrityError when a segment is
    missing or damaged.
    """
    local = LocalStorage(storage) if isinstance(storage, Path) else storage
    layout = wanted.layout
    resolver = MovedCells(wanted.target, reader_of(local, wanted))
    for compactor in bucket_passes(
        partition_reader(local, wanted, layout), layout, wanted.bucket_layout, buckets
    ):
        yield compactor.finish(resolver.resolve)


def readable_states(storage: Storage | Path, wanted: StateInput, buckets: range) -> Iterator[pa.Table]:
    """``compute_states`` as plain columns (``wanted.schema``), after the policies for what has no value in its type.
    Erased cells are NULL under every policy, and ``_erased`` names them.

    Raises UnreadableCell (policy ``error``) and UnknownCell (always: unknown is never read as NULL).
    """
    return (to_readable(table, wanted) for table in compute_states(storage, wanted, buckets))


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
    whole = plan_known_state(log, topic, cut, columns=names)
    wanted = whole.restricted_to(ref for ref in whole.refs if ref.last_epoch >= since)
    for table in compute_states(log.storage, wanted, range(wanted.buckets)):
        table = table.filter(table["_unknown"].is_valid())
        if table.num_rows:
            raw = raw_cells(table)
            cells = [
                as_texts(table, wanted, column, raw.get(column.id, {})).to_pylist()
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
        refuse_unknown(table, wanted)
        raw = raw_cells(table)
        cells = {
            column.name: source_cells(table[column.name], raw.get(column.id, {}))
            for column in wanted.selected_columns
        }
        yield pa.table({**cells, ERASED.name: erased_names(table.num_rows, wanted, raw)})


def partition_reader(storage: Storage, wanted: StateInput, layout: Layout) -> ReadPartition:
    """How a partition, counted from the first one of its incarnation, is read for ``bucket_passes``."""
    if wanted.partitioning.mixed:
        return _mixed_reader(storage, wanted, layout)
    first = wanted.partitioning.current.first
    refs = list(wanted.refs)

    def read(partition: int) -> Iterator[StateRows]:
        number = first + partition
        for at, ref in enumerate(refs):
            if all(piece.partition != number for piece in ref.ranges):
                continue
            version = wanted.versions[ref.version]
            table = read_segment(
                storage,
                ref,
                columns=[*layout.required_columns(version), "_offset", "_epoch"],
                partitions=(number,),
                hints=DecodeHints(SILENT, layout.coded_columns(version)),
                of=version,
            )
            refs[at] = replace(ref, checksum="")  # once is enough for all partitions
            yield from conform(table, version, layout)

    return read


def _mixed_reader(storage: Storage, wanted: StateInput, layout: Layout) -> ReadPartition:
    """After a repartition: a key's rows come in the order of its partitions, and truncates, which stand in each
    partition, are carried out here. What the last one emptied is left out, and so are they."""
    current = wanted.partitioning.current

    def read(partition: int) -> Iterator[StateRows]:
        partitions = wanted.partitioning.partitions_with_keys_of(current.first + partition)
        truncate = _last_truncate(storage, wanted)
        for ref in wanted.refs:
            if all(piece.partition not in partitions for piece in ref.ranges):
                continue
            version = wanted.versions[ref.version]
            names = [*layout.required_columns(version), "_offset", "_epoch"]
            table = read_segment(storage, ref, columns=names, partitions=partitions, of=version)
            mine = keys.partitions_of(table["_hash"].combine_chunks(), current.count) == partition
            yield from conform(_rows_after_truncate(table.filter(pa.array(mine)), truncate), version, layout)

    return read


_PLACE = ("_epoch", "_lsn", "_ordinal")
Place = tuple[int, int, int]


def _last_truncate(storage: Storage, wanted: StateInput) -> Place | None:
    """Where the last one is. One partition of each incarnation has all of them."""
    firsts = [each.first for each in wanted.partitioning.incarnations]
    places: list[Place] = []
    for ref in wanted.refs:
        if any(piece.partition in firsts for piece in ref.ranges):
            table = read_segment(storage, ref, columns=["_op", *_PLACE], partitions=firsts)
            found = table.filter(pc.equal(table["_op"], "t"))
            places += zip(*(found[name].to_pylist() for name in _PLACE), strict=True)
    return max(places, default=None)


def _rows_after_truncate(table: pa.Table, truncate: Place | None) -> pa.Table:
    """Rows without truncates, and without what lies before the place ``truncate``."""
    keep = pc.not_equal(table["_op"], "t")
    if truncate is not None:
        epoch, lsn, ordinal = (table[name] for name in _PLACE)
        counts = pc.greater_equal(ordinal, truncate[2])
        counts = pc.or_(pc.greater(lsn, truncate[1]), pc.and_(pc.equal(lsn, truncate[1]), counts))
        counts = pc.or_(pc.greater(epoch, truncate[0]), pc.and_(pc.equal(epoch, truncate[0]), counts))
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
                yield version, read_segment(storage, ref, columns=columns(version), of=version)

    return read
