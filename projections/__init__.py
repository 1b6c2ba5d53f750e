"""Projections: functions from the log's history to a table, a cache, a search index or files.

    from tailrace.projections import PostgresTable, State, projection

The heavy parts (Spark, the sinks' drivers) are imported by the modules that use them, not here.
"""

from __future__ import annotations

from tailrace.projections.definition.computed import Computed
from tailrace.projections.definition.load import load_projections, projection
from tailrace.projections.definition.model import (
    Changes,
    Events,
    Projection,
    ProjectionFailed,
    Result,
    State,
    Through,
)
from tailrace.projections.definition.stage import stage
from tailrace.projections.sinks.open import open_reader
from tailrace.projections.sinks.specs import ParquetFolder, PostgresTable, RedisCache, SearchIndex, SinkSpec

__all__ = [
    "Changes",
    "Computed",
    "Events",
    "ParquetFolder",
    "PostgresTable",
    "Projection",
    "ProjectionFailed",
    "RedisCache",
    "Result",
    "SearchIndex",
    "SinkSpec",
    "State",
    "Through",
    "load_projections",
    "open_reader",
    "projection",
    "stage",
]
