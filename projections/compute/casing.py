"""Columns whose names differ in case alone: Postgres tells them apart, Spark does not, unless set to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def alike(spark: SparkSession, names: Sequence[str]) -> list[str]:
    """Those of the names that Spark takes for another one of them."""
    if spark.conf.get("spark.sql.caseSensitive") == "true":
        return []
    found = Counter(name.lower() for name in names)
    return [name for name in names if found[name.lower()] > 1]
