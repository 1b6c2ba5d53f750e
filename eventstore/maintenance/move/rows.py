"""Rows of one database's tables copied into another's, read back and compared, in one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import xxhash
from sqlalchemy import Connection, LargeBinary, Row, Table, delete, func, insert, select, text

from tailrace.eventstore.errors import IntegrityError

_ROWS, _ROWS_OF_BLOBS = 1000, 16  # at a time; a blob may have a MiB


@dataclass(frozen=True, slots=True)
class _TableDigest:
    """What a table holds, whatever the order: databases do not sort texts alike."""

    rows: int = 0
    digest: int = 0

    def with_row(self, row: Row[tuple[object, ...]]) -> _TableDigest:
        values = tuple(bytes(value) if isinstance(value, memoryview) else value for value in row)
        return _TableDigest(
            self.rows + 1, (self.digest + xxhash.xxh3_128_intdigest(repr(values).encode())) % (1 << 128)
        )


def copy_rows(source: Connection, target: Connection, copied: Sequence[Table]) -> dict[str, int]:
    """Replace the target's rows by the source's; how many each table has. Referenced tables come before referring
    ones. Raises IntegrityError when the target does not give back what it was given."""
    for table in reversed(copied):
        target.execute(delete(table))
    counts = {}
    for table in copied:
        given = _TableDigest()
        for part in _parts(source, table):
            target.execute(insert(table), [dict(row._mapping) for row in part])
            for row in part:
                given = given.with_row(row)
        kept = _TableDigest()
        for part in _parts(target, table):
            for row in part:
                kept = kept.with_row(row)
        if kept != given:
            raise IntegrityError(
                f"table {table.name} has other rows in its new place: {kept.rows:,} instead of {given.rows:,}"
                if kept.rows != given.rows
                else f"table {table.name} has rows with other values in its new place",
                hint="nothing was moved; report this with the kinds and versions of both databases",
            )
        _raise_sequence(target, table)
        counts[table.name] = given.rows
    return counts


def _parts(connection: Connection, table: Table) -> Iterator[Sequence[Row[tuple[object, ...]]]]:
    blobs = any(isinstance(column.type, LargeBinary) for column in table.c)
    streamed = {"yield_per": _ROWS_OF_BLOBS if blobs else _ROWS}
    return connection.execute(select(table), execution_options=streamed).partitions()


def _raise_sequence(connection: Connection, table: Table) -> None:
    """Postgres numbers rows from a sequence, which knows nothing of rows that came with their numbers."""
    numbered = table.autoincrement_column
    if numbered is None or connection.dialect.name != "postgresql":
        return
    highest = connection.scalar(select(func.max(numbered)))
    if highest is not None:
        quoted = connection.dialect.identifier_preparer.quote_identifier(table.name)
        raised = text("SELECT setval(pg_get_serial_sequence(:table, :column), :highest)")
        connection.execute(raised, {"table": quoted, "column": numbered.name, "highest": highest})
