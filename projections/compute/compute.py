"""Compute a projection's result in Spark and write what changed, bucket by bucket (steps 7 and 8).

The result passes two Python tasks. The first adds the key hash and the bucket of each row. The second takes one whole
bucket, compares it with the result before, and writes the files.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore import disclosure
from tailrace.projections.compute.bucket import (
    BUCKET,
    SAMPLES,
    BucketOutcome,
    BucketTask,
    Placement,
    bad_keys,
)
from tailrace.projections.compute.progress import report_buckets
from tailrace.projections.definition.model import Projection, ProjectionFailed
from tailrace.projections.generations.difference import HASH
from tailrace.projections.generations.step_files import run_schema
from tailrace.projections.spark.errors import FOR_GOOD, translate_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tailrace.projections.context import Report


_RESULT = "bucket int, outcome string"


def define(projection: Projection, frames: Mapping[str, DataFrame], now: datetime | None) -> DataFrame:
    """Call the projection's function. ``now`` is the commit time of the position; None is 1970-01-01.

    Raises ProjectionFailed, with the user's file and line, when the function raises or gives no DataFrame.
    """
    from pyspark.sql import DataFrame

    arguments: dict[str, Any] = dict(frames)
    if projection.wants_now:
        arguments["now"] = now or datetime.fromtimestamp(0, UTC)
    with translate_errors(projection, "defining its result"):
        result = projection.function(**arguments)
        if isinstance(result, DataFrame):
            _ = result.schema  # Connect analyses here, classic did on the way
    if not isinstance(result, DataFrame):
        kind = type(result)
        returned = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        raise ProjectionFailed(
            f"projection {projection.name!r} ({projection.place}) returned {returned}, not a DataFrame of Spark",
            hint="return the DataFrame that holds the rows for the sink",
        )
    return result


def output_schema(projection: Projection, result: DataFrame) -> pa.Schema:
    """The result's columns as Arrow, as files and sinks hold them. Raises ProjectionFailed for a result that cannot be
    stored: key columns missing or nested, names that are reserved or repeated (or differ in case alone) or that Spark
    cannot read, types that Arrow does not have."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    names = result.columns
    missing = [name for name in projection.key if name not in names]
    if missing:
        raise _result_error(
            projection,
            f"its output lacks its key: no column {', '.join(missing)} among {', '.join(names) or 'none'}",
            "name the column in the result (for example .alias('customer_id')) or change key=",
            missing,
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _result_error(
            projection, f"its output has two columns {', '.join(twice)}", "select one, or rename one"
        )
    if unreadable := [name for name in names if "." in name or "`" in name]:
        raise _result_error(
            projection,
            f"its output has columns {', '.join(unreadable)}: Spark takes a dot or a backtick in a name for its own",
            "give them other names, for example F.col('`a.b`').alias('a_b'), or `a.b` AS a_b in SQL",
        )
    if confused := ambiguous_names(result.sparkSession, names):
        raise _result_error(
            projection,
            f"its output has columns {', '.join(confused)}, which Spark does not tell apart",
            "select one of them, or rename one so that it differs in more than case",
        )
    reserved = sorted({HASH, BUCKET, "_op", "_epoch", "_deleted"} & set(names))
    if reserved:
        raise _result_error(
            projection, f"its output uses the reserved name {', '.join(reserved)}", "rename the column"
        )
    try:
        arrow: pa.Schema = to_arrow_schema(result.schema, timezone="UTC")
    except PySparkException as error:
        raise _result_error(
            projection, f"its output has a type that cannot be kept: {error}", "cast it"
        ) from error
    schema = pa.schema([pa.field(field.name, _storage_type(field.type)) for field in arrow])
    for name in projection.key:
        if pa.types.is_nested(schema.field(name).type):
            kind = schema.field(name).type
            raise _result_error(
                projection, f"its key column {name} is a {kind}", "a key is made of plain values"
            )
    for name in projection.tolerance:
        if name not in names or not pa.types.is_floating(schema.field(name).type):
            raise _result_error(
                projection,
                f"tolerance names {name!r}, which is no float or double of its output",
                "correct it",
            )
    return schema


def require_schema(projection: Projection, expected: pa.Schema, holder: str, result: DataFrame) -> None:
    """Raises ProjectionFailed when the result's columns are not those of ``holder``, a generation."""
    found = output_schema(projection, result)
    if not found.equals(expected):
        raise ProjectionFailed(
            f"projection {projection.name!r} ({projection.place}): its output columns are no longer those of"
            f" {holder}: {_columns(found)} instead of {_columns(expected)}",
            hint=f"an input or the code changed them: tailrace rebuild {projection.name}",
            unknown=[name for name in expected.names if name not in found.names],
        )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _storage_type(kind: pa.DataType) -> pa.DataType:
    """Spark's Arrow types as they are stored. Its times have microseconds, but it sends them as nanoseconds."""
    if pa.types.is_time64(kind):
        return pa.time64("us")
    if pa.types.is_list(kind):
        return pa.list_(_storage_type(kind.value_type))
    return kind


def _result_error(
    projection: Projection, what: str, hint: str, unknown: Sequence[str] = ()
) -> ProjectionFailed:
    return ProjectionFailed(f"{_label(projection)}: {what}", hint=hint, unknown=unknown)


def _label(projection: Projection) -> str:
    return f"projection {projection.name!r} ({projection.place})"


def compute(
    projection: Projection, result: DataFrame, task: BucketTask, report: Report, label: str
) -> list[BucketOutcome]:
    """Run the result through the task. Every bucket that is not left out has an outcome, also one without rows.
    ``report`` gets the number of buckets of ``label`` that are done.

    Raises ProjectionFailed when the function's code fails, when a row has a NULL in its key, or two rows one key.
    Whatever it raises, files that were written are removed, except those that another attempt at a build can take over.
    """
    try:
        return _compute(projection, result, task, report, label)
    except FOR_GOOD:
        task.discard()
        raise
    except BaseException:
        task.discard(but_finished=True)
        raise


def _compute(
    projection: Projection, result: DataFrame, task: BucketTask, report: Report, label: str
) -> list[BucketOutcome]:
    placement = task.placement
    finished, total = len(placement.without), len(placement.buckets)
    if finished == total:
        return []
    step = f"computing {label}"
    with (
        translate_errors(projection, "computing its result"),
        report_buckets(result.sparkSession, report, step, finished, total) as counted,
    ):

        def compared(group: pa.Table) -> pa.Table:  # no method: Spark counts ``self`` among the parameters
            outcome = task.compare_group(group)
            counted.add()
            return outcome

        grouped = _add_hashes(result, placement).groupBy(BUCKET)
        found: pa.Table = grouped.applyInArrow(compared, _RESULT).toArrow()
    outcomes = {
        outcome.bucket: outcome for outcome in map(BucketOutcome.from_json, found["outcome"].to_pylist())
    }
    empty = run_schema(placement.schema).empty_table()
    for bucket in placement.buckets:
        if bucket not in outcomes and bucket not in placement.without:
            outcomes[bucket] = task.compare(bucket, empty)
    report(step, total, total, "buckets")
    ordered_outcomes = [outcomes[bucket] for bucket in sorted(outcomes)]
    refuse_bad_keys(projection, ordered_outcomes)
    return ordered_outcomes


def compute_here(
    projection: Projection, result: DataFrame, task: BucketTask, report: Report, label: str
) -> list[BucketOutcome]:
    """As ``compute``, in this process: for a result that a few rows lead to. Raises what ``compute`` raises."""
    with translate_errors(projection, "computing its result"):
        rows: pa.Table = result.toArrow()
    try:
        outcomes = _compare_all(task, rows)
        refuse_bad_keys(projection, outcomes)
    except BaseException:
        task.discard()
        raise
    report(f"computing {label}", len(outcomes), len(outcomes), "buckets")
    return outcomes


def _compare_all(task: BucketTask, rows: pa.Table) -> list[BucketOutcome]:
    placement = task.placement
    batches = [*placement.add_hashes(iter(rows.to_batches()))]
    hashed = pa.Table.from_batches(batches) if batches else None
    empty = run_schema(placement.schema).empty_table()

    def compare(bucket: int) -> BucketOutcome:
        if hashed is None:
            return task.compare(bucket, empty)
        return task.compare(bucket, placement.rows(hashed.filter(pc.equal(hashed[BUCKET], bucket))))

    wanted = [bucket for bucket in placement.buckets if bucket not in placement.without]
    with ThreadPoolExecutor(os.cpu_count(), "tailrace-compare") as pool:
        return list(pool.map(compare, wanted))


def keyed_frame(projection: Projection, result: DataFrame, split: int, partitions: int) -> DataFrame:
    """A result as an input of another projection, in the types in which results are stored. Its keys are checked first:
    a NULL or a repeated key raises ProjectionFailed in the task."""
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    schema = output_schema(projection, result)
    spark_schema = from_arrow_schema(schema)
    arrow = to_arrow_schema(spark_schema, timezone="UTC")
    placement = Placement(schema, projection.key, partitions, split)
    named = _label(projection)  # the function and the sink may not be importable in a task

    def checked(group: pa.Table) -> pa.Table:
        rows = placement.rows(group)
        bad = bad_keys(0, rows, placement.key)
        if bad is not None:
            raise _bad_keys_error(named, placement.key, [bad])
        return rows.select(arrow.names).cast(arrow)

    return _add_hashes(result, placement).groupBy(BUCKET).applyInArrow(checked, spark_schema)


def _add_hashes(result: DataFrame, placement: Placement) -> DataFrame:
    from pyspark.sql.types import IntegerType, LongType, StructField, StructType

    fields = [*result.schema.fields, StructField(HASH, LongType()), StructField(BUCKET, IntegerType())]
    return result.mapInArrow(placement.add_hashes, StructType(fields))


def refuse_bad_keys(projection: Projection, outcomes: Sequence[BucketOutcome]) -> None:
    """Raises ProjectionFailed when a row has a NULL in its key, or two rows have one key."""
    if any(outcome.nulls or outcome.repeats for outcome in outcomes):
        raise _bad_keys_error(_label(projection), projection.key, outcomes)


def _bad_keys_error(
    named: str, key_columns: Sequence[str], outcomes: Sequence[BucketOutcome]
) -> ProjectionFailed:
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
    shown = ", ".join(map(disclosure.value, keys_text[:SAMPLES]))
    rest = f" and {count - SAMPLES} more" if count > SAMPLES else ""
    # Hidden, a key with a NULL says no more than that; a key of one column is the NULL.
    samples = (
        f": {shown}{rest}" if not nulls or (disclosure.values_are_shown() and len(key_columns) > 1) else ""
    )
    return ProjectionFailed(f"{named}: {what}{samples}", hint=f"{hint}; the sink was not touched")


def ambiguous_names(spark: SparkSession, names: Sequence[str]) -> list[str]:
    """Those of the names that Spark takes for another one of them."""
    found = Counter(name.lower() for name in names)
    twice = [name for name in names if found[name.lower()] > 1]
    return twice if twice and spark.conf.get("spark.sql.caseSensitive") != "true" else []
