"""A catalog that nothing can be written to any more, and where its log went.

The barrier is in the database, as triggers on every table: processes that were begun before, of whatever kind and
wherever, are stopped by their next write. A row of ``moved`` tells everybody who opens the store.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, Table, delete, insert, select, text, update

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.catalog.database import MOVED_STATE, MOVED_TEXT, Catalog
from tailrace.eventstore.errors import OperatorError, manual_page
from tailrace.eventstore.model.time import from_micros, now_micros

_UNGUARDED = {tables.moved.name, tables.leases.name}  # who holds a lease may still give it back
_EVENTS = ("INSERT", "UPDATE", "DELETE")
_FUNCTION = "refuse_moved"


def check(catalog: Catalog) -> None:
    """Raises OperatorError when the log is not (any more, or yet) in this catalog."""
    with catalog.read() as connection:
        row = connection.execute(select(tables.moved)).one_or_none()
    if row is None:
        return
    place = f"{row.catalog}, segments in {row.segments}"
    again = (
        "finish the move first: `tailrace store move` with the same options continues it, or --abandon gives it up; "
        "see " + manual_page("operations/storage.md", "Moving a store")
    )
    if row.arriving:
        raise OperatorError(
            f"{catalog.label}: a log is being moved here from {place}; it is not complete yet", hint=again
        )
    if row.ended_at is None:
        raise OperatorError(f"{catalog.label}: this store is being moved to {place}", hint=again)
    raise OperatorError(
        f"{catalog.label}: this store was moved to {place} on {from_micros(row.ended_at):%Y-%m-%d %H:%M} UTC",
        hint="set store.catalog and store.segments to that; what is left here is a copy and may be removed",
    )


def put_up(connection: Connection, kind: str, guarded: Iterable[Table], place: str) -> None:
    """From the end of this transaction on every write to these tables is refused with an error that names ``place``."""
    said = f"{MOVED_TEXT}{place}".replace("'", "''")
    quote = connection.dialect.identifier_preparer.quote_identifier
    if kind == "postgres":
        body = f"BEGIN RAISE EXCEPTION '%', '{said}' USING ERRCODE = '{MOVED_STATE}'; END"
        made = f"CREATE OR REPLACE FUNCTION {_FUNCTION}() RETURNS trigger LANGUAGE plpgsql AS $body$ {body} $body$"
        connection.exec_driver_sql(made.replace("%", "%%"))
    for table in guarded:
        if table.name in _UNGUARDED:
            continue
        for event in _EVENTS:
            name = quote(_trigger(table, event))
            if kind == "postgres":
                how = f"FOR EACH STATEMENT EXECUTE FUNCTION {_FUNCTION}()"
            else:
                how = f"BEGIN SELECT RAISE(ABORT, '{said}'); END"
            connection.exec_driver_sql(f"CREATE TRIGGER {name} BEFORE {event} ON {quote(table.name)} {how}")


def take_down(connection: Connection, kind: str, guarded: Iterable[Table]) -> None:
    """Undo ``put_up``."""
    quote = connection.dialect.identifier_preparer.quote_identifier
    for table in guarded:
        if table.name in _UNGUARDED:
            continue
        for event in _EVENTS:
            on = f" ON {quote(table.name)}" if kind == "postgres" else ""
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {quote(_trigger(table, event))}{on}")
    if kind == "postgres":
        connection.execute(text(f"DROP FUNCTION IF EXISTS {_FUNCTION}()"))


def _trigger(table: Table, event: str) -> str:
    return f"moved_{table.name}_{event.lower()}"


def mark(connection: Connection, *, log_id: str, arriving: bool, catalog: str, segments: str) -> None:
    """Say that the log ``log_id`` goes to, or comes (``arriving``) from, that other place."""
    row = {"log_id": log_id, "arriving": arriving, "catalog": catalog, "segments": segments}
    connection.execute(delete(tables.moved))
    connection.execute(insert(tables.moved).values(id=1, began_at=now_micros(), **row))


def unmark(connection: Connection) -> None:
    connection.execute(delete(tables.moved))


def end(connection: Connection) -> None:
    """The log has left."""
    connection.execute(update(tables.moved).values(ended_at=now_micros()))
