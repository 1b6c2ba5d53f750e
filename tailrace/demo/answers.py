"""What the databases themselves say: the answers that the demo checks the log and the sinks against."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, LiteralString

import psycopg

from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.position import parse_lsn
from tailrace.projections.context import ProjectionContext

TOTALS = """
    SELECT c.id, count(o.id), coalesce(sum(o.amount), 0)
    FROM customers c LEFT JOIN orders o ON o.customer_id = c.id AND o.status <> 'cancelled' GROUP BY c.id
"""

Totals = dict[int, tuple[int, Decimal]]
"""Customer to the number of their orders and the sum, without cancelled ones."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What the source said at one moment between two transactions."""

    at: datetime
    totals: Totals


def source_moment(source: str) -> Moment:
    """The totals by the source's own arithmetic, and its clock; for while no transaction runs."""
    with psycopg.connect(source) as connection:
        totals = _totals(connection, TOTALS)
        row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    return Moment(row[0], totals)


def live_totals(mart: str) -> Totals:
    """The view as readers see it."""
    with psycopg.connect(mart) as connection:
        return _totals(connection, "SELECT customer_id, orders, total FROM customer_totals")


def generation_totals(context: ProjectionContext, number: int) -> Totals:
    """A generation that is not live, read from its sink."""
    generation = context.generation("customer_totals", number)
    found: Totals = {}
    for batch in context.sink(generation).scan(context.target(generation)):
        for row in batch.to_pylist():
            found[row["customer_id"]] = (row["orders"], row["total"])
    return found


def sum_of(totals: Totals) -> Decimal:
    return sum((amount for _, amount in totals.values()), Decimal(0))


def flush_lsn(connection: psycopg.Connection[Any]) -> int:
    """Where the server's WAL ends."""
    row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return parse_lsn(row[0])


def shipped_order(source: str) -> int:
    """An order that was placed, paid and shipped since the shop opened."""
    with psycopg.connect(source, autocommit=True) as connection:
        row = connection.execute(
            "SELECT stream::bigint FROM tailrace.events JOIN orders o ON o.id = stream::bigint"
            " WHERE category = 'order' GROUP BY 1 HAVING count(*) = 3 ORDER BY 1 LIMIT 1"
        ).fetchone()
    if row is None:
        raise OperatorError("no order was shipped in all that time", hint="is the machine very busy?")
    return int(row[0])


def _totals(connection: psycopg.Connection[Any], query: LiteralString) -> Totals:
    return {customer: (orders, total) for customer, orders, total in connection.execute(query).fetchall()}
