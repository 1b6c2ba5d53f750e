"""Retention against models: any history under any policy at any moment says what it said before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.eventstore.maintenance.state_runs.write import survival_mask, survivors, unsent_columns
from tailrace.eventstore.model.schema import Column, TopicSchema, unify
from tailrace.eventstore.model.segment_ref import PartitionRange, SegmentRef
from tailrace.eventstore.segment import segment
from tailrace.eventstore.segment.segment import read_segment
from tailrace.eventstore.state.input import StateInput
from tailrace.eventstore.storage import LocalStorage
from tests.eventstore.bucket_state import compute_state
from tests.eventstore.histories import state_input
from tests.eventstore.state.test_compaction import KEYS, STEPS, change, history_of

# Each example computes many states.
FEW = settings(max_examples=20)
# A history, its hashes modulo so many, its partitions, and what buckets are split into.
SHAPES = (STEPS, st.sampled_from([0, 2]), st.sampled_from([1, 3]), st.sampled_from([1, 2]))
NOWHERE = LocalStorage(Path("/nonexistent"))


def at_epoch(whole: StateInput, refs: Sequence[SegmentRef]) -> StateInput:
    """As planned at a cut: under the versions that there are by then."""
    target = unify([whole.versions[ref.version] for ref in refs]) if refs else whole.target
    return replace(
        whole, refs=tuple(refs), target=target, columns=tuple(column.name for column in target.columns)
    )


def run_of(
    whole: StateInput, refs: Sequence[SegmentRef], before: Sequence[SegmentRef] = (), after: int = 0
) -> list[SegmentRef]:
    """The state run of ``refs``, in memory; ``before``: what makes the state up to the epoch ``after``."""
    wanted = replace(at_epoch(whole, [*before, *refs]), refs=tuple(refs))
    unsent = unsent_columns(NOWHERE, refs)
    names = tuple(column.name for column in wanted.target.columns if column.id in unsent)
    surviving = survivors(NOWHERE, replace(wanted, columns=names), range(wanted.partitions), before, after)
    found = []
    for ref in refs:
        rows = read_segment(NOWHERE, ref)
        parts = []
        for partition in range(wanted.partitions):
            mine = rows.filter(pc.equal(rows["_partition"], partition))
            parts.append(mine.filter(survival_mask(mine, surviving)))
        left = pa.concat_tables(parts)
        if left.num_rows:
            ranges = tuple(
                PartitionRange(partition, part["_offset"][0].as_py(), part.num_rows)
                for partition, part in enumerate(parts)
                if part.num_rows
            )
            data = segment.encode_part(left).to_pybytes()
            found.append(replace(ref, rows=left.num_rows, ranges=ranges, inline=data, sealed=True))
    return found


def assert_runs_say_the_same(whole: StateInput, cuts: Sequence[int]) -> None:
    """A run, and a run made of that run, with all that follows make every later state."""
    refs = list(whole.refs)
    last = max((ref.last_epoch for ref in refs), default=0)
    left = refs
    for cut in sorted(cuts):
        run = run_of(whole, [ref for ref in left if ref.last_epoch <= cut])
        left = [*run, *(ref for ref in left if ref.first_epoch > cut and ref.last_epoch > cut)]
        for epoch in {cut, min(cut + 1, last), last} if cut <= last else {last}:
            before = at_epoch(whole, [ref for ref in refs if ref.last_epoch <= epoch])
            after = replace(before, refs=tuple(ref for ref in left if ref.last_epoch <= epoch))
            for bucket in range(whole.buckets):
                expected, found = (
                    compute_state(NOWHERE, before, bucket),
                    compute_state(NOWHERE, after, bucket),
                )
                assert found.equals(expected), (cut, epoch)


def assert_runs_stand_for_their_epochs(whole: StateInput, cuts: Sequence[int]) -> None:
    """Runs that go on from one another make, with all that follows, every later state; also when retention cut through
    one of them: but for the first, which begins with the log and is read whole (``runs.chain``)."""
    refs = list(whole.refs)
    made: list[SegmentRef] = []
    after = 0
    for cut in cuts:
        made += run_of(whole, [ref for ref in refs if after < ref.last_epoch <= cut], list(made), after)
        after = cut
    last = max((ref.last_epoch for ref in refs), default=0)
    ways = [made]
    for cut in {cuts[0], after - 1}:
        base = run_of(whole, [ref for ref in refs if ref.last_epoch <= cut])
        later = [replace(r, first_epoch=max(r.first_epoch, cut + 1)) for r in made if r.last_epoch > cut]
        ways.append([*base, *later])
    for epoch in {after, after + 1, last}:
        before = at_epoch(whole, [ref for ref in refs if ref.last_epoch <= epoch])
        rest = [ref for ref in before.refs if ref.last_epoch > after]
        for bucket in range(whole.buckets) if epoch >= after else ():
            expected = compute_state(NOWHERE, before, bucket)
            for way in ways:
                found = compute_state(NOWHERE, replace(before, refs=(*way, *rest)), bucket)
                assert found.equals(expected), (epoch, len(way))


@FEW
@given(
    *SHAPES,
    st.sets(st.integers(1, 8), min_size=2, max_size=3),
)
def test_state_runs_that_go_on_from_one_another_make_every_later_state(
    steps: list[tuple[Any, ...]], hash_modulus: int, partitions: int, split: int, cuts: set[int]
) -> None:
    assert_runs_stand_for_their_epochs(
        history_of(steps, hash_modulus).state_input(partitions, split), sorted(cuts)
    )


@FEW
@given(
    *SHAPES,
    st.sets(st.integers(1, 6), min_size=1, max_size=3),
)
def test_a_state_run_and_what_follows_make_every_later_state(
    steps: list[tuple[Any, ...]], hash_modulus: int, partitions: int, split: int, cuts: set[int]
) -> None:
    """With cells that were never sent, keys that move, truncates, deletes and columns that are added."""
    assert_runs_say_the_same(history_of(steps, hash_modulus).state_input(partitions, split), sorted(cuts))


@FEW
@given(
    st.lists(st.sampled_from(["c", "c", "r", "d", "t"]).flatmap(lambda op: st.tuples(st.just(op), KEYS))),
    st.sets(st.integers(1, 8), min_size=1, max_size=3),
)
def test_a_state_run_of_a_bag_has_as_many_of_each_row(changes: list[tuple[str, int]], cuts: set[int]) -> None:
    schema = TopicSchema(version=1, columns=(Column(1, "n", 23, key=True),), bag=True)
    left: Counter[int] = Counter()
    epochs = []
    for at_, (op, n) in enumerate(changes):
        if op == "t":
            left.clear()
        elif op == "d" and not left[n]:
            continue
        else:
            left[n] += -1 if op == "d" else 1
        cells = None if op == "t" else {"n": n}
        row = change(op, None, cells if op in "cr" else None, hash_=n % 2) | {"key": cells, "_lsn": at_}
        epochs.append((schema, [row]))
    assert_runs_say_the_same(state_input(epochs, 2), sorted(cuts))
