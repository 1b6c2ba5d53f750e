"""Where the tables of consumer groups live."""

from __future__ import annotations

from pathlib import Path

from tailrace.eventstore.catalog import formats, group_tables
from tailrace.eventstore.catalog.database import Catalog

GROUPS = formats.Family(
    "groups",
    group_tables.VERSION_TABLE,
    group_tables.REVISION,
    group_tables.LEAST,
    group_tables.group_format.c.needs,
)


def groups_file(catalog: Path) -> Path:
    """The SQLite database of groups beside a catalog's."""
    return catalog.with_name(f"{catalog.stem}-groups{catalog.suffix}")


def open_groups(catalog: Catalog) -> Catalog:
    """The database of a store's groups, with its tables. Raises OperatorError when their format is not ours."""
    database = catalog if catalog.path is None else catalog.beside(groups_file(catalog.path))
    formats.create(database, GROUPS)
    formats.check(database, GROUPS)
    return database
