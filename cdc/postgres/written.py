"""Tables that projections write: captured, they would feed the log with what was computed from it, for ever.

A Postgres sink keeps two tables of its own beside the generations of its projections, and lists those in one of them.
That list may be closed to the source's user; each generation also says in its comment what it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import Connection, sql

from tailrace.cdc.postgres.connect import Address, translated
from tailrace.cdc.postgres.tables import Table

Row = tuple[object, ...]
FENCES, LIVE = "tailrace_fences", "tailrace_live"
_COMMENTED = """
SELECT objoid::bigint FROM pg_catalog.pg_description
WHERE classoid = 'pg_catalog.pg_class'::regclass AND objsubid = 0
  AND description LIKE 'Tailrace: generation % of projection %; written by it alone'
"""


def written_tables(connection: Connection[Row], address: Address, tables: Sequence[Table]) -> frozenset[int]:
    """Oids of those of ``tables`` (all of the database) that belong to sinks."""
    found: set[int] = set()
    for ledger in (table for table in tables if table.name == FENCES):
        beside = {table.name: table.relid for table in tables if table.schema == ledger.schema}
        if LIVE not in beside:
            continue
        names = {FENCES, LIVE}
        if ledger.readable:
            with translated(f"reading {ledger.text}", address):
                query = sql.SQL("SELECT relation FROM {}").format(sql.Identifier(*ledger.label))
                names |= {str(name) for (name,) in connection.execute(query).fetchall()}
        found |= {relid for name, relid in beside.items() if name in names}
    if not found:
        return frozenset()
    with translated("reading the comments of tables", address):
        found |= {int(str(oid)) for (oid,) in connection.execute(_COMMENTED).fetchall()}
    return frozenset(found)
