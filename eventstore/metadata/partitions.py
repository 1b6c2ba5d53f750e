"""Names under which columns are protected beside those of their topic. A table that is, or has been, a partition of one
with column policies has its root's: the source forgets that when it is detached. A renamed table has those that it had
for a while."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from sqlalchemy import delete, insert, select

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.errors import damaged_row
from tailrace.eventstore.model.info import InheritedPolicy


def known_partitions(catalog: Catalog, source: str) -> dict[int, tuple[InheritedPolicy, ...]]:
    """By oid of the table. Raises IntegrityError when a row cannot be read."""
    table = tables.partitions
    with catalog.read() as connection:
        rows = connection.execute(select(table).where(table.c.source == source)).all()
    return {row.relid: _parse(source, row.relid, row.protected) for row in rows}


def set_partitions(
    catalog: Catalog, source: str, partitions: Mapping[int, Sequence[InheritedPolicy]]
) -> None:
    """What is known of these tables from now on; of one without a protected column nothing."""
    table = tables.partitions
    rows = [
        {
            "source": source,
            "relid": relid,
            "protected": json.dumps([[each.number, each.policy, *each.name] for each in columns]),
        }
        for relid, columns in partitions.items()
        if columns
    ]
    with catalog.write() as connection:
        for relid in partitions:
            connection.execute(delete(table).where(table.c.source == source, table.c.relid == relid))
        if rows:
            connection.execute(insert(table), rows)


def _parse(source: str, relid: int, text: str) -> tuple[InheritedPolicy, ...]:
    try:
        return tuple(
            InheritedPolicy(int(number), str(policy), (str(schema), str(table), str(column)))
            for number, policy, schema, table, column in json.loads(text)
        )
    except (ValueError, TypeError):
        raise damaged_row(f"partitions: source {source}, oid {relid}", "it cannot be read") from None
