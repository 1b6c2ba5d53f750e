"""What leads from the result after one step to the result after another, as records, bucket by bucket.

In one generation these are the deltas of the steps between: the last word on each key. Between two generations, or from
nothing, it is the difference of the two results; equal rows are no part of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.errors import HistoryGone
from tailrace.eventstore.model import keys
from tailrace.eventstore.storage import Storage
from tailrace.eventstore.store import Store
from tailrace.projections.generations.difference import HASH
from tailrace.projections.generations.generation import files_of
from tailrace.projections.generations.result_input import ResultInput, ResultStep, result_of
from tailrace.projections.generations.step_files import DerivedFile, read_overlay
from tailrace.projections.publishing.row_records import changed_records, tombstones, upsert_records


@dataclass(frozen=True, slots=True)
class Change:
    """``before`` is None where nothing was. ``deltas`` by bucket of ``after``, oldest first; None: both results are
    compared."""

    storage: Storage
    before: ResultInput | None
    after: ResultInput
    deltas: Mapping[int, Sequence[DerivedFile]] | None

    @property
    def buckets(self) -> list[int]:
        """Those of ``after`` that may have a change, in their order."""
        if self.deltas is not None:
            return sorted(self.deltas)
        return list(range(self.after.buckets))

    def records(self, bucket: int) -> pa.Table:
        """``RECORDS``, in an order that is always the same."""
        key = self.after.key
        if self.deltas is not None:
            upserts, deletes = read_overlay(self.storage, self.deltas[bucket], self.after.schema, key)
            return pa.concat_tables(
                [upsert_records(upserts, key, bucket), tombstones(deletes, key, bucket)]
            ).combine_chunks()
        now = upsert_records(self.after.read(self.storage, bucket), key, bucket)
        return now if self.before is None else changed_records(self._before(self.before, bucket), now)

    def _before(self, before: ResultInput, bucket: int) -> pa.Table:
        """What was there of the keys of a bucket, which other generations may cut otherwise."""
        if (before.partitions, before.split) == (self.after.partitions, self.after.split):
            return upsert_records(before.read(self.storage, bucket), before.key, bucket)
        pieces = [
            _of_bucket(before.read(self.storage, each), self.after, bucket) for each, _ in before.placed
        ]
        found = [upsert_records(each, before.key, bucket) for each in pieces]
        return pa.concat_tables(found or [upsert_records(before.schema.empty_table(), before.key, bucket)])


def _of_bucket(rows: pa.Table, cut: ResultInput, bucket: int) -> pa.Table:
    places = keys.buckets_of(rows[HASH].combine_chunks(), cut.partitions, cut.split)
    return rows.filter(pc.equal(pa.array(places), bucket))


def change_between(store: Store, before: ResultStep | None, after: ResultStep) -> Change:
    """Raises HistoryGone when steps between are not kept any more."""
    now = result_of(after.info, after.step)
    if before is None:
        return Change(store.storage, None, now, None)
    was = result_of(before.info, before.step)
    if was.generation != now.generation:
        return Change(store.storage, was, now, None)
    return Change(store.storage, was, now, _deltas(store, before, after))


def _deltas(store: Store, before: ResultStep, after: ResultStep) -> dict[int, list[DerivedFile]]:
    name, number, at = after.info.projection, after.info.generation, before.step.to_epoch
    steps = [
        each for each in store.steps.list(name, number, after=at) if each.to_epoch <= after.step.to_epoch
    ]
    if steps and steps[0].from_epoch != at:
        raise HistoryGone(
            f"the steps of projection {name} behind epoch {at} are not kept any more",
            hint="look at its steps",
        )
    found: dict[int, list[DerivedFile]] = {}
    for step in steps:
        for file in files_of(step).deltas:
            found.setdefault(file.bucket, []).append(file)
    return found
