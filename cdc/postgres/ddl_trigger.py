"""The optional event trigger that writes DDL into the stream: read its state, install it, remove it."""

from __future__ import annotations

from enum import Enum
from importlib.resources import files

import psycopg
from psycopg import Connection

from tailrace.cdc.postgres.connect import Address, translate_errors
from tailrace.eventstore.errors import OperatorError

Row = tuple[object, ...]

_STATE = """
SELECT count(*) FILTER (WHERE t.evtenabled IN ('O', 'A'))::int, count(*)::int,
       max(pg_catalog.obj_description(t.oid, 'pg_event_trigger'))
FROM pg_catalog.pg_event_trigger t
WHERE t.evtname IN ('tailrace_ddl_start', 'tailrace_ddl_drop', 'tailrace_ddl_rewrite', 'tailrace_ddl_end')
"""
_TRIGGERS = 4
_VERSION = 1  # of its messages; the comment on trigger ``tailrace_ddl_end`` says which one a database has
_SQL = files("tailrace.migrations.source.ddl")


class Trigger(Enum):
    """Whether a database has the trigger."""

    ABSENT = "is not installed"
    ACTIVE = "is installed"
    INACTIVE = "is there, but disabled, in parts or of another version"


def read_trigger(connection: Connection[Row], address: Address) -> Trigger:
    with translate_errors("looking for the DDL trigger", address):
        row = connection.execute(_STATE).fetchone()
    assert row is not None
    enabled, there, comment = row
    if not there:
        return Trigger.ABSENT
    return (
        Trigger.ACTIVE if (enabled, comment) == (_TRIGGERS, f"tailrace ddl {_VERSION}") else Trigger.INACTIVE
    )


def install_script() -> str:
    return (_SQL / "install.sql").read_text(encoding="utf-8")


def remove_script() -> str:
    return (_SQL / "remove.sql").read_text(encoding="utf-8")


def install_trigger(connection: Connection[Row], address: Address) -> None:
    """Create or replace it in one transaction. Raises OperatorError when the user may not."""
    _run(connection, address, install_script())


def remove_trigger(connection: Connection[Row], address: Address) -> None:
    """Remove it. Raises OperatorError when the user may not."""
    _run(connection, address, remove_script())


def _run(connection: Connection[Row], address: Address, script: str) -> None:
    with translate_errors("changing the DDL trigger", address), connection.transaction():
        try:
            connection.execute(script.encode(), prepare=False)
        except psycopg.errors.InsufficientPrivilege as error:
            raise OperatorError(
                f"the DDL trigger of {address.text} cannot be changed: {error.diag.message_primary}",
                hint=PRIVILEGE_HINT,
            ) from None


PRIVILEGE_HINT = (
    "event triggers need a superuser, or the role that your provider gives for it: let it run what"
    " `tailrace init --ddl --dry-run` prints; capture itself needs no further privilege"
)
