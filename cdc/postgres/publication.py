"""Publications: what one holds, and the SQL that makes or extends it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from psycopg import Connection

from cdc.postgres.connect import Address, quote, translated

Row = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Publication:
    """``tables``: oid -> (schema, name) of what was added one by one. ``partial``: tables with a row filter or a
    column list."""

    name: str
    all_tables: bool
    operations: frozenset[str]
    via_root: bool
    tables: Mapping[int, tuple[str, str]]
    schemas: tuple[str, ...]
    partial: tuple[str, ...]

    @property
    def mismatch(self) -> str:
        """Why it cannot serve capture as it is, "" when it can."""
        missing = {"insert", "update", "delete", "truncate"} - self.operations
        if missing:
            return f"it does not publish {', '.join(sorted(missing))}"
        if self.all_tables:
            return "it is FOR ALL TABLES, capture needs exactly the tables it knows"
        if self.schemas:
            return f"it publishes whole schemas ({', '.join(self.schemas)}), capture needs single tables"
        if self.partial:
            return f"it has row filters or column lists ({', '.join(self.partial)}), which lose changes"
        if not self.via_root:
            return "publish_via_partition_root is off"
        return ""


_OPERATIONS = ("insert", "update", "delete", "truncate")


def read_publication(connection: Connection[Row], name: str, address: Address) -> Publication | None:
    """The publication, None when there is none."""
    with translated("reading the publication", address):
        row = connection.execute(
            "SELECT oid::bigint, puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot"
            " FROM pg_catalog.pg_publication WHERE pubname = %s",
            [name],
        ).fetchone()
        if row is None:
            return None
        tables = connection.execute(
            """
            SELECT c.oid::bigint, n.nspname, c.relname,
                   coalesce(to_jsonb(r) ->> 'prqual', to_jsonb(r) ->> 'prattrs') IS NOT NULL
            FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
            JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE r.prpubid = %s::bigint::oid
            """,
            [row[0]],
        ).fetchall()
        schemas: list[Row] = []
        if connection.info.server_version >= 150000:
            schemas = connection.execute(
                "SELECT n.nspname FROM pg_catalog.pg_publication_namespace p"
                " JOIN pg_catalog.pg_namespace n ON n.oid = p.pnnspid WHERE p.pnpubid = %s::bigint::oid",
                [row[0]],
            ).fetchall()
    return Publication(
        name=name,
        all_tables=bool(row[1]),
        operations=frozenset(word for word, on in zip(_OPERATIONS, row[2:6], strict=True) if on),
        via_root=bool(row[6]),
        tables={int(str(oid)): (str(schema), str(table)) for oid, schema, table, _ in tables},
        schemas=tuple(str(schema) for (schema,) in schemas),
        partial=tuple(f"{schema}.{table}" for _, schema, table, partial in tables if partial),
    )


def create_statement(name: str, tables: Iterable[tuple[str, str]]) -> str:
    """An empty publication is made too: the slot must not be older than its publication."""
    targets = _targets(tables)
    options = "WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = true)"
    return f"CREATE PUBLICATION {quote(name)}{f' FOR TABLE {targets}' if targets else ''} {options}"


def add_statement(name: str, tables: Iterable[tuple[str, str]]) -> str:
    return f"ALTER PUBLICATION {quote(name)} ADD TABLE {_targets(tables)}"


def _targets(tables: Iterable[tuple[str, str]]) -> str:
    """ONLY: tables that inherit from one are matched by the patterns themselves."""
    return ", ".join(f"ONLY {quote(schema)}.{quote(name)}" for schema, name in tables)
