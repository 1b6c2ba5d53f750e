"""Which catalog the segments belong to, asked before any of them is removed.

Two catalogs over one place, one of them a copy, have the same log's id. What the one wrote since the copy, the other
does not name: it would take it for what a crash left, and would remove what it merged itself while the other still
reads it. A file beside the segments names the catalog that removes files there: by its inode, or in Postgres by the
oids of its database and schema. It names the place, too: copied or restored together with the segments it says
nothing, and the catalog that comes next takes its place.
"""

from __future__ import annotations

import json
from contextlib import suppress

from sqlalchemy import text

from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.errors import MissingFile, OperatorError, manual_page
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.storage import LocalStorage, Storage
from tailrace.eventstore.storage.base import NameTaken
from tailrace.eventstore.storage.open import CATALOG_MARKER

_POSTGRES = """
SELECT (SELECT system_identifier FROM pg_catalog.pg_control_system())::text, d.oid::text, n.oid::text
  FROM pg_catalog.pg_database d, pg_catalog.pg_namespace n
 WHERE d.datname = current_database() AND n.nspname = :schema
"""


def require_own_segments(log: Log) -> None:
    """Raises OperatorError when the segments are another catalog's. The first one that asks takes them."""
    mine = {"catalog": _identity(log.catalog), "place": _place(log.storage)}
    found = _read(log.storage)
    if found is not None and found.get("place") == mine["place"]:
        if found.get("catalog") != mine["catalog"]:
            raise _refusal(log, str(found.get("label", "")))
        return
    if found is not None:
        log.storage.delete(CATALOG_MARKER)
    with suppress(NameTaken):
        log.storage.write(CATALOG_MARKER, json.dumps({**mine, "label": log.catalog.label}).encode())
        return
    require_own_segments(log)  # somebody else was first


def _refusal(log: Log, other: str) -> OperatorError:
    return OperatorError(
        f"the segments in {log.storage.label} belong to another catalog ({other}) than {log.catalog.label}, which is a"
        " copy or was put in its place; nothing was removed",
        hint="give a copy of a store its own store.segments, and a copy of the files; if the other catalog is gone,"
        f" remove {log.storage.place(CATALOG_MARKER)}, and this one takes the segments; see "
        + manual_page("operations/running.md", "Two stores of one name"),
    )


def _identity(catalog: Catalog) -> str:
    if catalog.path is not None:
        return f"inode {catalog.path.stat().st_ino}"
    with catalog.read() as connection:
        server, database, schema = connection.execute(text(_POSTGRES), {"schema": catalog.schema}).one()
    return f"server {server}, database {database}, schema {schema}"


def _place(storage: Storage) -> str:
    return f"inode {storage.root.stat().st_ino}" if isinstance(storage, LocalStorage) else storage.label


def _read(storage: Storage) -> dict[str, object] | None:
    """None when there is none, or none that can be read."""
    try:
        found = json.loads(bytes(storage.open(CATALOG_MARKER)))
    except (MissingFile, ValueError):
        return None
    return found if isinstance(found, dict) else None
