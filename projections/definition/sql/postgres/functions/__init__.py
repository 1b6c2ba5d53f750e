"""The table of functions: each module holds the rows of one kind."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.projections.definition.sql.postgres.functions import (
    aggregates,
    numbers,
    regexps,
    texts,
    times,
    windows,
)
from tailrace.projections.definition.sql.postgres.table import Row

_ROWS = (*numbers.ROWS, *texts.ROWS, *regexps.ROWS, *times.ROWS, *aggregates.ROWS, *windows.ROWS)
TABLE: Mapping[str, tuple[Row, ...]] = {
    name: tuple(row for row in _ROWS if row.name == name) for name in dict.fromkeys(row.name for row in _ROWS)
}
"""The rows by the name of the function, in the order in which they are tried."""
