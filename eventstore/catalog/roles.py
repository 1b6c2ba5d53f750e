"""Roles of a catalog on Postgres: who may do what to its tables.

Three roles without login, named by the catalog's schema; logins become members of those they need:

- *reader*: consumers, projections' readers, verification. Reads everything; writes leases and the tables of groups
  and publications.
- *writer*: capture and projections. Reads everything; adds to the log, and cannot change or delete what is in it.
- *maintainer*: upkeep. Reads everything; replaces segments and epochs by others, removes a topic's first
  ones, and cannot append.

``log redact`` replaces files and tells so by an epoch, so its login is a member of writer and maintainer; ``topic
repartition`` and ``topic retire`` only add an epoch.
``capture`` does upkeep in a child process, so its login is a member of both unless ``store.upkeep`` is off there.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from sqlalchemy import Connection, text
from sqlalchemy.exc import ProgrammingError

from tailrace.eventstore.errors import OperatorError, manual_page


class Role(StrEnum):
    READER = "reader"
    WRITER = "writer"
    MAINTAINER = "maintainer"

    def of(self, schema: str) -> str:
        """Its name in the server, where roles are those of all databases."""
        return f"{schema}_{self.value}"


_ALL = "INSERT, UPDATE, DELETE"
_LEASES = {"leases": _ALL}
_GROUPS = {
    "groups": _ALL,
    "group_members": _ALL,
    "group_partitions": _ALL,
    "group_parked": _ALL,
    "publication_needs": _ALL,
}
# Beside SELECT on every table. A table that is not named may only be read.
PRIVILEGES: Mapping[Role, Mapping[str, str]] = {
    Role.READER: {**_LEASES, **_GROUPS},
    Role.WRITER: {
        **_LEASES,
        **_GROUPS,
        "sources": "INSERT, UPDATE",
        "topics": "INSERT, UPDATE",
        "topic_schemas": "INSERT",
        "topic_offsets": "INSERT, UPDATE",
        "incomplete": "INSERT, UPDATE",
        "requests": "INSERT, UPDATE",
        "loads": "INSERT, UPDATE, DELETE",
        "load_ranges": "INSERT, UPDATE, DELETE",
        "set_aside": "INSERT, UPDATE, DELETE",
        "kept_frames": "INSERT, DELETE",
        "refused": "INSERT, UPDATE",
        "partitions": "INSERT, DELETE",
        "kafka_partitions": "INSERT, UPDATE",
        "parked_records": "INSERT, DELETE",
        "publications": "INSERT, UPDATE",
        "parked_keys": "INSERT, DELETE",
        "log_head": "UPDATE",
        "epochs": "INSERT",
        "blobs": "INSERT",
        "segments": "INSERT",
        "lineage": "INSERT",
        "generations": "INSERT, UPDATE, DELETE",
        "live": "INSERT, UPDATE, DELETE",
        "derived": "INSERT, DELETE",
        "runs": "INSERT, UPDATE",
    },
    Role.MAINTAINER: {
        **_LEASES,
        "terms": "INSERT, UPDATE",
        "epochs": "UPDATE, DELETE",
        "blobs": "DELETE",
        "segments": "INSERT, DELETE",
        "lineage": "UPDATE",
        "epoch_files": "INSERT, DELETE",
        "retired": "INSERT, DELETE, UPDATE (retired_at)",
        "topic_offsets": "UPDATE (log_starts, whole_from, start_epoch, looks)",
        "state_runs": "INSERT, DELETE",
        "redactions": "INSERT",
        "archived": "INSERT, DELETE",
        "archiving": "INSERT, DELETE",
        "groups": "UPDATE",  # whom retention is forced past is left a position
        "group_partitions": "INSERT",
        "upkeep": "INSERT, DELETE",
    },
}


def grant(connection: Connection, schema: str) -> None:
    """Make the roles where the user may, and bring their privileges on the tables there are to those declared.

    Run by the user that made the tables, in the transaction that changes them. Roles that cannot be made are left out:
    ``missing_roles`` names them.
    """
    quote = connection.dialect.identifier_preparer.quote_identifier
    rows = connection.execute(
        text("SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = :schema"), {"schema": schema}
    )
    found = {str(row.tablename) for row in rows}
    for role in Role:
        if not _ensure_role(connection, role.of(schema)):
            continue
        name, place = quote(role.of(schema)), quote(schema)
        connection.execute(text(f"REVOKE ALL ON ALL TABLES IN SCHEMA {place} FROM {name}"))
        connection.execute(text(f"GRANT USAGE ON SCHEMA {place} TO {name}"))
        connection.execute(text(f"GRANT SELECT ON ALL TABLES IN SCHEMA {place} TO {name}"))
        connection.execute(text(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {place} TO {name}"))
        for table, privileges in PRIVILEGES[role].items():
            if table in found:
                connection.execute(text(f"GRANT {privileges} ON {place}.{quote(table)} TO {name}"))


_LACKING = """
SELECT w.role, current_user::text AS login
  FROM unnest(CAST(:roles AS text[]), CAST(:tables AS text[]), CAST(:privileges AS text[])) AS w(role, name, privilege)
  JOIN pg_catalog.pg_class c ON c.relname = w.name
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace AND n.nspname = :schema
 WHERE NOT pg_catalog.has_table_privilege(c.oid, w.privilege)
"""


def require(connection: Connection, schema: str, what: str, *needed: Role) -> None:
    """Before something that takes several roles. Raises OperatorError when the login lacks what one of them may, by
    whatever name it may it. Privileges on some columns of a table are not looked at."""
    wanted = [
        (role.of(schema), table, privilege)
        for role in needed
        for table, privileges in PRIVILEGES[role].items()
        for privilege in privileges.split(", ")
        if privilege in _ALL.split(", ")
    ]
    roles, names, privileges = (list(each) for each in zip(*wanted, strict=True))
    values = {"roles": roles, "tables": names, "privileges": privileges, "schema": schema}
    lacking = {str(row.role): str(row.login) for row in connection.execute(text(_LACKING), values)}
    if lacking:
        absent, login = [name for name in dict.fromkeys(roles) if name in lacking], {*lacking.values()}.pop()
        raise OperatorError(
            f"{login} may not {what}: it is not a member of {' and '.join(absent)}; nothing was changed",
            hint=f"GRANT {', '.join(absent)} TO {login}, or use a login that is a member; see "
            + manual_page("operations/catalog.md", "Roles on Postgres"),
        )


def missing_roles(connection: Connection, schema: str) -> list[str]:
    """Names of the roles that the server does not have."""
    return [role.of(schema) for role in Role if not _exists(connection, role.of(schema))]


def _ensure_role(connection: Connection, name: str) -> bool:
    """Whether a role is there, also because we made it."""
    if _exists(connection, name):
        return True
    may = text("SELECT rolcreaterole OR rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user")
    if not connection.scalar(may):
        return False
    quoted = connection.dialect.identifier_preparer.quote_identifier(name)
    try:
        with connection.begin_nested():
            connection.execute(text(f"CREATE ROLE {quoted} NOLOGIN"))
    except ProgrammingError:  # at the same moment, from another database of the server
        return _exists(connection, name)
    return True


def _exists(connection: Connection, name: str) -> bool:
    query = text("SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = :name")
    return connection.scalar(query, {"name": name}) is not None
