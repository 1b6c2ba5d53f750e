"""Partitions, looked up in the catalog's rows: pg_partition_tree locks them one after the other, and waits for one with
others in its hands."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import Connection

from tailrace.cdc.postgres.connect import Address, translated
from tailrace.cdc.postgres.tables import Table

Row = tuple[object, ...]
TREE = """
WITH RECURSIVE tree(root, oid) AS (
  SELECT r.oid, r.oid FROM unnest(%(relids)s::bigint[]::oid[]) r(oid)
  UNION SELECT t.root, i.inhrelid FROM tree t JOIN pg_catalog.pg_class p ON p.oid = t.oid AND p.relkind = 'p'
  JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid AND NOT i.inhdetachpending
)"""
"""Begins a query: the tables ``relids``, each as its own ``root``, and all partitions below them."""
_PROBLEMS = (
    TREE
    + """
SELECT t.root::bigint, min(c.oid::regclass::text)
FROM tree t JOIN pg_catalog.pg_class p ON p.oid = t.root JOIN pg_catalog.pg_class c ON c.oid = t.oid
WHERE c.relkind <> 'p' AND (c.relkind <> 'r' OR c.relpersistence <> 'p'
  OR c.relreplident NOT IN ('d', 'f') OR (p.relreplident = 'i')) GROUP BY t.root
"""
)


def leaf_problems(
    connection: Connection[Row], address: Address, tables: Sequence[Table]
) -> dict[int, tuple[str, str]]:
    """Partitioned tables with a partition that cannot be captured: its identity, not the root's, counts."""
    roots = [table.relid for table in tables if table.kind == "p"]
    if not roots:
        return {}
    with translated("reading the partitions", address):
        rows = connection.execute(_PROBLEMS, {"relids": roots}).fetchall()
    return {
        int(str(oid)): (
            f"its partition {leaf} is foreign, unlogged or has another replica identity",
            "give all partitions REPLICA IDENTITY DEFAULT on one primary key",
        )
        for oid, leaf in rows
    }
