"""The tables and functions of domain events in a source database: in schema ``tailrace``, or in one of choice.

Its migrations are plain SQL, one file each (``tailrace/migrations/source/versions``), applied in order and recorded in
table ``migrations`` of that schema. The page of setting up a source has the privileges, and how to remove everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
from psycopg import sql

from tailrace.eventstore.errors import OperatorError, TransientError, UsageError, manual_page
from tailrace.eventstore.model.event_schema import EVENTS_SCHEMA, chosen_schema, in_schema

if TYPE_CHECKING:
    from sqlalchemy import Connection

_SQL = files("tailrace.migrations.source")
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('tailrace.migrations', 0))"
_FORGET = "DELETE FROM tailrace.migrations WHERE number = %s"
_RECORD = "INSERT INTO tailrace.migrations (number, name) VALUES (%s, %s)"
_SET_UP = """
CREATE TABLE IF NOT EXISTS tailrace.migrations (
    number     integer     PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""


# Whoever owns one of these could change what the next migration or a writer of events runs into.
_STRANGER = """
SELECT o.what, r.rolname
FROM (SELECT 'schema ' || n.nspname, n.nspowner FROM pg_catalog.pg_namespace n WHERE n.nspname = %(schema)s
      UNION ALL SELECT n.nspname || '.' || c.relname, c.relowner
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
      WHERE n.nspname = %(schema)s AND c.relname IN ('migrations', 'streams', 'events', 'snapshots', 'tags',
                                                     'tagged_events', 'timers', 'subject_keys', 'tag_secret',
                                                     'emit_secret')
      UNION ALL SELECT 'function ' || n.nspname || '.' || p.proname, p.proowner
      FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
      WHERE n.nspname = %(schema)s AND p.proname !~ '^ddl_') AS o(what, owner)
JOIN pg_catalog.pg_roles r ON r.oid = o.owner
WHERE NOT r.rolsuper AND r.rolname <> current_user
  AND r.oid <> (SELECT d.datdba FROM pg_catalog.pg_database d WHERE d.datname = current_database())
LIMIT 1
"""
_OTHERS = """
SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f') ORDER BY c.relname LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """``versions/NNNN_name.sql``, or the way back in ``downs/``."""

    number: int
    name: str
    sql: LiteralString


def migrations() -> list[Migration]:
    """All migrations, in order."""
    return _scripts("versions")


def _scripts(folder: str) -> list[Migration]:
    found = []
    for file in (_SQL / folder).iterdir():
        stem, _, suffix = file.name.rpartition(".")
        if suffix == "sql":
            number, _, name = stem.partition("_")
            found.append(Migration(int(number), name, file.read_text(encoding="utf-8")))
    return sorted(found, key=lambda each: each.number)


def install(dsn: str, schema: str | None = None) -> list[str]:
    """Bring the tables of a database up to date, in one transaction. Gives the names of what was missing.

    Two processes at once run one after the other. Raises OperatorError when a privilege is missing, a newer release was
    here, another role made the schema, or it has other tables; TransientError when the server is out of reach, and
    UsageError for a dsn that is none.
    """
    try:
        with psycopg.connect(dsn, connect_timeout=10) as connection:
            return upgrade(connection, schema)
    except psycopg.errors.InsufficientPrivilege as error:
        raise OperatorError(
            f"the tables of domain events cannot be made: {error.diag.message_primary}",
            hint="let the user CREATE in the database, or install as its owner and grant the privileges; see "
            + manual_page("capture/setting-up-a-source.md", "The tables of domain events"),
        ) from None
    except psycopg.OperationalError as error:
        if error.sqlstate is not None:
            raise
        # libpq's own message names host and port, never the password.
        raise TransientError(
            f"the database for domain events is out of reach: {str(error).strip()}",
            hint="check that the server runs and that the dsn's host, port and user are right",
        ) from None
    except psycopg.ProgrammingError as error:
        if error.sqlstate is not None:
            raise
        raise UsageError("the dsn is not one", hint="postgresql://USER@HOST:PORT/DATABASE") from None


def upgrade(connection: psycopg.Connection[Any] | Connection, schema: str | None = None) -> list[str]:
    """``install`` on a connection of psycopg or SQLAlchemy; the caller commits. So a service's own migrations can have
    the tables of domain events among them. ``schema``: where they are (default: where ``use_schema`` says)."""
    connection, schema = of_psycopg(connection), chosen_schema(schema)
    wanted = migrations()
    applied = _applied(connection, schema, wanted)
    missing = [each for each in wanted if each.number not in applied]
    for each in missing:
        connection.execute(in_schema(each.sql, schema), prepare=False)
        connection.execute(in_schema(_RECORD, schema), [each.number, each.name])
    return [each.name for each in missing]


def downgrade(
    connection: psycopg.Connection[Any] | Connection, number: int, schema: str | None = None
) -> list[str]:
    """Take the tables back to migration ``number``, for an earlier release; the caller commits. Events stay. Gives the
    names of what was taken back, the latest first.

    Raises UsageError, and changes nothing, when there is no way back.
    """
    connection, schema = of_psycopg(connection), chosen_schema(schema)
    downs = {each.number: each for each in _scripts("downs")}
    applied = _applied(connection, schema, migrations())
    back = sorted((each for each in applied if each > number), reverse=True)
    if not back or back[-1] != number + 1 or number not in applied or not set(back) <= set(downs):
        raise UsageError(
            f"schema {schema} cannot be taken back to migration {number}: it has {sorted(applied)}",
            hint=f"ways back lead from {', '.join(map(str, sorted(downs)))} to the one before; to remove the events "
            + f"too, see {manual_page('capture/setting-up-a-source.md', 'The tables of domain events')}",
        )
    for each in back:
        connection.execute(in_schema(downs[each].sql, schema), prepare=False)
        connection.execute(in_schema(_FORGET, schema), [each])
    return [downs[each].name for each in back]


def prune(
    connection: psycopg.Connection[Any] | Connection, category: str, before: datetime, at_most: int = 10_000
) -> int:
    """Remove up to so many events of a category that were recorded before a time and that snapshots have made
    superfluous; the caller commits. Gives how many. Of each stream the first ones go; its head stays, its last event,
    and what has tags or personal values, with all behind it.

    Only what the log has may go: ``tailrace events prune`` sees to that. Raises OperatorError for a user that may not.
    """
    schema = chosen_schema()
    query = in_schema("SELECT tailrace.prune_events(%s, %s, %s)", schema)
    try:
        ((pruned,),) = of_psycopg(connection).execute(query, [category, before, at_most]).fetchall()
    except psycopg.errors.InsufficientPrivilege:
        raise OperatorError(
            "this user may not prune domain events",
            hint=f"as the owner of the tables: GRANT EXECUTE ON FUNCTION {schema}.prune_events TO …",
        ) from None
    except psycopg.errors.InvalidParameterValue as error:
        raise UsageError(str(error.diag.message_primary), hint=str(error.diag.message_hint)) from None
    return int(pruned)


def of_psycopg(connection: psycopg.Connection[Any] | Connection) -> psycopg.Connection[Any]:
    """Several statements at once are nothing that SQLAlchemy sends. Raises UsageError for another driver's."""
    found: Any = (
        connection if isinstance(connection, psycopg.Connection) else connection.connection.driver_connection
    )
    if not isinstance(found, psycopg.Connection):
        raise UsageError(
            f"the tables of domain events are made on a connection of psycopg, not of {type(found).__module__}",
            hint="use an engine of postgresql+psycopg://",
        )
    return found


def _applied(connection: psycopg.Connection[Any], schema: str, wanted: Sequence[Migration]) -> set[int]:
    """The numbers of the migrations that are there; others wait until the caller commits."""
    connection.execute(_LOCK)
    stranger = connection.execute(_STRANGER, {"schema": schema}).fetchone()
    if stranger is not None:  # before anything of it is read: a view would run its owner's code
        raise OperatorError(
            f"{stranger[0]} belongs to {stranger[1]}, which is neither this user, a superuser nor the database's owner",
            hint="install as that role if it made it for this; otherwise drop it, and look why it is there",
        )
    known = connection.execute(
        in_schema("SELECT to_regclass('tailrace.migrations') IS NOT NULL", schema)
    ).fetchone()
    if known != (True,):
        _set_up(connection, schema)
    rows = connection.execute(in_schema("SELECT number FROM tailrace.migrations", schema)).fetchall()
    applied = {int(str(number)) for (number,) in rows}
    unknown = applied - {each.number for each in wanted}
    if unknown:
        raise OperatorError(
            f"schema {schema} of this database has migrations that this release does not know: "
            f"{sorted(map(str, unknown))}",
            hint="use the release that made them, or a later one",
        )
    return applied


def _set_up(connection: psycopg.Connection[Any], schema: str) -> None:
    other = connection.execute(_OTHERS, [schema]).fetchone()
    if other is not None and schema != EVENTS_SCHEMA:  # which has the DDL trigger's
        raise OperatorError(
            f"schema {schema} has table {other[0]}, which is none of domain events",
            hint="choose a schema that is new, or has nothing else",
        )
    connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
    connection.execute(in_schema(_SET_UP, schema))
