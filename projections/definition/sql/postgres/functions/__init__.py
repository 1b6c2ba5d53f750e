"""The table of functions: each module holds the rows of one kind."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.projections.definition.sql.postgres.functions import (
    aggregates,
    arrays,
    groupings,
    numbers,
    partials,
    regexps,
    texts,
    times,
    windows,
)
from tailrace.projections.definition.sql.postgres.functions.table import Row

GROUPS: Mapping[str, tuple[Row, ...]] = {
    "Functions of numbers": numbers.ROWS,
    "Functions of texts and bytes": texts.ROWS,
    "Functions of regular expressions": regexps.ROWS,
    "Functions of dates and times": times.ROWS,
    "Functions of arrays": arrays.ROWS,
    "Aggregates": aggregates.ROWS,
    "Functions of windows": windows.ROWS,
    "Grouping sets": groupings.ROWS,
}
"""The rows by the titles that the manual gives them."""
_ROWS = [row for rows in (*GROUPS.values(), partials.ROWS) for row in rows]
TABLE: Mapping[str, tuple[Row, ...]] = {
    name: tuple(row for row in _ROWS if row.name == name) for name in dict.fromkeys(row.name for row in _ROWS)
}
"""The rows by the name of the function, in the order in which they are tried."""
