"""Keys that are computed of an input's rows. Spark evaluates their expressions, as it does in the function: over the
rows that changed for the keys that these take part in, and over an input's rows to find those of some keys.

An expression has no index: to find rows, the columns of the whole input are read, in Spark's tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from tailrace.projections.analysis.computed_columns import spark_text
from tailrace.projections.compute.frames import local_frame, with_columns
from tailrace.projections.definition.computed import Computed
from tailrace.projections.definition.model import KeyColumn, Projection, ProjectionFailed
from tailrace.projections.generations.key_set import KeySet, family
from tailrace.projections.spark.errors import translate_errors

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def computed_keys(
    spark: SparkSession, projection: Projection, name: str, rows: pa.Table, columns: Sequence[KeyColumn]
) -> KeySet:
    """The keys of an input's rows, which have the columns that these parts of a key are, or are computed of. Raises
    ProjectionFailed when an expression fails for a row."""
    from pyspark.sql.pandas.types import to_arrow_schema

    with translate_errors(projection, f"computing its key of {name}"):
        frame = local_frame(spark, with_columns(projection, name, rows.column_names), name, rows)
        found = frame.select(*(_part(each, name, frame).alias(str(at)) for at, each in enumerate(columns)))
        schema = to_arrow_schema(found.schema, timezone="UTC")
        if unusable := [field.type for field in schema if family(field.type) is None]:
            raise ProjectionFailed(f"what affects of {name} says is a {unusable[0]}, which is no key")
        return KeySet.of((found.distinct().toArrow() if rows.num_rows else schema.empty_table()).columns)


def rows_with_computed_keys(
    name: str, frame: DataFrame, columns: Sequence[KeyColumn], wanted: KeySet
) -> DataFrame:
    """The rows of an input that have one of the ``wanted`` keys. All rows have the key that is a constant."""
    from pyspark.sql import functions as F  # noqa: N812

    if all(isinstance(each, Computed) and each.is_constant for each in columns):
        return frame
    names = [f"_key_{at}" for at in range(len(columns))]
    table = wanted.table.rename_columns(names)
    texts = [pa.string() if pa.types.is_large_string(field.type) else field.type for field in table.schema]
    keys = frame.sparkSession.createDataFrame(
        table.cast(pa.schema([pa.field(column, kind) for column, kind in zip(names, texts, strict=True)]))
    )
    condition = None
    for column, each in zip(names, columns, strict=True):
        same = _part(each, name, frame) == keys[column]
        condition = same if condition is None else condition & same
    return frame.join(F.broadcast(keys), condition, "left_semi")


def _part(held: KeyColumn, name: str, frame: DataFrame) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.expr(spark_text(held, name, frame)) if isinstance(held, Computed) else F.col(f"`{held}`")
