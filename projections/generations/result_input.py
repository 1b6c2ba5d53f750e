"""Results of other projections as inputs: a result at an epoch, and the rows that changed between two.

The steps of a projection in the log are its history: each names the files of its result and of its differences. So such
an input needs no sink and is read at an exact epoch: that of a step, or a later one up to which none of the step's
inputs changed. Where there is no such step, the projection that reads it has to wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace.eventstore.errors import IncompleteTopic, UsageError
from tailrace.eventstore.metadata.generations import GenerationInfo
from tailrace.eventstore.metadata.projection_steps import DerivedRun
from tailrace.eventstore.model import keys
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.segment_ref import SegmentRef
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.state.row_layout import Ints
from tailrace.eventstore.storage import Storage
from tailrace.projections.definition.model import Projection
from tailrace.projections.generations.difference import HASH
from tailrace.projections.generations.generation import files_of
from tailrace.projections.generations.step_files import (
    NO_FILES,
    BucketFiles,
    read_delta,
    read_result,
    run_schema,
    schema_from_bytes,
)

if TYPE_CHECKING:
    from tailrace.eventstore.store import Store


_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ResultInput:
    """Everything that is needed to read a projection's result after a step. Pickles into Spark tasks."""

    projection: str
    generation: int
    epoch: int
    schema: pa.Schema
    key: tuple[str, ...]
    partitions: int
    split: int
    placed: tuple[tuple[int, BucketFiles], ...]
    rows: int

    @property
    def refs(self) -> tuple[SegmentRef, ...]:
        """None: it does not consist of a topic's segments."""
        return ()

    @property
    def buckets(self) -> int:
        return self.partitions * self.split

    @property
    def stored_bytes(self) -> int:
        held = [(each.run, *each.overlays) for _, each in self.placed]
        return sum(file.bytes for files in held for file in files if file is not None)

    def read(self, storage: Storage, bucket: int) -> pa.Table:
        """The rows of one of its buckets, with ``_hash``."""
        return read_result(storage, dict(self.placed).get(bucket, NO_FILES), self.schema, self.key)

    def buckets_of(self, hashes: Ints) -> list[int]:
        """The buckets with rows that may have some of these key hashes."""
        wanted = set(np.unique(keys.buckets_of(pa.array(hashes), self.partitions, self.split)).tolist())
        return [bucket for bucket, _ in self.placed if bucket in wanted]


@dataclass(frozen=True, slots=True)
class ResultStep:
    """The live generation of a projection, and the step whose result holds at some epoch."""

    info: GenerationInfo
    step: DerivedRun


def live_of(store: Store, name: str, generation: int | None = None) -> GenerationInfo | None:
    """The generation whose results are read: the live one, unless another is named."""
    number = store.derived.live(name) if generation is None else generation
    return next((info for info in store.derived.generations(name) if info.generation == number), None)


def result_at(store: Store, name: str, epoch: int, generation: int | None = None) -> ResultStep | None:
    """A projection's result at an epoch. None when it is not known: the projection was never built, has not come so
    far, has no step there, or the step is not kept any more. ``generation``: another than the live one."""
    info = live_of(store, name, generation)
    if info is None:
        return None
    step = store.steps.last(name, info.generation, epoch)
    return ResultStep(info, step) if step is not None and _holds(store, info, step, epoch) else None


def result_in(store: Store, name: str, cut: Cut, generation: int | None = None) -> ResultStep | None:
    """A projection's result at a cut. Results are of whole epochs: at a cut inside one it is known only if none of its
    inputs has rows between the beginning of that epoch and the cut."""
    floor = min([cut.epoch, *(epoch - 1 for epoch in cut.inside.values())]) if cut.below_lsn else cut.epoch
    at = result_at(store, name, floor, generation)
    if at is None or floor == cut.epoch:
        return at
    topics = [TopicId.parse(need.topic) for need in at.info.inputs]
    return None if any(store.segments(topic, cut, floor) for topic in topics) else at


def missing_results(
    store: Store, projection: Projection, definitions: Mapping[str, Projection], position: str, cut: Cut
) -> list[str]:
    """The projections, among those that one reads directly or by way of others, whose results are not kept at a cut:
    they have to be computed from the log. ``position`` is the cut in the user's words.

    Raises UsageError, with the positions that there are, when the definition of one of them is not loaded.
    """
    found: dict[str, None] = {}
    for name in projection.reads:
        if result_in(store, name, cut) is not None:
            continue
        if name not in definitions:
            raise _unknown_position(store, projection, name, position)
        found |= dict.fromkeys([name, *missing_results(store, definitions[name], definitions, position, cut)])
    return list(found)


def _unknown_position(store: Store, projection: Projection, name: str, position: str) -> UsageError:
    names = projection.reads
    possible = _positions_of(store, names)
    shown = ", ".join(f"{epoch:,}" for epoch in possible[-_SHOWN:])
    earlier = f" and {len(possible) - _SHOWN} earlier ones" if len(possible) > _SHOWN else ""
    kept = f"; it is kept at its last steps: possible are epochs {shown}{earlier}" if possible else ""
    return UsageError(
        f"the result of projection {name!r}, which {projection.name!r} reads, is not kept as of {position}, and no"
        " loaded module defines it",
        hint=f"set projections.modules so that it can be computed again{kept}",
    )


def _positions_of(store: Store, names: Sequence[str]) -> list[int]:
    """The epochs at which these projections all have a result, and one of them a step."""
    live = [info for name in names if (info := live_of(store, name)) is not None]
    steps = [step for info in live for step in store.steps.list(info.projection, info.generation)]
    epochs = sorted({step.to_epoch for step in steps})
    return [epoch for epoch in epochs if all(result_at(store, name, epoch) for name in names)]


def _holds(store: Store, info: GenerationInfo, step: DerivedRun, epoch: int) -> bool:
    """Whether none of the step's inputs changed since, up to an epoch."""
    if step.to_epoch == epoch:
        return True
    if info.as_of is not None:
        return False
    topics = tuple(TopicId.parse(need.topic) for need in info.inputs)
    if changed_topics(store, topics, step.to_epoch, epoch):
        return False
    return all(
        store.derived.live(name) == generation
        and (at := result_at(store, name, epoch)) is not None
        and not _steps_between(store, name, step.to_epoch, at)
        for name, generation in files_of(step).results.items()
    )


def _steps_between(store: Store, name: str, epoch: int, at: ResultStep) -> list[DerivedRun]:
    """The steps after an epoch and up to that of a later result."""
    found = store.steps.list(name, at.info.generation, after=epoch)
    return [step for step in found if step.to_epoch <= at.step.to_epoch]


def common_cut(store: Store, projection: Projection, cut: Cut) -> Cut:
    """The latest position up to ``cut`` at which all results that a projection reads are known.

    Raises IncompleteTopic when there is none: one was never built, or is ahead of the others.
    """
    names = projection.reads
    if all(result_at(store, name, cut.epoch) for name in names):
        return cut
    stand = {}
    for name in names:
        info = live_of(store, name)
        last = store.steps.last(name, info.generation) if info else None
        if last is None:
            raise IncompleteTopic(
                f"projection {name!r}, which it reads, was never built", hint=f"tailrace run --once {name}"
            )
        stand[name] = last.to_epoch
    lowest = min(stand.values())
    if lowest < cut.epoch and all(result_at(store, name, lowest) for name in names):
        return store.cut(lowest)
    positions = ", ".join(f"{name} at epoch {epoch}" for name, epoch in stand.items())
    raise IncompleteTopic(
        f"the results that it reads are not all known at one position: {positions}",
        hint=f"refresh them together: tailrace run --once {' '.join([*names, projection.name])}",
    )


def lagging_results(store: Store, projection: Projection, cut: Cut) -> dict[str, int]:
    """The results that a projection reads and that have not reached a cut, with the epochs where they stand."""
    found = {}
    for name in projection.reads:
        info = live_of(store, name)
        last = store.steps.last(name, info.generation) if info else None
        if last is not None and last.to_epoch < cut.epoch and not result_at(store, name, cut.epoch):
            found[name] = last.to_epoch
    return found


def plan_result(store: Store, name: str, cut: Cut, generation: int | None = None) -> ResultInput:
    """A projection's result at a cut, of its live generation or another. Raises IncompleteTopic when it is not
    known."""
    at = result_in(store, name, cut, generation)
    if at is None:
        raise IncompleteTopic(
            f"the result of projection {name!r} at epoch {cut.epoch} is not known",
            hint=f"results are kept at the last steps only: tailrace run --once {name}",
        )
    return result_of(at.info, at.step)


def describe_result(store: Store, name: str) -> ResultInput:
    """A projection's result without its rows, with the columns of the live generation. Raises IncompleteTopic when it
    was never built."""
    info = live_of(store, name)
    if info is None:
        raise IncompleteTopic(
            f"projection {name!r} was never built, so its columns are not known",
            hint=f"tailrace rebuild {name}",
        )
    return result_of(info, None)


def result_of(info: GenerationInfo, step: DerivedRun | None) -> ResultInput:
    """The result after a step of a generation; None: without rows."""
    files = files_of(step) if step else None
    buckets = files.buckets if files else {}
    return ResultInput(
        projection=info.projection,
        generation=info.generation,
        epoch=step.to_epoch if step else 0,
        schema=schema_from_bytes(info.schema),
        key=info.key,
        partitions=info.partitions,
        split=info.split,
        placed=tuple(sorted(buckets.items(), key=lambda item: item[0])),
        rows=files.rows if files else 0,
    )


def results_at(
    store: Store, projection: Projection, cut: Cut, computed_inputs: Mapping[str, Projection] | None = None
) -> dict[str, int]:
    """The generation of each result that a projection reads at a cut. Projections in ``computed_inputs`` are computed:
    the results that they read count in their place."""
    generations: dict[str, int] = {}
    for name in projection.reads:
        if computed_inputs and name in computed_inputs:
            generations |= results_at(store, computed_inputs[name], cut, computed_inputs)
        else:
            generations[name] = plan_result(store, name, cut).generation
    return generations


def changed_results(
    store: Store, projection: Projection, epoch: int, cut: Cut, read: Mapping[str, int]
) -> list[str]:
    """The projections among those that one reads that were refreshed between an epoch, at which these generations were
    ``read``, and a cut. A refresh without a changed row counts: what reads it moves on too, and says how far it is."""
    found = []
    for name in projection.reads:
        at = result_at(store, name, cut.epoch)
        if at is None or read.get(name) != at.info.generation or _steps_between(store, name, epoch, at):
            found.append(name)
    return found


def reason_against_results(
    store: Store, projection: Projection, epoch: int, cut: Cut, read: Mapping[str, int]
) -> str | None:
    """Why results cannot be followed from an epoch, at which these generations were ``read``, to a cut."""
    for name in projection.reads:
        at = plan_result(store, name, cut)
        if read.get(name) != at.generation:
            return f"projection {name} was rebuilt (generation {at.generation})"
        if result_at(store, name, epoch) is None:
            return f"what projection {name} was at epoch {epoch} is not kept any more"
    return None


def changed_keys_of(store: Store, name: str, epoch: int, cut: Cut, most: int) -> pa.Table | None:
    """The rows of a result that differ between an epoch and a cut, deleted ones too: ``_hash`` and the key columns.
    None when they are more than ``most``."""
    at = result_at(store, name, cut.epoch)
    assert at is not None, "the caller chose a cut at which it is known"
    schema, key = schema_from_bytes(at.info.schema), at.info.key
    files = [file for step in _steps_between(store, name, epoch, at) for file in files_of(step).deltas]
    if sum(file.rows for file in files) > most:
        return None
    names = [HASH, *key]
    pieces = [run_schema(schema).empty_table().select(names)]
    for file in files:
        upserts, deletes = read_delta(store.storage, file, schema, key)
        pieces += [upserts.select(names), deletes.select(names)]
    return pa.concat_tables(pieces)


def changed_topics(store: Store, topics: Iterable[TopicId], after: int, up_to: int) -> list[str]:
    """The topics with rows in epochs after ``after`` and up to ``up_to``."""
    if up_to <= after:
        return []
    changed = []
    for topic in topics:
        first = store.look.answer(
            ("first_epoch", topic.text, after, up_to), partial(_first_epoch, store, topic, after)
        )
        if first is not None and first <= up_to:
            changed.append(str(topic))
    return changed


def _first_epoch(store: Store, topic: TopicId, after: int) -> int | None:
    """The first epoch after ``after`` with rows of a topic."""
    found = store.epochs(after=after, limit=1, topics=[topic])
    return found[0].epoch if found else None
