"""Where the tables of consumer groups live, and bringing them up to date."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import text

from eventstore.catalog import Catalog, revision
from eventstore.errors import OperatorError
from eventstore.subscriptions import tables


def groups_file(catalog: Path) -> Path:
    """The SQLite database of groups beside a catalog's."""
    return catalog.with_name(f"{catalog.stem}-groups{catalog.suffix}")


def open_groups(catalog: Catalog) -> Catalog:
    """The database of a store's groups, with its tables. Raises OperatorError when their format is not ours."""
    database = catalog if catalog.path is None else catalog.beside(groups_file(catalog.path))
    found = revision(database, tables.VERSION_TABLE)
    if found is None or found < tables.REVISION:
        _migrate(database)
    elif found > tables.REVISION:
        raise OperatorError(
            f"the groups of {catalog.label} have format {found}; this version of Tailrace knows {tables.REVISION}",
            hint="install the version of Tailrace that wrote them, or a later one",
        )
    return database


def _migrate(database: Catalog) -> None:
    from migrations.run import Tables, upgrade  # Alembic is needed here alone

    with database.write() as connection:
        if database.kind == "postgres":  # of several at once one makes them, the others wait here
            connection.execute(
                text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 1))"), {"name": database.schema}
            )
        upgrade(Tables.GROUPS, connection)
