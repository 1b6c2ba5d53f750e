"""What a scalar subquery is over all rows can take its place in a plan over few, whatever its type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.projections.compute.scalar_subqueries import scalar_subqueries, with_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALUES = (
    "CAST(7 AS smallint)", "CAST(7 AS bigint)", "1.50BD", "CAST(-0.0 AS double)", "CAST('NaN' AS float)", "'ü'", "true",
    "X'00FF'", "DATE'1600-02-29'", "TIMESTAMP'2026-01-01 12:00:00.123456'", "TIMESTAMP_NTZ'2026-01-01 12:00:00'",
    "INTERVAL '1 02:03:04' DAY TO SECOND", "array(1, null)", "map('k', 2)",
    "named_struct('a', nullif(1, 2), 'b', nullif(array('x', null), array()))",
)  # fmt: skip


def over(rows: DataFrame, value: str) -> DataFrame:
    """A query with a value of another, which a common table expression gives, and with one that is NULL."""
    text = (
        f"WITH t AS (SELECT max(n) AS most, first({value}) AS v FROM {{rows}} r) SELECT n, (SELECT v FROM t) AS v,"  # noqa: S608
        f" (SELECT v FROM t WHERE most < 0) AS nothing FROM {{rows}} r WHERE n + 1 > (SELECT most FROM t)"
    )
    return rows.sparkSession.sql(text, rows=rows)


@pytest.mark.slow
@pytest.mark.parametrize("value", VALUES)
def test_a_value_over_all_rows_is_given_to_a_query_over_few(spark: SparkSession, value: str) -> None:
    whole, few = over(spark.range(100).toDF("n"), value), over(spark.range(90, 100).toDF("n"), value)
    values = [each.value(spark) for each in scalar_subqueries(whole)]
    found = with_values(few, values)
    assert found.schema.fields[1].dataType == whole.schema.fields[1].dataType
    assert str(found.toArrow().to_pylist()) == str(whole.toArrow().to_pylist())
    assert [one.is_same(other) for one in values for other in values] == [
        at == other for at in range(3) for other in range(3)
    ]
    none = over(spark.range(0).toDF("n"), value)
    assert with_values(none, values).toArrow().num_rows == 0
    assert not scalar_subqueries(none)[0].value(spark).is_same(values[0])


@pytest.mark.slow
def test_values_of_other_subqueries_are_refused(spark: SparkSession) -> None:
    rows = spark.range(3).toDF("n")
    values = [each.value(spark) for each in scalar_subqueries(over(rows, "1"))]
    with pytest.raises(ValueError, match="zip"):
        with_values(rows, values)
    with pytest.raises(ValueError, match="a value is"):
        with_values(over(rows, "'text'"), values)
