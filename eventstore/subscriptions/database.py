"""Where the tables of consumer groups live."""

from __future__ import annotations

from pathlib import Path

from eventstore import formats
from eventstore.catalog import Catalog
from eventstore.subscriptions import tables

GROUPS = formats.Family(
    "groups", tables.VERSION_TABLE, tables.REVISION, tables.LEAST, tables.group_format.c.needs
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
