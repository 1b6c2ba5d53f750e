"""Which files a catalog names, and that none of these is removed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, select

from tailrace.eventstore.catalog import tables, terms
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.errors import damaged_row
from tailrace.eventstore.segment.copy import NamedFile

# Every table whose rows name files in the segments' place. ``archived`` and ``archiving`` name files elsewhere;
# ``retired`` ones that only earlier readers may want, and a store that has moved has none of these.
NAMING = (tables.segments, tables.state_runs, tables.epoch_files, tables.kept_frames)
_PATHS_AT_ONCE = 10_000  # SQLite takes 32,766 parameters in a statement, Postgres 65,535


def named_files(connection: Connection) -> list[NamedFile]:
    """Every file that the log and its projections need, by path."""
    by_path = {}
    for table in NAMING:
        columns = table.c.path, table.c.bytes, table.c.checksum
        for row in connection.execute(select(*columns).where(table.c.path.is_not(None))):
            by_path[row.path] = NamedFile(row.path, row.bytes, row.checksum)
    for text in connection.scalars(select(tables.derived.c.files)):
        by_path.update({file.path: file for file in _step_files(json.loads(text))})
    return [by_path[path] for path in sorted(by_path)]


def require_replaced(catalog: Catalog, rows: Mapping[str, str]) -> None:
    """Before files of the log are removed because a row said that they may be: by path, the table and key of that row.
    Raises IntegrityError for one that the log still names, and for what is no file of the log's. (No file is named
    again once it was replaced, so the answer holds.)"""
    for path, row in rows.items():
        if terms.FILE_NAME.fullmatch(path) is None:
            raise damaged_row(row, f"{path} is no name that the log gives to a file of its own")
    paths = list(rows)
    with catalog.read() as connection:
        for start in range(0, len(paths), _PATHS_AT_ONCE):
            page = paths[start : start + _PATHS_AT_ONCE]
            for table in NAMING:
                found = connection.scalar(select(table.c.path).where(table.c.path.in_(page)).limit(1))
                if found is not None:
                    raise damaged_row(rows[found], f"{found} is in use: {table.name} names it; it stays")


def _step_files(value: Any) -> Iterator[NamedFile]:
    """Files in a step's JSON: whatever has a path and a checksum."""
    if isinstance(value, dict):
        if value.get("path"):
            yield NamedFile(value["path"], value["bytes"], value["checksum"])
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _step_files(each)
