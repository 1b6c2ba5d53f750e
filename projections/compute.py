"""Compute a projection's result in Spark and write what changed, bucket by bucket (steps 7 and 8).

The result goes through two tasks in Python: one adds each row's key hash and bucket, the other takes one whole bucket,
compares it with the generation's own result before and writes the files. Only file names and counts come back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from eventstore import disclosure, failpoints, keys
from eventstore.attempts import is_by
from eventstore.errors import TailraceError
from eventstore.storage import Storage
from projections.derived import (
    NO_FILES,
    BucketFiles,
    DerivedFile,
    Some,
    read_result,
    read_some,
    run_schema,
    settled,
    write_delta,
    write_run,
)
from projections.difference import (
    HASH,
    Difference,
    Row,
    difference,
    ordered,
    repeated,
    versions,
    with_null_key,
)
from projections.failure import explained
from projections.model import Projection, ProjectionFailed
from projections.sampling import Choice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from projections.generation import Generation

BUCKET = "_bucket"
_SAMPLES = 5
_MOST_SHOWN = 200  # characters or bytes of a value
_RESULT = "bucket int, outcome string"


def define(projection: Projection, frames: Mapping[str, DataFrame], now: datetime | None) -> DataFrame:
    """Call the projection's function. ``now`` is the commit time of the position, the epoch's start for an empty log.

    Raises ProjectionFailed, with the user's file and line, when the function raises or gives no DataFrame.
    """
    from pyspark.sql import DataFrame

    arguments: dict[str, Any] = dict(frames)
    if projection.wants_now:
        arguments["now"] = now or datetime.fromtimestamp(0, UTC)
    with explained(projection, "defining its result"):
        result = projection.function(**arguments)
        if isinstance(result, DataFrame):
            _ = result.schema  # Connect analyses here, classic did on the way
    if not isinstance(result, DataFrame):
        raise ProjectionFailed(
            f"projection {projection.name!r} ({projection.place}) returned {type(result).__name__}, not a DataFrame",
            hint="return the DataFrame that holds the rows for the sink",
        )
    return result


def output_schema(projection: Projection, result: DataFrame) -> pa.Schema:
    """The result's columns as Arrow: what files and sinks hold. Raises ProjectionFailed for a result that cannot be
    kept: key columns missing or not plain values, repeated or reserved names, types without an Arrow twin."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    names = result.columns
    missing = [name for name in projection.key if name not in names]
    if missing:
        raise _unfit(
            projection,
            f"its output lacks its key: no column {', '.join(missing)} among {', '.join(names) or 'none'}",
            "name the column in the result (for example .alias('customer_id')) or change key=",
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _unfit(
            projection, f"its output has two columns {', '.join(twice)}", "select one, or rename one"
        )
    reserved = sorted({HASH, BUCKET, "_op", "_epoch", "_deleted"} & set(names))
    if reserved:
        raise _unfit(
            projection, f"its output uses the reserved name {', '.join(reserved)}", "rename the column"
        )
    try:
        arrow: pa.Schema = to_arrow_schema(result.schema, timezone="UTC")
    except PySparkException as error:
        raise _unfit(projection, f"its output has a type that cannot be kept: {error}", "cast it") from error
    schema = pa.schema([pa.field(field.name, _kept(field.type)) for field in arrow])
    for name in projection.key:
        if pa.types.is_nested(schema.field(name).type):
            kind = schema.field(name).type
            raise _unfit(projection, f"its key column {name} is a {kind}", "a key is made of plain values")
    for name in projection.tolerance:
        if name not in names or not pa.types.is_floating(schema.field(name).type):
            raise _unfit(
                projection,
                f"tolerance names {name!r}, which is no float or double of its output",
                "correct it",
            )
    return schema


def require_schema(projection: Projection, expected: pa.Schema, holder: str, result: DataFrame) -> None:
    """Raises ProjectionFailed when the result's columns are not those that ``holder``, a generation, has."""
    found = output_schema(projection, result)
    if not found.equals(expected):
        raise ProjectionFailed(
            f"projection {projection.name!r} ({projection.place}): its output columns are no longer those of"
            f" {holder}: {_columns(found)} instead of {_columns(expected)}",
            hint=f"an input or the code changed them: tailrace rebuild {projection.name}",
        )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _kept(kind: pa.DataType) -> pa.DataType:
    """Spark's Arrow types as they are kept: its times have microseconds, though it sends them as nanoseconds."""
    if pa.types.is_time64(kind):
        return pa.time64("us")
    if pa.types.is_list(kind):
        return pa.list_(_kept(kind.value_type))
    return kind


def _unfit(projection: Projection, what: str, hint: str) -> ProjectionFailed:
    return ProjectionFailed(f"{_named(projection)}: {what}", hint=hint)


def _named(projection: Projection) -> str:
    return f"projection {projection.name!r} ({projection.place})"


@dataclass(frozen=True, slots=True)
class Placement:
    """How rows are told apart and spread over buckets. With a ``choice`` of keys the others' rows are left out."""

    schema: pa.Schema
    key: tuple[str, ...]
    partitions: int
    split: int
    choice: Choice | None = None

    @property
    def buckets(self) -> range:
        return range(self.partitions * self.split)

    def hashed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Spark task: add ``_hash`` and ``_bucket`` to each row."""
        for every in batches:
            batch, hashes = self.chosen(every)
            buckets = pa.array(keys.buckets_of(hashes, self.partitions, self.split))
            yield batch.append_column(HASH, hashes).append_column(BUCKET, buckets)

    def chosen(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Int64Array]:
        """The rows that are looked at, and the hash of each one's key."""
        hashes = self.hashes(batch)
        if self.choice is None:
            return batch, hashes
        chosen = pa.array(self.choice.chosen(hashes.to_numpy()))
        return batch.filter(chosen), hashes.filter(chosen)

    def hashes(self, batch: pa.RecordBatch) -> pa.Int64Array:
        columns = (batch.column(name).cast(self.schema.field(name).type) for name in self.key)
        return keys.hash_columns([keys.texts(column) for column in columns])

    def rows(self, group: pa.Table) -> pa.Table:
        """A bucket's rows in the kept types, ordered."""
        return ordered(group.select([HASH, *self.schema.names]).cast(run_schema(self.schema)), self.key)


def placement_of(generation: Generation) -> Placement:
    return Placement(generation.schema, generation.key, generation.partitions, generation.split)


@dataclass(frozen=True, slots=True)
class RowSample:
    """A row that was found: ``kind`` says as what, ``key`` is its key, ``old`` and ``new`` its other values before and
    now where these are what was found, None for no row; of a row that was there before and is now only the values that
    differ. All as JSON, long texts cut."""

    kind: str
    key: str
    old: str | None = None
    new: str | None = None


@dataclass(frozen=True, slots=True)
class BucketOutcome:
    """What the task of one bucket found. ``only_new``, ``only_old`` and ``different`` count rows by how they differ
    from the result before; of each kind some are among the samples. ``files`` hold the bucket now, None: those of
    before. With ``nulls`` or ``repeats`` nothing was written."""

    bucket: int
    rows: int = 0
    nulls: int = 0
    repeats: int = 0
    only_new: int = 0
    only_old: int = 0
    different: int = 0
    samples: tuple[RowSample, ...] = ()
    files: BucketFiles | None = None
    delta: DerivedFile | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> BucketOutcome:
        data = json.loads(text)
        data["delta"] = DerivedFile(**data["delta"]) if data["delta"] else None
        data["files"] = BucketFiles.from_data(data["files"]) if data["files"] else None
        data["samples"] = tuple(RowSample(**sample) for sample in data["samples"])
        return cls(**data)


@dataclass(frozen=True, slots=True)
class BucketTask:
    """Compares one bucket with the result before (``previous``, by bucket) and, with ``folder``, writes its files.
    ``attempt`` makes their names unique. ``afresh`` leaves no overlay, so that no file holds a value of before. Pickles
    into Spark tasks; needs no catalog."""

    storage: Storage
    placement: Placement
    previous: Mapping[int, BucketFiles]
    tolerance: Mapping[str, float]
    folder: str | None
    attempt: str
    afresh: bool = False

    def of_group(self, group: pa.Table) -> pa.Table:
        """Spark task: all rows of one bucket."""
        bucket = group[BUCKET][0].as_py()
        outcome = self.settle(bucket, self.placement.rows(group))
        return pa.table({"bucket": pa.array([bucket], pa.int32()), "outcome": [outcome.to_json()]})

    def discard(self) -> None:
        """Remove what was written: no step will name it, and where there is no room it would keep the next one from it.
        What a task still writes after that, ``gc`` removes."""
        if self.folder is None:
            return
        with suppress(TailraceError):
            for path in [path for path in self.storage.list(self.folder) if is_by(path, self.attempt)]:
                self.storage.delete(path)

    def settle(self, bucket: int, rows: pa.Table, some: Some | None = None) -> BucketOutcome:
        """The whole work on one bucket's ordered rows. With ``some`` they are the result's rows of some keys, to be
        compared with those of the result before."""
        key, schema = self.placement.key, self.placement.schema
        bad = with_bad_keys(bucket, rows, key)
        if bad is not None:
            return bad
        before = self.previous.get(bucket, NO_FILES)
        choice = self.placement.choice
        if some is None and choice is not None:
            some = Some(lambda table: choice.chosen(table[HASH].to_numpy()))
        if some is None:
            old = read_result(self.storage, before, schema, key)
        else:
            old = read_some(self.storage, before, schema, key, some)
        found = difference(old, rows, key, self.tolerance)
        if found.is_empty and not (self.afresh and before.overlays):
            return BucketOutcome(bucket, rows.num_rows)
        outcome = BucketOutcome(
            bucket,
            rows.num_rows,
            only_new=found.added.num_rows,
            only_old=found.deletes.num_rows,
            different=found.changed.num_rows,
        )
        if self.folder is None:
            return replace(outcome, samples=_row_samples(found, old, key))
        files, delta = self._write(bucket, before, found, found.result if some is None else None)
        failpoints.hit("derived_written")
        return replace(outcome, files=files, delta=delta)

    def _write(
        self, bucket: int, before: BucketFiles, found: Difference, result: pa.Table | None
    ) -> tuple[BucketFiles, DerivedFile | None]:
        """The bucket's files after the step and its delta; a first build's run is its delta, so rows are written once.
        ``result``: the bucket's rows, when they are known."""
        key, schema = self.placement.key, self.placement.schema
        stem = f"{self.folder}/{bucket:04d}-{self.attempt}-{_unique()}"
        if before == NO_FILES:
            run = write_run(self.storage, f"{stem}.run.parquet", bucket, found.result)
            return BucketFiles(run), run
        delta = None
        files = before
        if not found.is_empty:
            delta = write_delta(self.storage, f"{stem}.delta.parquet", bucket, found, key)
            files = BucketFiles(before.run, (*before.overlays, delta))
        if self.afresh and result is not None:
            return BucketFiles(write_run(self.storage, f"{stem}.run.parquet", bucket, result)), delta
        stem = f"{self.folder}/{bucket:04d}-{self.attempt}-{_unique()}"
        return settled(self.storage, files, stem, bucket, schema, key, result), delta


def _unique() -> str:
    """Different in each attempt of a task: Spark may run one twice, and files are never overwritten."""
    import secrets

    return secrets.token_hex(4)


def _key_samples(kind: str, rows: pa.Table, key: Sequence[str], at: Any) -> tuple[RowSample, ...]:
    chosen = rows.select(list(key)).take(pa.array(at[:_SAMPLES]))
    return tuple(RowSample(kind, _as_json(row)) for row in chosen.to_pylist())


def _row_samples(found: Difference, old: pa.Table, key: Sequence[str]) -> tuple[RowSample, ...]:
    samples = []
    for before, after in versions(found, old, key, _SAMPLES):
        kind = "only_new" if before is None else "only_old" if after is None else "different"
        row = before or after or {}
        named = _as_json({name: row[name] for name in key})
        shown = [
            name
            for name in row
            if name not in key and (not before or not after or before[name] != after[name])
        ]
        samples.append(RowSample(kind, named, _version(before, shown), _version(after, shown)))
    return tuple(samples)


def _version(row: Row | None, shown: Sequence[str]) -> str | None:
    return None if row is None else _as_json({name: _cut(row[name]) for name in shown})


def _cut(value: object) -> object:
    if isinstance(value, str | bytes) and len(value) > _MOST_SHOWN:
        return f"{value[:_MOST_SHOWN]!s}… ({len(value):,} long)"
    return value


def _as_json(row: Row) -> str:
    return json.dumps(row, default=str, ensure_ascii=False)


def compute(projection: Projection, result: DataFrame, task: BucketTask) -> list[BucketOutcome]:
    """Run the result through the task: one outcome for every bucket, also for those without rows.

    Raises ProjectionFailed when the function's code fails or rows have no key or a key twice; whatever it raises, files
    that were written by then are removed.
    """
    try:
        return _compute(projection, result, task)
    except BaseException:
        task.discard()
        raise


def _compute(projection: Projection, result: DataFrame, task: BucketTask) -> list[BucketOutcome]:
    placement = task.placement
    with explained(projection, "computing its result"):
        grouped = _hashed(result, placement).groupBy(BUCKET)
        # A plain function: Spark counts the parameters of what it is given, and ``self`` as one of them.
        settled: pa.Table = grouped.applyInArrow(lambda group: task.of_group(group), _RESULT).toArrow()
    outcomes = {
        outcome.bucket: outcome for outcome in map(BucketOutcome.from_json, settled["outcome"].to_pylist())
    }
    empty = run_schema(placement.schema).empty_table()
    for bucket in placement.buckets:
        if bucket not in outcomes:
            outcomes[bucket] = task.settle(bucket, empty)
    ordered_outcomes = [outcomes[bucket] for bucket in sorted(outcomes)]
    refuse_bad_keys(projection, ordered_outcomes)
    return ordered_outcomes


def keyed(projection: Projection, result: DataFrame, split: int, partitions: int) -> DataFrame:
    """A result as an input of another projection: its rows in the types they are kept in, once each of them is known to
    have a key of its own. What is wrong with one raises ProjectionFailed in the task."""
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    schema = output_schema(projection, result)
    spark_schema = from_arrow_schema(schema)
    arrow = to_arrow_schema(spark_schema, timezone="UTC")
    placement = Placement(schema, projection.key, partitions, split)
    named = _named(projection)  # the function and the sink may not be importable in a task

    def checked(group: pa.Table) -> pa.Table:
        rows = placement.rows(group)
        bad = with_bad_keys(0, rows, placement.key)
        if bad is not None:
            raise _refused(named, placement.key, [bad])
        return rows.select(arrow.names).cast(arrow)

    return _hashed(result, placement).groupBy(BUCKET).applyInArrow(checked, spark_schema)


def _hashed(result: DataFrame, placement: Placement) -> DataFrame:
    from pyspark.sql.types import IntegerType, LongType, StructField, StructType

    fields = [*result.schema.fields, StructField(HASH, LongType()), StructField(BUCKET, IntegerType())]
    return result.mapInArrow(placement.hashed, StructType(fields))


def with_bad_keys(bucket: int, rows: pa.Table, key: Sequence[str]) -> BucketOutcome | None:
    """What is wrong with the keys of a bucket's ordered rows: NULL, or there twice. None when nothing is."""
    nulls, repeats = with_null_key(rows, key), repeated(rows, key)
    if not len(nulls) and not len(repeats):
        return None
    samples = _key_samples("null", rows, key, nulls) + _key_samples("repeated", rows, key, repeats)
    return BucketOutcome(bucket, rows.num_rows, nulls=len(nulls), repeats=len(repeats), samples=samples)


def refuse_bad_keys(projection: Projection, outcomes: Sequence[BucketOutcome]) -> None:
    """Raises ProjectionFailed when rows have no key or a key twice."""
    if any(outcome.nulls or outcome.repeats for outcome in outcomes):
        raise _refused(_named(projection), projection.key, outcomes)


def _refused(named: str, key_columns: Sequence[str], outcomes: Sequence[BucketOutcome]) -> ProjectionFailed:
    nulls = sum(outcome.nulls for outcome in outcomes)
    repeats = sum(outcome.repeats for outcome in outcomes)
    key = ", ".join(key_columns)
    kind, count, what, hint = (
        (
            "null",
            nulls,
            f"{nulls} rows have NULL in their key ({key})",
            "filter them out or give them a value",
        )
        if nulls
        else (
            "repeated",
            repeats,
            f"{repeats} rows repeat a key ({key}) that an earlier row has",
            "group by the key, or add the columns to key= that tell the rows apart",
        )
    )
    keys_text = [found.key for outcome in outcomes for found in outcome.samples if found.kind == kind]
    shown = ", ".join(map(disclosure.value, keys_text[:_SAMPLES]))
    rest = f" and {count - _SAMPLES} more" if count > _SAMPLES else ""
    return ProjectionFailed(f"{named}: {what}: {shown}{rest}", hint=f"{hint}; the sink was not touched")
