"""The optional event trigger that writes DDL into the stream: read its state, install it, remove it."""

from __future__ import annotations

from enum import Enum
from importlib.resources import files

import psycopg
from psycopg import Connection

from tailrace.cdc.postgres.connect import Address, literal, quote, translate_errors
from tailrace.eventstore.errors import OperatorError

Row = tuple[object, ...]

_STATE = """
SELECT count(*) FILTER (WHERE t.evtenabled IN ('O', 'A'))::int, count(*)::int,
       max(pg_catalog.obj_description(t.oid, 'pg_event_trigger'))
FROM pg_catalog.pg_event_trigger t
WHERE t.evtname IN ('tailrace_ddl_start', 'tailrace_ddl_drop', 'tailrace_ddl_rewrite', 'tailrace_ddl_end')
"""
_TRIGGERS = 4
FUNCTIONS = 5
"""Raised with each change of ``install.sql``. The comment on ``tailrace_ddl_end`` says which one a database has:
it keeps its functions until ``init --ddl`` runs again."""
# Whoever owns schema, secret or functions could write messages that are believed. A hostile role may have made them
# first; only a trusted one can own the event trigger.
_TRUST = """
WITH owner(oid) AS (
    SELECT n.nspowner FROM pg_catalog.pg_namespace n WHERE n.nspname = 'tailrace'
    UNION SELECT c.relowner FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'tailrace' AND c.relname = 'secret'
    UNION SELECT p.proowner FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = 'tailrace' AND p.proname ~ '^ddl_'
)
SELECT (SELECT string_agg(r.rolname, ', ') FROM owner o JOIN pg_catalog.pg_roles r ON r.oid = o.oid
        WHERE NOT r.rolsuper AND r.rolname <> current_user
          AND r.oid <> (SELECT d.datdba FROM pg_catalog.pg_database d WHERE d.datname = current_database())
          AND r.oid NOT IN (SELECT t.evtowner FROM pg_catalog.pg_event_trigger t
                            WHERE t.evtname = 'tailrace_ddl_end')),
       EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = 'tailrace' AND c.relname = 'secret' AND c.relkind = 'r'
                 AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
                 AND pg_catalog.has_table_privilege(c.oid, 'SELECT')),
       EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = 'tailrace' AND c.relname = 'secret'
                 AND pg_catalog.has_any_column_privilege('public', c.oid, 'SELECT'))
"""
_SQL = files("tailrace.migrations.source.ddl")


class Trigger(Enum):
    """Whether a database has the trigger."""

    ABSENT = "is not installed"
    ACTIVE = "is installed"
    INACTIVE = "is there, but disabled or in parts"
    OUTDATED = "was installed by another release than this one"
    UNREADABLE = (
        "is installed, but the source's user may not read the secret that its messages are checked with"
    )
    UNTRUSTED = (
        "is not believed: its schema, secret or functions belong to a role that is not trusted, or anybody may read "
        "the secret"
    )


def read_trigger(connection: Connection[Row], address: Address) -> Trigger:
    with translate_errors("looking for the DDL trigger", address):
        row = connection.execute(_STATE).fetchone()
    assert row is not None
    enabled, there, comment = row
    if not there:
        return Trigger.ABSENT
    if enabled != _TRIGGERS:
        return Trigger.INACTIVE
    if comment != f"tailrace ddl {FUNCTIONS}":
        return Trigger.OUTDATED
    return trust(connection, address)


def trust(connection: Connection[Row], address: Address) -> Trigger:
    """Whether the secret of a trigger that is there may be believed, and read."""
    with translate_errors("looking for the DDL trigger", address):
        row = connection.execute(_TRUST).fetchone()
    assert row is not None
    strangers, readable, public = row
    if strangers or public:
        return Trigger.UNTRUSTED
    return Trigger.ACTIVE if readable else Trigger.UNREADABLE


def hint(trigger: Trigger, user: str) -> str:
    """What to do about a trigger that cannot be used."""
    if trigger is Trigger.UNREADABLE:
        return f"GRANT USAGE ON SCHEMA tailrace TO {quote(user)}; GRANT SELECT ON tailrace.secret TO {quote(user)}"
    if trigger is Trigger.UNTRUSTED:
        return (
            "look who owns schema tailrace and what is in it (\\dn+ tailrace, \\df+ tailrace.*, \\dp tailrace.secret);"
            " drop what is not yours, and run `tailrace init --ddl`"
        )
    return "`tailrace init --ddl` installs it again, `tailrace init --no-ddl` removes it"


def install_script(user: str, *, transaction: bool = True) -> str:
    """``user``: who captures, and may read the secret. In one ``transaction``, so that nobody finds it half done."""
    script = (_SQL / "install.sql").read_text(encoding="utf-8")
    script = script.replace("@capture_role@", quote(user)).replace("@capture_name@", literal(user))
    if not transaction:
        return script
    return f"BEGIN;\nSET LOCAL search_path = pg_catalog, pg_temp;\n{script}COMMIT;\n"


def remove_script() -> str:
    return (_SQL / "remove.sql").read_text(encoding="utf-8")


def install_trigger(connection: Connection[Row], address: Address) -> None:
    """Create or replace it in one transaction. Raises OperatorError when the user may not."""
    with translate_errors("changing the DDL trigger", address):
        row = connection.execute("SELECT current_user").fetchone()
    assert row is not None
    _run(connection, address, install_script(str(row[0]), transaction=False))


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
                hint=error.diag.message_hint or PRIVILEGE_HINT,
            ) from None


PRIVILEGE_HINT = (
    "event triggers need a superuser, or the role that your provider gives for it: let it run what"
    " `tailrace init --ddl --dry-run` prints; capture itself needs no further privilege"
)
