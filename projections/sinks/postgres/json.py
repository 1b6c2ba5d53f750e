"""JSON columns of a generation: stored as ``json``, which keeps the text, and shown to readers as ``jsonb``.

``json`` takes texts that ``jsonb`` cannot hold (``"\u0000"``, half of a surrogate pair, ``1e200000``). One such row
would fail every reader of the view that meets it, so it is refused when it is written.
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
    """A column has a value that ``jsonb`` cannot hold. The server's own error is its cause."""

    def __init__(self, column: str, cause: psycopg.Error) -> None:
        super().__init__(str(cause))
        self.column, self.cause = column, cause


def guard(column: str) -> sql.Composed:
    """A constraint that holds wherever the cast to ``jsonb`` works, and otherwise fails with the cast's error."""
    return sql.SQL("CHECK (({0}::jsonb IS NULL) = ({0} IS NULL))").format(sql.Identifier(column))


def check(connection: psycopg.Connection, relation: sql.Composable, columns: Sequence[str]) -> None:
    """Raises NotJsonb for rows of a table that may have no guard: generations of earlier versions have none."""
    for column in columns:
        with _errors_of(column):
            connection.execute(
                sql.SQL("SELECT count({}::jsonb) FROM {}").format(sql.Identifier(column), relation)
            )


@contextmanager
def name_column(connection: psycopg.Connection, rows: pa.Table, columns: Sequence[str]) -> Iterator[None]:
    """Around a COPY into a guarded table. The server does not say in which column a constraint failed, so each column
    is tested; then the transaction is rolled back and NotJsonb raised. Other errors pass."""
    try:
        yield
    except _REFUSALS:
        connection.rollback()
        for column in columns:
            for piece in pieces(rows.select([column])):
                with _errors_of(column):
                    connection.execute(
                        "SELECT count(cell::jsonb) FROM unnest(%s::text[]) AS cell",
                        (piece[column].to_pylist(),),
                    )
        raise


@contextmanager
def _errors_of(column: str) -> Iterator[None]:
    try:
        yield
    except _REFUSALS as error:
        raise NotJsonb(column, error) from error
