"""The table of functions: each module holds the rows of one kind."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.projections.definition.sql.postgres.functions import aggregates, numbers, texts, times, windows
from tailrace.projections.definition.sql.postgres.table import Row

TABLE: Mapping[str, tuple[Row, ...]] = {
    name: tuple(row for row in rows if row.name == name)
    for rows in [(*numbers.ROWS, *texts.ROWS, *times.ROWS, *aggregates.ROWS, *windows.ROWS)]
    for name in dict.fromkeys(row.name for row in rows)
}
"""The rows by the name of the function, in the order in which they are tried."""
