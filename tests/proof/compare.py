"""The log's state as text, row by row, and a database's tables in the same form: what an oracle compares."""

from __future__ import annotations

import psycopg
from psycopg import sql

from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.state.state import state
from tailrace.eventstore.store import Store

SETTINGS = (
    "-c DateStyle=ISO -c TimeZone=UTC -c IntervalStyle=postgres -c extra_float_digits=3 -c bytea_output=hex"
)

# format() calls the type's output function; a cast to text is another function for bool, inet and bpchar.
OUTPUT = sql.SQL("CASE WHEN {0} IS NOT NULL THEN format('%s', {0}) END")

Rows = dict[tuple[str | None, ...], tuple[str | None, ...]]


def rows_of_database(dsn: str, schema: str, table: str, key: tuple[str, ...]) -> Rows:
    """Key texts -> all column texts, in column order, as Postgres prints them."""
    with psycopg.connect(dsn, options=SETTINGS) as connection:
        names = [
            name
            for (name,) in connection.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
                " ORDER BY attnum",
                (sql.Identifier(schema, table).as_string(connection),),
            )
        ]
        columns = sql.SQL(", ").join(OUTPUT.format(sql.Identifier(name)) for name in names)
        query = sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier(schema, table))
        found = connection.execute(query).fetchall()
    positions = [names.index(name) for name in key]
    return {tuple(row[at] for at in positions): tuple(row) for row in found}


def rows_of_log(store: Store, topic: TopicId, cut: Cut, key: tuple[str, ...]) -> Rows:
    """The same of a topic's state at a cut."""
    rows: Rows = {}
    for table in state(store, topic, cut, on_unreadable="text"):
        data = table.to_pydict()
        names = [name for name in table.column_names if not name.startswith("_")]
        for at in range(table.num_rows):
            identity = tuple(data[name][at] for name in key)
            assert identity not in rows, f"{topic}: key {identity} stands in the state twice"
            rows[identity] = tuple(data[name][at] for name in names)
    return rows
