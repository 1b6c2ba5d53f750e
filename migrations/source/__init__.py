"""Objects in a source database: schema ``tailrace`` with the tables and the function of domain events.

Plain SQL, one file per step, applied in order and recorded in ``tailrace.migrations``; a file that was released is
never edited, a later one replaces what it made. ``grants.sql`` lists the privileges, ``uninstall.sql`` takes all away.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import LiteralString

import psycopg

from tailrace.eventstore.errors import OperatorError, TransientError, UsageError

_HERE = Path(__file__).parent
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('tailrace.migrations', 0))"
_RECORD = "INSERT INTO tailrace.migrations (number, name) VALUES (%s, %s)"
_SET_UP = """
CREATE SCHEMA IF NOT EXISTS tailrace;
CREATE TABLE IF NOT EXISTS tailrace.migrations (
    number     integer     PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""


@dataclass(frozen=True, slots=True)
class Step:
    """One migration: ``versions/NNNN_name.sql``."""

    number: int
    name: str
    sql: LiteralString


def steps() -> list[Step]:
    """All migrations, in order."""
    found = []
    for path in sorted((_HERE / "versions").glob("*.sql")):
        number, _, name = path.stem.partition("_")
        found.append(Step(int(number), name, path.read_text(encoding="utf-8")))
    return found


def install(dsn: str) -> list[str]:
    """Bring schema ``tailrace`` of a database up to date, in one transaction; names of the steps that were missing.

    Two at once are serialised. Raises OperatorError when a privilege is missing or a newer release was here,
    TransientError when the server is out of reach, UsageError for a dsn that is none.
    """
    try:
        with psycopg.connect(dsn, connect_timeout=10) as connection:
            return upgrade(connection)
    except psycopg.errors.InsufficientPrivilege as error:
        raise OperatorError(
            f"the tables of domain events cannot be made: {error.diag.message_primary}",
            hint="let the user CREATE in the database, or install as its owner and grant migrations/source/grants.sql",
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


def upgrade(connection: psycopg.Connection[tuple[object, ...]]) -> list[str]:
    """``install`` on a connection; the caller commits."""
    connection.execute(_LOCK)
    known = connection.execute("SELECT to_regclass('tailrace.migrations') IS NOT NULL").fetchone()
    if known != (True,):
        connection.execute(_SET_UP)
    rows = connection.execute("SELECT number FROM tailrace.migrations").fetchall()
    applied = {number for (number,) in rows}
    wanted = steps()
    unknown = applied - {step.number for step in wanted}
    if unknown:
        raise OperatorError(
            f"schema tailrace of this database has steps that this release does not know: {sorted(map(str, unknown))}",
            hint="use the release that made them, or a later one",
        )
    missing = [step for step in wanted if step.number not in applied]
    for step in missing:
        connection.execute(step.sql, prepare=False)
        connection.execute(_RECORD, [step.number, step.name])
    return [step.name for step in missing]


def uninstall_script() -> str:
    """SQL that removes everything ``install`` made. It is printed, never run: the events go with it."""
    return (_HERE / "uninstall.sql").read_text(encoding="utf-8")


def grants_script() -> str:
    """SQL that gives an application and capture no more than they need; role names are to be replaced."""
    return (_HERE / "grants.sql").read_text(encoding="utf-8")
