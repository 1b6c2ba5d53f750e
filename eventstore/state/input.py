"""What the state of a topic at a cut is computed from: planned with the catalog, then used without it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import pyarrow as pa

from tailrace.eventstore.errors import UsageError, damaged_row
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.model.info import TopicInfo
from tailrace.eventstore.model.partitioning import Partitioning
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.schema import Column, TopicSchema, unify
from tailrace.eventstore.model.segment_ref import SegmentRef
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.state.assembly import ERASED, STATE_FIELDS
from tailrace.eventstore.state.bucket_passes import Buckets
from tailrace.eventstore.state.row_layout import Layout

# What a reader does with cells that the typed column cannot hold: raise, read them as NULL, or read the whole column
# as Postgres' text.
OnUnreadable = Literal["error", "null", "text"]

# A task's share of memory. The kernel folds as it reads, so this bounds the state of a bucket from above.
BUCKET_BYTES = 256 << 20
# Stored bytes (zstd, level 1) of change rows decode to about this many times as much (measured: 2.4 on orders).
DECODED = 2.5
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
    def bucket_layout(self) -> Buckets:
        return Buckets(self.partitions, self.split)

    @property
    def buckets(self) -> int:
        """Buckets are numbered 0 ≤ b < buckets; b // split is the partition, counted from the first one of its
        incarnation (``keys.bucket_of``)."""
        return self.bucket_layout.count

    def restricted_to(self, refs: Iterable[SegmentRef]) -> StateInput:
        """The input for the state of these rows only."""
        chosen = tuple(refs)
        return replace(self, refs=chosen, partitioning=self.partitioning.restrict_to(_partitions(chosen)))

    @property
    def layout(self) -> Layout:
        return Layout.of(self.target, self.columns)

    @property
    def schema(self) -> pa.Schema:
        """The schema of readable states: position columns, which cells were erased, then the chosen columns in the
        topic's order."""
        return pa.schema([*STATE_FIELDS, ERASED, *(self._field(column) for column in self.selected_columns)])

    @property
    def selected_columns(self) -> tuple[Column, ...]:
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
) -> StateInput:
    """What to read for the state of ``topic`` at ``cut``.

    ``columns`` defaults to all; ``on_unreadable`` is one policy or one per column. The split is the smallest that keeps
    a bucket's decoded changes within ``BUCKET_BYTES``. Raises UsageError for an unknown column or policy,
    IncompleteTopic when the topic's state is not known at the cut, HistoryGone when retention removed what it was made
    of.
    """
    info = log.topic(topic)
    log.require_complete(topic, cut)
    return _plan(log, info, cut, tuple(log.state_segments(topic, cut)), columns, on_unreadable)


def plan_known_state(
    log: Log, topic: TopicId, cut: Cut, *, columns: Sequence[str] | None = None, every_row: bool = False
) -> StateInput:
    """As ``plan_state``, for a topic that may be incomplete: its state as far as it is known. ``every_row``: go by no
    state run but that at the topic's start."""
    refs = tuple(log.state_segments(topic, cut, every_row=every_row))
    return _plan(log, log.topic(topic), cut, refs, columns, "error")


def _plan(
    log: Log,
    info: TopicInfo,
    cut: Cut,
    refs: tuple[SegmentRef, ...],
    columns: Sequence[str] | None,
    on_unreadable: OnUnreadable | Mapping[str, OnUnreadable],
) -> StateInput:
    topic = info.id
    versions = {schema.version: schema for schema in log.schemas(topic)}
    partitioning = info.partitioning.restrict_to(_partitions(refs))
    for ref in refs:
        if ref.version not in versions:
            place = f"{'epochs' if ref.path is None else 'a file'} {ref.path or ref.first_epoch}"
            raise damaged_row(place, f"its rows are of version {ref.version}, which {topic} does not have")
    target = unify([*(versions[ref.version] for ref in refs), *log.schemas_at(topic, cut)])
    names = tuple(column.name for column in target.columns) if columns is None else tuple(columns)
    policies = dict.fromkeys(names, on_unreadable) if isinstance(on_unreadable, str) else on_unreadable
    _check_names(topic, target, [*names, *policies])
    _check_policies(policies)
    return StateInput(
        topic=topic,
        target=target,
        versions=versions,
        partitioning=partitioning,
        split=_split(refs, partitioning.current.count),
        refs=refs,
        columns=names,
        on_unreadable=dict(policies),
    )


def _check_names(topic: TopicId, target: TopicSchema, names: Sequence[str]) -> None:
    held = {column.name for column in target.columns}
    missing = [name for name in dict.fromkeys(names) if name not in held]
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
                f"column {name!r} cannot be read as {policy!r}", hint=f"choose one of {', '.join(allowed)}"
            )


def _partitions(refs: Iterable[SegmentRef]) -> set[int]:
    return {piece.partition for ref in refs for piece in ref.ranges}


def _split(refs: Sequence[SegmentRef], partitions: int) -> int:
    decoded = sum(ref.bytes for ref in refs) * DECODED / partitions
    split = 1
    while decoded > split * BUCKET_BYTES and split < _MOST_SPLITS:
        split *= 2
    return split
