"""The read plan: the files and blobs that a projection's inputs consist of at one position.

The driver asks the catalog; tasks get their units of work as rows (``frames``) and never open the catalog. Blobs
travel inside these rows up to 48 MiB. Beyond that the log is sealed first: 200 MiB of blobs killed a driver of 1 GiB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from tailrace.eventstore.errors import Fenced, HistoryGone, UsageError
from tailrace.eventstore.log.one_look import named
from tailrace.eventstore.metadata.generations import InputNeed
from tailrace.eventstore.metadata.topics import unknown_state
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.schema import TopicSchema, unify
from tailrace.eventstore.model.segment_ref import SegmentRef
from tailrace.eventstore.model.topic import TopicId, TopicKind
from tailrace.eventstore.segment.segment import POSITION_FIELDS, stored_schema
from tailrace.eventstore.state.input import StateInput, plan_state
from tailrace.eventstore.streams.database.key_places import KeyPlace
from tailrace.projections.definition.model import Changes, Events, Input, Projection, Result, State
from tailrace.projections.events.typed_events import ENVELOPE, TypedEvents
from tailrace.projections.generations.result_input import ResultInput, describe_result, live_of, plan_result

if TYPE_CHECKING:
    from tailrace.eventstore.store import Store

INLINE_LIMIT = 48 << 20
_EVENT_ENVELOPE = ("_lsn", "_commit_ts")


@dataclass(frozen=True, slots=True)
class ChangesInput:
    """All that is needed to read a topic's changes up to a cut. Pickles like ``StateInput``."""

    topic: TopicId
    target: TopicSchema
    versions: Mapping[int, TopicSchema]
    partitions: int
    refs: tuple[SegmentRef, ...]
    as_events: bool
    typed: TypedEvents | None = None
    keys: KeyPlace | None = None

    @property
    def buckets(self) -> int:
        return self.partitions

    @property
    def schema(self) -> pa.Schema:
        stored = stored_schema(self.target)
        if not self.as_events:
            return stored
        after = stored.field("after").type
        columns = [after.field(i) for i in range(after.num_fields)]
        if self.typed is not None:
            columns = [*(each for each in columns if each.name in ENVELOPE), *self.typed.fields]
        return pa.schema([*POSITION_FIELDS, *(stored.field(name) for name in _EVENT_ENVELOPE), *columns])


@dataclass(frozen=True, slots=True)
class ComputedInput:
    """A result of another projection that is not kept at the position: it is computed together with the one that reads
    it."""

    projection: Projection
    reads: ReadPlan


Planned = StateInput | ChangesInput | ResultInput
_BUCKET_BYTES = 64 << 20
"""Stored bytes of input for each bucket of output: about 256 MiB decoded, which one task may hold."""

_MOST_SPLITS = 256
_SEALS = 3  # the latest sealer wins, so that ours may be fenced


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The inputs of a projection at a cut: those that are read, and results of other projections that are
    computed."""

    cut: Cut
    inputs: Mapping[str, Planned]
    computed_inputs: Mapping[str, ComputedInput] = field(default_factory=dict)

    @property
    def read(self) -> list[Planned]:
        """Everything that is read, also for results that are computed."""
        below = (other.reads.read for other in self.computed_inputs.values())
        return [*self.inputs.values(), *(each for planned in below for each in planned)]

    @property
    def rows(self) -> int:
        """The changes and rows of results that will be read."""
        results = [planned.rows for planned in self.read if isinstance(planned, ResultInput)]
        return sum(results) + sum(ref.rows for planned in self.read for ref in planned.refs)

    @property
    def stored_bytes(self) -> int:
        results = [each.stored_bytes for each in self.read if isinstance(each, ResultInput)]
        return sum(results) + sum(ref.bytes for planned in self.read for ref in planned.refs)

    def inline_bytes(self, parallelism: int) -> int:
        """Bytes of blobs in all task rows: each unit of work carries the blobs of its topic."""
        return sum(
            min(parallelism, planned.buckets) * sum(len(ref.inline) for ref in planned.refs if ref.inline)
            for planned in self.read
        )

    def split(self, partitions: int) -> int:
        """How many buckets each of so many partitions of the result is split into."""
        split = 1
        while self.stored_bytes > split * partitions * _BUCKET_BYTES and split < _MOST_SPLITS:
            split *= 2
        return split


@dataclass(frozen=True, slots=True)
class ResultSources:
    """Where results of other projections come from: these ``generations`` (default: the live ones), or, for projections
    in ``computed_inputs``, these definitions."""

    generations: Mapping[str, int] = field(default_factory=dict)
    computed_inputs: Mapping[str, Projection] = field(default_factory=dict)


_LIVE = ResultSources()


def plan_reads(
    store: Store,
    projection: Projection,
    cut: Cut,
    parallelism: int,
    names: Sequence[str] | None = None,
    results: ResultSources = _LIVE,
) -> ReadPlan:
    """Resolve inputs (default: all) at ``cut``, for tasks: the log is sealed when too much of it is inline.

    Raises IncompleteTopic when the state of an input is not known there, UsageError for unknown topics or columns.
    """
    for _ in range(_SEALS):
        plan = resolve_reads(store, projection, cut, names, results)
        if plan.inline_bytes(parallelism) <= INLINE_LIMIT:
            return plan
        with suppress(Fenced):  # upkeep began to seal meanwhile
            store.seal()
    return resolve_reads(store, projection, cut, names, results)


def needs(
    store: Store, projection: Projection, computed_inputs: Mapping[str, Projection] | None = None
) -> tuple[InputNeed, ...]:
    """What a generation that is begun now will read. Retention keeps it."""
    needed: list[InputNeed] = []
    for source in projection.inputs.values():
        if isinstance(source, Result):
            if computed_inputs and source.projection in computed_inputs:
                needed += needs(store, computed_inputs[source.projection], computed_inputs)
                continue
            # The other projection holds its own changes back; these topics say how far this one is.
            read = live_of(store, source.projection)
            needed += [InputNeed(need.topic, "state", need.start) for need in read.inputs] if read else []
            continue
        kind = "state" if isinstance(source, State) else "changes"
        start = store.log_start(source.topic_id).epoch
        needed.append(InputNeed(source.topic_id.text, kind, start))
    return tuple(needed)


def require_changes(store: Store, label: str, name: str, inputs: Sequence[InputNeed]) -> None:
    """Raises HistoryGone when retention has removed changes of a topic that the generation is computed from: its result
    would silently be that of fewer changes."""
    for need in inputs:
        start = store.log_start(TopicId.parse(need.topic)).epoch
        if need.kind == "changes" and start > need.start:
            raise HistoryGone(
                f"{label} is computed from all changes of {need.topic} after epoch {need.start}; retention removed "
                f"those up to epoch {start}",
                hint=f"tailrace rebuild {name} computes it from what is left",
            )


def resolve_reads(
    store: Store,
    projection: Projection,
    cut: Cut,
    names: Sequence[str] | None = None,
    results: ResultSources = _LIVE,
) -> ReadPlan:
    """Resolve inputs (default: all) at ``cut``, for this process. Raises as ``plan_reads``."""
    planned: dict[str, Planned] = {}
    computed: dict[str, ComputedInput] = {}
    for name in projection.inputs if names is None else names:
        source = projection.inputs[name]
        if isinstance(source, Result) and source.projection in results.computed_inputs:
            definition = results.computed_inputs[source.projection]
            computed[name] = ComputedInput(definition, resolve_reads(store, definition, cut, None, results))
        else:
            planned[name] = plan_input(store, source, cut, generations=results.generations)
    return ReadPlan(cut, planned, computed)


def plan_input(
    store: Store,
    source: Input,
    cut: Cut,
    more: Sequence[str] = (),
    generations: Mapping[str, int] | None = None,
) -> Planned:
    """One input at a cut. ``more``: columns of a state that are read besides those that the function sees. Raises what
    ``plan_reads`` raises."""
    if isinstance(source, State):
        columns = source.columns and tuple(dict.fromkeys((*source.columns, *more)))
        policy = source.on_unreadable
        policies = policy if isinstance(policy, str) else tuple(sorted(policy.items()))
        found: StateInput = store.look.answer(
            ("plan_state", source.topic, named(cut), columns, policies),
            lambda: plan_state(store, source.topic_id, cut, columns=columns, on_unreadable=policy),
        )
        return found
    if isinstance(source, Result):
        return plan_result(store, source.projection, cut, (generations or {}).get(source.projection))
    return plan_changes(store, source, cut)


def plan_changes(store: Store, source: Changes | Events, cut: Cut, after_epoch: int = 0) -> ChangesInput:
    """The changes of an input after an epoch and up to a cut."""
    info = store.topic(source.topic_id)
    as_events = isinstance(source, Events)
    if as_events and info.kind is not TopicKind.EVENTS:
        raise UsageError(
            f"{info.id} holds no domain events", hint="read a table as State or Changes, a category as Events"
        )
    if info.complete_since is None or info.complete_since > cut.epoch:
        why = info.reason or "its first load came later"
        raise unknown_state(f"the history of {info.id} at epoch {cut.epoch} is not known: {why}", info.reason)
    versions = {schema.version: schema for schema in store.schemas(info.id)}
    return ChangesInput(
        topic=info.id,
        target=unify(list(versions.values())),
        versions=versions,
        partitions=info.partitioning.total,
        refs=tuple(store.segments(info.id, cut, after_epoch)),
        as_events=as_events,
        typed=_typed(source),
        keys=store.keys_of(info.id.source) if as_events else None,
    )


def _typed(source: Changes | Events) -> TypedEvents | None:
    return (
        TypedEvents.of(source.topic_id, source.types) if isinstance(source, Events) and source.types else None
    )


def describe_input(store: Store, source: Input) -> Planned:
    """An input as its topic is known now, without rows. The topic need not be complete.

    Raises UsageError for an unknown topic or column, IncompleteTopic for the result of a projection that was never
    built.
    """
    if isinstance(source, Result):
        return describe_result(store, source.projection)
    info = store.topic(source.topic_id)
    versions = {schema.version: schema for schema in store.schemas(info.id)}
    target = unify(list(versions.values()))
    if not isinstance(source, State):
        return ChangesInput(
            info.id, target, versions, info.partitioning.total, (), isinstance(source, Events), _typed(source)
        )
    names = tuple(column.name for column in target.columns) if source.columns is None else source.columns
    policy = source.on_unreadable
    policies = dict.fromkeys(names, policy) if isinstance(policy, str) else dict(policy)
    return StateInput(info.id, target, versions, info.partitioning, 1, (), names, policies)
