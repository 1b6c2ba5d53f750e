"""What messages of our own are checked with: a secret of the DDL trigger, and one of emitted events.

A secret counts when the source's user may read it, and nobody could have written it but a superuser, the database's
owner, this user, or, of the trigger's, who owns it: others would make messages that are believed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from psycopg import Connection, sql

from tailrace.cdc.postgres.connect import Address, connect, translate_errors
from tailrace.cdc.postgres.ddl_trigger import Trigger, trust
from tailrace.cdc.wire import ddl_message, emitted
from tailrace.eventstore.model.event_schema import EVENTS_SCHEMA, in_schema

_DDL: Final = "SELECT secret FROM tailrace.secret"
_EMIT: Final = "SELECT secret FROM tailrace.emit_secret"
_SNAPSHOT: Final = "SELECT pg_catalog.pg_current_snapshot()::text"
_SECRET_BYTES: Final = 32
_EMIT_USABLE: Final = """
WITH owner(oid) AS (
    SELECT n.nspowner FROM pg_catalog.pg_namespace n WHERE n.nspname = {name}
    UNION SELECT c.relowner FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = {name} AND c.relname = 'emit_secret'
    UNION SELECT p.proowner FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = {name} AND p.proname ~ '^emit_'
)
SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = {name} AND c.relname = 'emit_secret' AND c.relkind = 'r'
                 AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
                 AND pg_catalog.has_table_privilege(c.oid, 'SELECT')
                 AND NOT pg_catalog.has_any_column_privilege('public', c.oid, 'SELECT'))
   AND NOT EXISTS (SELECT FROM owner o JOIN pg_catalog.pg_roles r ON r.oid = o.oid
        WHERE NOT r.rolsuper AND r.rolname <> current_user
          AND r.oid <> (SELECT d.datdba FROM pg_catalog.pg_database d WHERE d.datname = current_database())
          AND r.oid NOT IN (SELECT c.relowner FROM pg_catalog.pg_class c
                            WHERE c.oid = pg_catalog.to_regclass('tailrace.events')
                              AND EXISTS (SELECT FROM pg_catalog.pg_publication_tables t
                                          WHERE t.schemaname = {name} AND t.tablename = 'events')))
"""

Secrets = Mapping[str, bytes]
"""By prefix of the messages."""


def secrets_reader(address: Address, events_schema: str = EVENTS_SCHEMA) -> Callable[[], tuple[Secrets, str]]:
    """Reads the secrets that are there and can be trusted, and what transactions were visible then."""
    usable = sql.SQL(in_schema(_EMIT_USABLE, events_schema)).format(name=sql.Literal(events_schema))
    emit = in_schema(_EMIT, events_schema)

    def read() -> tuple[Secrets, str]:
        found = {}
        with connect(address, "tailrace capture") as connection:
            with translate_errors("reading the secrets of messages", address):
                snapshot = str(_value(connection, _SNAPSHOT))  # first: what is visible in it is read below
            if trust(connection, address) is Trigger.ACTIVE:
                found[ddl_message.PREFIX] = _value(connection, _DDL)
            with translate_errors("reading the secrets of messages", address):
                if _value(connection, usable):
                    found[emitted.PREFIX] = _value(connection, emit)
        return {
            prefix: secret
            for prefix, secret in found.items()
            if isinstance(secret, bytes) and len(secret) == _SECRET_BYTES
        }, snapshot

    return read


def _value(connection: Connection[Any], query: Any) -> Any:
    row = connection.execute(query).fetchone()
    return None if row is None else row[0]
