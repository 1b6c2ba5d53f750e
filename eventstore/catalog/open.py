"""Opening a store's two databases, each with its tables: the catalog, and the one of consumer groups."""

from __future__ import annotations

from pathlib import Path

from tailrace.eventstore.catalog import formats, group_tables
from tailrace.eventstore.catalog.database import Catalog, connect_catalog
from tailrace.eventstore.errors import TailraceError

GROUPS = formats.Family(
    "groups",
    group_tables.VERSION_TABLE,
    group_tables.REVISION,
    group_tables.LEAST,
    group_tables.group_format.c.needs,
)


def open_catalog(url: str, *, store_name: str, root: Path, create: bool) -> Catalog:
    """Connect and check the format; with ``create`` make the tables first when there are none.

    Raises UsageError for a URL that is no SQLite or Postgres URL, OperatorError when the catalog is missing, of
    another version, or may not be used, TransientError when its server is out of reach.
    """
    catalog = connect_catalog(url, store_name=store_name, root=root, create=create)
    try:
        if create:
            formats.create(catalog, formats.CATALOG)
        formats.check(catalog, formats.CATALOG)
    except TailraceError:
        catalog.close()
        raise
    return catalog


def groups_file(catalog: Path) -> Path:
    """The SQLite database of groups beside a catalog's."""
    return catalog.with_name(f"{catalog.stem}-groups{catalog.suffix}")


def open_groups(catalog: Catalog) -> Catalog:
    """The database of a store's groups, with its tables. Raises OperatorError when their format is not ours."""
    if catalog.path is not None and catalog.read_only and not groups_file(catalog.path).exists():
        return catalog.without_file(group_tables.metadata)  # there are no groups, and none can be made
    database = catalog if catalog.path is None else catalog.open_sibling(groups_file(catalog.path))
    if not database.read_only:
        formats.create(database, GROUPS)
    formats.check(database, GROUPS)
    return database
