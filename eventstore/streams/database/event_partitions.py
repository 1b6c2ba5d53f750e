"""The table of events in parts by time, so that old ones are small, and go at once.

Each partition has the keys that the table had: no two events of it have one id. Over all there is none, for Postgres
wants the time in such a key. Versions of a stream stay dense whatever the parts, as its head counts them.
https://www.postgresql.org/docs/current/ddl-partitioning.html
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, LiteralString, get_args

import psycopg
from psycopg import sql

from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.model.event_schema import chosen_schema, in_schema
from tailrace.eventstore.streams.database.event_tables import of_psycopg

if TYPE_CHECKING:
    from sqlalchemy import Connection

Period = Literal["month", "week", "day"]
_FIRST, _REST = "events_first", "events_rest"
_IS_PARTITIONED: Final = "SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass('tailrace.events')"
_PUBLICATIONS: Final = """
SELECT p.pubname, p.pubviaroot, pg_has_role(p.pubowner, 'USAGE') FROM pg_publication p
JOIN pg_publication_rel r ON r.prpubid = p.oid WHERE r.prrelid = 'tailrace.events'::regclass
"""
_POLICIES: Final = "SELECT relrowsecurity FROM pg_class WHERE oid = 'tailrace.events'::regclass"
_GRANTS: Final = """
SELECT a.grantee::regrole::text, string_agg(a.privilege_type, ', ') FROM pg_class c, aclexplode(c.relacl) a
WHERE c.oid = 'tailrace.events'::regclass AND a.grantee NOT IN (0, c.relowner) GROUP BY 1
"""
_BOUNDS: Final = """
SELECT coalesce(max(substring(pg_get_expr(c.relpartbound, c.oid) FROM 'TO \\(''(.*)''\\)')::timestamptz), now())
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'tailrace.events'::regclass
"""


def partition_events(
    connection: psycopg.Connection[Any] | Connection, every: str = "month", ahead: int = 3
) -> list[str]:
    """Part the table of events by time, or make the partitions of the next ``ahead`` periods where it is parted; the
    caller commits. Gives the names of the partitions that were made.

    What is there becomes the first one; nobody appends or loads meanwhile. Capture goes on: its publication has the
    new table in the same transaction. Run it again before the time of the last partition has come: later events are
    in one for the rest until then, which the next run takes apart.

    Raises UsageError for another period, OperatorError for a publication that this user may not change, or that
    publishes partitions by their own names, and for row-level security, whose policies would not come along.
    """
    period: Period | None = next((each for each in get_args(Period) if each == every), None)
    if period is None or ahead < 1:
        raise UsageError(
            f"events cannot be parted by {every!r}",
            hint=f"one of {', '.join(get_args(Period))}, at least one ahead",
        )
    postgres = _Tables(of_psycopg(connection), chosen_schema())
    postgres.execute("SET LOCAL timezone = 'UTC'")
    found = postgres.execute(_IS_PARTITIONED).fetchone()
    if found is None:
        raise OperatorError("there is no table of events to part", hint="run: tailrace init --events")
    made = []
    if not found[0]:
        _part(postgres, next(_starts(datetime.now(UTC), period)))
        made += [_FIRST, _REST]
    ((end,),) = postgres.execute(_BOUNDS).fetchall()
    until = datetime.now(UTC) + ahead * timedelta(days={"month": 31, "week": 7, "day": 1}[period])
    for start, stop in _periods(end, period):
        if start > until:
            return made
        made.append(_add(postgres, start, stop))
    raise AssertionError("periods never end")


class _Tables:
    """Statements about the tables of domain events in a schema, on a connection."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self._connection = connection
        self.schema = schema

    def execute(self, text: LiteralString, **parts: sql.Composable) -> psycopg.Cursor[Any]:
        """``parts`` take the places of their names in braces."""
        return self._connection.execute(sql.SQL(in_schema(text, self.schema)).format(**parts))


def _part(postgres: _Tables, until: datetime) -> None:
    """The table becomes the first partition of a new one, which has its name, its rights and its publications."""
    postgres.execute("LOCK TABLE tailrace.events IN ACCESS EXCLUSIVE MODE")
    publications = postgres.execute(_PUBLICATIONS).fetchall()
    for name, via_root, owned in publications:
        if not (via_root and owned):
            what = "belongs to another role" if via_root else "publishes partitions by their own names"
            raise OperatorError(
                f"publication {name} has the table of events, and {what}",
                hint="part it as the publication's owner; ALTER PUBLICATION … SET (publish_via_partition_root = true)",
            )
    secured = postgres.execute(_POLICIES).fetchone()
    if secured is None or secured[0]:
        raise OperatorError(
            "the table of events has row-level security, whose policies would not come along",
            hint=f"ALTER TABLE {postgres.schema}.events DISABLE ROW LEVEL SECURITY, part it, make the policies again",
        )
    grants = postgres.execute(_GRANTS).fetchall()
    first = sql.Identifier(_FIRST)
    postgres.execute("ALTER TABLE tailrace.events RENAME TO {first}", first=first)
    postgres.execute(
        "CREATE TABLE tailrace.events (LIKE tailrace.{first} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"
        " PARTITION BY RANGE (recorded_at)",
        first=first,
    )
    postgres.execute(
        "ALTER TABLE tailrace.events ATTACH PARTITION tailrace.{first} FOR VALUES FROM (MINVALUE) TO ({until})",
        first=first,
        until=sql.Literal(until),
    )
    rest = sql.Identifier(_REST)
    postgres.execute(
        "CREATE TABLE tailrace.{rest} (LIKE tailrace.{first} INCLUDING ALL)", rest=rest, first=first
    )
    postgres.execute("ALTER TABLE tailrace.events ATTACH PARTITION tailrace.{rest} DEFAULT", rest=rest)
    for role, privileges in grants:
        postgres.execute(
            "GRANT {privileges} ON tailrace.events TO {role}",
            privileges=sql.SQL(privileges),
            role=sql.SQL(role),
        )
    for name, _, _ in publications:
        publication = sql.Identifier(name)
        postgres.execute("ALTER PUBLICATION {publication} ADD TABLE tailrace.events", publication=publication)
        postgres.execute(
            "ALTER PUBLICATION {publication} DROP TABLE tailrace.{first}",
            publication=publication,
            first=first,
        )


def _add(postgres: _Tables, start: datetime, stop: datetime) -> str:
    """A partition, with what is in the one for the rest of its time."""
    name = f"events_{start:%Y%m%d}"
    parts = {"table": sql.Identifier(name), "start": sql.Literal(start), "stop": sql.Literal(stop)}
    postgres.execute("CREATE TABLE tailrace.{table} (LIKE tailrace.events_first INCLUDING ALL)", **parts)
    postgres.execute(
        "WITH moved AS (DELETE FROM tailrace.events_rest WHERE recorded_at >= {start} AND recorded_at < {stop}"
        " RETURNING *) INSERT INTO tailrace.{table} SELECT * FROM moved",
        **parts,
    )
    postgres.execute(
        "ALTER TABLE tailrace.events ATTACH PARTITION tailrace.{table} FOR VALUES FROM ({start}) TO ({stop})",
        **parts,
    )
    return name


def _periods(start: datetime, every: Period) -> Iterator[tuple[datetime, datetime]]:
    for stop in _starts(start, every):
        yield start, stop
        start = stop


def _starts(after: datetime, every: Period) -> Iterator[datetime]:
    """The beginnings of periods behind a moment, in UTC: of days, of weeks on Mondays, of months."""
    day = after.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    while True:
        match every:
            case "day":
                day += timedelta(days=1)
            case "week":
                day += timedelta(days=7 - day.weekday())
            case "month":
                day = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
        yield day
