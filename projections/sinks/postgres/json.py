"""JSON columns of a generation: kept as ``json``, so that a text stays as it is, and shown to readers as ``jsonb``.

``json`` takes texts that ``jsonb`` cannot hold (``"\\u0000"``, half of a surrogate pair, ``1e200000``). One such row
would fail every reader of the view that comes across it, so it is refused when it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
import pyarrow as pa
from psycopg import errors, sql

from tailrace.projections.sinks.rows import pieces

# The latter two are how jsonb refuses what is too long or too deep.
_REFUSALS = (psycopg.DataError, errors.ProgramLimitExceeded, errors.StatementTooComplex)


class NotJsonb(psycopg.DataError):
    """A column has a value that readers could not be shown. The server's own error is its cause."""

    def __init__(self, column: str, cause: psycopg.Error) -> None:
        super().__init__(str(cause))
        self.column, self.cause = column, cause


def guard(column: str) -> sql.Composed:
    """A constraint that holds wherever the cast is possible (JSON's null is a value), and fails with the cast."""
    return sql.SQL("CHECK (({0}::jsonb IS NULL) = ({0} IS NULL))").format(sql.Identifier(column))


def check(connection: psycopg.Connection, relation: sql.Composable, columns: Sequence[str]) -> None:
    """Raises NotJsonb for rows of a table, which may have no guard: a generation of an earlier version has none."""
    for column in columns:
        with _of(column):
            connection.execute(
                sql.SQL("SELECT count({}::jsonb) FROM {}").format(sql.Identifier(column), relation)
            )


@contextmanager
def named(connection: psycopg.Connection, rows: pa.Table, columns: Sequence[str]) -> Iterator[None]:
    """Around a COPY of rows into a guarded table: the server does not say which column a constraint failed on, so it is
    asked for each of them. Then the transaction is rolled back, and NotJsonb raised; other errors pass."""
    try:
        yield
    except _REFUSALS:
        connection.rollback()
        for column in columns:
            for piece in pieces(rows.select([column])):
                with _of(column):
                    connection.execute(
                        "SELECT count(cell::jsonb) FROM unnest(%s::text[]) AS cell",
                        (piece[column].to_pylist(),),
                    )
        raise


@contextmanager
def _of(column: str) -> Iterator[None]:
    try:
        yield
    except _REFUSALS as error:
        raise NotJsonb(column, error) from error
