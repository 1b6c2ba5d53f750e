"""Functions of dates and times."""

from __future__ import annotations

from tailrace.projections.definition.sql.postgres.table import Row

ROWS: tuple[Row, ...] = ()
