"""Catalog and segments must be a pair: a marker beside the segments names the log.

Foreign ones would hand us wrong files, and upkeep would take that log's files for orphans.
"""

from __future__ import annotations

from sqlalchemy import update

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.errors import MissingFile, OperatorError
from tailrace.eventstore.metadata import topics
from tailrace.eventstore.storage import Storage
from tailrace.eventstore.storage.open import MARKER, read_marker, write_marker


def require(catalog: Catalog, storage: Storage, log_id: str, *, create: bool) -> None:
    """Raises OperatorError when they are none; ``create`` makes one of a new catalog and its place."""
    if create and not storage.exists(MARKER):
        _pair(catalog, storage, log_id)
    try:
        found = read_marker(storage)
    except MissingFile:
        raise OperatorError(
            f"{storage.label} is not the place of the segments of {catalog.label}: it has no {MARKER}",
            hint="correct store.segments, or restore the segments from the same backup as the catalog",
        ) from None
    if found != log_id:
        raise OperatorError(
            f"the segments in {storage.label} belong to another log ({found}) than {catalog.label} ({log_id})",
            hint="give every store its own store.segments, or restore both from one backup",
        )


def _pair(catalog: Catalog, storage: Storage, log_id: str) -> None:
    """Unless the log has begun: then its segments are elsewhere."""
    with catalog.read() as connection:
        if topics.head_epoch(connection):
            return
    with catalog.write() as connection:  # of several creators one writes it, the others wait here
        connection.execute(update(tables.log).values(log_id=log_id))
        if not storage.exists(MARKER):
            write_marker(storage, log_id)
