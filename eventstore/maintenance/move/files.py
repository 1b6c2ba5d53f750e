"""Which files a catalog names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, select

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.segment.copy import NamedFile

# Every table whose rows name files in the segments' place. ``archived`` and ``archiving`` name files elsewhere;
# ``retired`` ones that only earlier readers may want, and a store that has moved has none of these.
NAMING = (tables.segments, tables.state_runs, tables.epoch_files, tables.kept_frames)


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


def _step_files(value: Any) -> Iterator[NamedFile]:
    """Files in a step's JSON: whatever has a path and a checksum."""
    if isinstance(value, dict):
        if value.get("path"):
            yield NamedFile(value["path"], value["bytes"], value["checksum"])
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _step_files(each)
