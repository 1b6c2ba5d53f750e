"""Compare two generations of a projection: what a new definition, or another position, changes.

The results in the log are compared, bucket by bucket. Neither sinks nor Spark are needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.model import keys
from tailrace.eventstore.storage import Storage
from tailrace.projections.context import ProjectionContext
from tailrace.projections.generations.difference import HASH, TableDifference, difference, sort_rows, versions
from tailrace.projections.generations.generation import Generation, files_of
from tailrace.projections.generations.step_files import NO_FILES, BucketFiles, read_result
from tailrace.projections.sinks.reader import Row

_SAMPLES = 10


@dataclass(frozen=True, slots=True)
class Sample:
    """A key, with its row in the one and in the other generation (None: it has none)."""

    key: Row
    first: Row | None
    second: Row | None


@dataclass(slots=True)
class GenerationDiff:
    """How the result of generation ``second`` differs from that of ``first``, each at its own epoch. ``only_columns``
    are the columns that one of them alone has, or that have another type there; they are not compared."""

    projection: str
    first: int
    second: int
    epochs: tuple[int, int]
    only_columns: tuple[tuple[str, ...], tuple[str, ...]]
    rows: tuple[int, int] = (0, 0)
    only_in_first: int = 0
    only_in_second: int = 0
    different: int = 0
    samples: list[Sample] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        rows = self.only_in_first or self.only_in_second or self.different
        return not rows and self.only_columns == ((), ())


def diff(ctx: ProjectionContext, name: str, first: int, second: int) -> GenerationDiff:
    """Compare the results of two generations.

    Raises UsageError for a generation that is not there or has no result yet, and for two with different keys;
    IntegrityError when a file is damaged.
    """
    ctx.check_known(name)
    sides = [_Side.of(ctx, ctx.generation(name, number)) for number in (first, second)]
    left, right = sides
    _check_keys(left.generation, right.generation)
    common = [column for column in left.schema if column in list(right.schema)]
    names = [column.name for column in common]
    total = GenerationDiff(
        projection=name,
        first=first,
        second=second,
        epochs=(left.epoch, right.epoch),
        only_columns=(
            tuple(column.name for column in left.schema if column not in common),
            tuple(column.name for column in right.schema if column not in common),
        ),
    )
    projection = ctx.projections.get(name)
    tolerance = dict(projection.tolerance) if projection is not None else {}
    key = left.generation.key
    buckets = left.buckets
    for bucket in range(buckets):
        ctx.report(f"comparing g{first} and g{second} of {name}", bucket, buckets, "buckets")
        one, other = left.rows(bucket, left.generation, names), right.rows(bucket, left.generation, names)
        total.rows = (total.rows[0] + one.num_rows, total.rows[1] + other.num_rows)
        _add(total, difference(one, other, key, tolerance), one, key)
    return total


class BucketSplit(NamedTuple):
    """How keys are spread over buckets (``keys.bucket_of``). ``split`` is a power of two."""

    partitions: int
    split: int


def overlapping_buckets(bucket: int, cut: BucketSplit, own: BucketSplit) -> list[int]:
    """The buckets of ``own`` that may have keys of a bucket of ``cut``. With another number of partitions these are
    all; else those in the same part of the same partition, as far as the coarser split tells parts apart."""
    buckets = range(own.partitions * own.split)
    if own.partitions != cut.partitions:
        return list(buckets)
    coarser = min(own.split, cut.split)
    place = (bucket // cut.split, bucket % cut.split % coarser)
    return [each for each in buckets if (each // own.split, each % own.split % coarser) == place]


@dataclass(frozen=True, slots=True)
class _Side:
    generation: Generation
    storage: Storage
    epoch: int
    files: Mapping[int, BucketFiles]

    @classmethod
    def of(cls, ctx: ProjectionContext, generation: Generation) -> _Side:
        step = ctx.store.steps.last(generation.projection, generation.number)
        if step is None:
            raise UsageError(
                f"{generation} has no result yet", hint=f"tailrace rebuild {generation.projection}"
            )
        return cls(generation, ctx.store.storage, step.to_epoch, files_of(step).buckets)

    @property
    def schema(self) -> pa.Schema:
        return self.generation.schema

    @property
    def buckets(self) -> int:
        return self.generation.partitions * self.generation.split

    def rows(self, bucket: int, spread: Generation, names: Sequence[str]) -> pa.Table:
        """The rows of a bucket as ``spread`` splits keys, with these columns, ordered."""
        own, cut = (BucketSplit(each.partitions, each.split) for each in (self.generation, spread))
        pieces = [self._table(NO_FILES)]
        for each in overlapping_buckets(bucket, cut, own):
            table = self._table(self.files.get(each, NO_FILES))
            pieces.append(table if own == cut else table.filter(_bucket_mask(table, bucket, spread)))
        return sort_rows(pa.concat_tables(pieces).select([HASH, *names]), self.generation.key)

    def _table(self, files: BucketFiles) -> pa.Table:
        return read_result(self.storage, files, self.schema, self.generation.key)


def _bucket_mask(table: pa.Table, bucket: int, spread: Generation) -> pa.Array:
    buckets = keys.buckets_of(table[HASH].combine_chunks(), spread.partitions, spread.split)
    return pc.equal(pa.array(buckets), bucket)


def _check_keys(first: Generation, second: Generation) -> None:
    kept = [[(name, each.schema.field(name).type) for name in each.key] for each in (first, second)]
    if kept[0] != kept[1]:
        texts = [", ".join(f"{name} {kind}" for name, kind in columns) for columns in kept]
        raise UsageError(
            f"{first} is keyed by ({texts[0]}), generation {second.number} by ({texts[1]}): no row of the one is a row"
            " of the other",
            hint="compare generations of one key",
        )


def _add(total: GenerationDiff, part: TableDifference, first: pa.Table, key: Sequence[str]) -> None:
    total.only_in_first += part.deletes.num_rows
    total.only_in_second += part.added.num_rows
    total.different += part.changed.num_rows
    left = max(0, _SAMPLES - len(total.samples))
    for before, after in versions(part, first, key, left)[:left]:
        row = before or after or {}
        total.samples.append(Sample({name: row[name] for name in key}, before, after))
