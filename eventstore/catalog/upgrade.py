"""Upgrading a store's tables to this code's format: what would be done, and doing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tailrace.eventstore.catalog import formats, roles
from tailrace.eventstore.catalog.database import Catalog, connect_catalog
from tailrace.eventstore.catalog.open import GROUPS, groups_file
from tailrace.eventstore.settings import StoreSettings


@dataclass(frozen=True, slots=True)
class Tables:
    """One family of a store's tables, in the database that holds it."""

    database: Catalog
    family: formats.Family
    found: str
    steps: list[formats.MigrationStep]
    """What is left to do, oldest first; empty when the format is this code's."""


class Upgrade:
    """``tables``: the families of a store. Nothing is changed before ``run``."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        databases = [(catalog, formats.CATALOG)]
        if catalog.path is None:
            databases.append((catalog, GROUPS))
        elif groups_file(catalog.path).exists():  # otherwise made with the first group
            databases.append((catalog.open_sibling(groups_file(catalog.path)), GROUPS))
        self.tables = [
            Tables(
                database,
                family,
                formats.stored_format(database, family) or "none",
                formats.plan(database, family),
            )
            for database, family in databases
        ]

    def pending_steps(
        self, phase: formats.MigrationPhase
    ) -> list[tuple[Tables, list[formats.MigrationStep]]]:
        """What a phase would run."""
        chosen = [(each, formats.steps_of_phase(each.steps, phase)) for each in self.tables]
        return [(each, steps) for each, steps in chosen if steps]

    def missing_roles(self) -> list[str]:
        if self._catalog.kind == "sqlite":
            return []
        with self._catalog.read() as connection:
            return roles.missing_roles(connection, self._catalog.schema)

    def run(self, phase: formats.MigrationPhase) -> None:
        """One transaction a family; what is done stays done, and the next run goes on. Roles are granted again even
        when there is nothing else to do."""
        for each in self.tables:
            formats.migrate(each.database, each.family, formats.steps_of_phase(each.steps, phase))

    def close(self) -> None:
        for each in self.tables:
            each.database.close()


@contextmanager
def open_upgrade(settings: StoreSettings, root: Path) -> Iterator[Upgrade]:
    """Raises OperatorError when there is no store, or its tables are of a format that this code does not know."""
    catalog = connect_catalog(settings.catalog, store_name=settings.name, root=root)
    try:
        upgrade = Upgrade(catalog)
        try:
            yield upgrade
        finally:
            upgrade.close()
    finally:
        catalog.close()
