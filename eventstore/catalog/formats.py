"""Formats of the tables: which one a database has, which code may use it, and what an upgrade would do.

Migrations come in two phases, so that processes are replaced one by one. One of phase *pre* only adds: code of the
release before goes on with the new tables. One of phase *post* takes away what only older code uses, and is run when
none of that runs any more. So the database says which code may use the tables (``needs``), not the code.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Column, Connection, MetaData, column, insert, inspect, select, table, text, update

from tailrace.eventstore.catalog import roles, tables
from tailrace.eventstore.catalog.database import INIT, Catalog
from tailrace.eventstore.errors import OperatorError, manual_page
from tailrace.eventstore.model.time import now_micros

MigrationPhase = Literal["pre", "post"]
_UPGRADE = "tailrace store upgrade"


@dataclass(frozen=True, slots=True)
class Family:
    """Tables with one version. This code writes format ``revision`` and can work with any from ``least`` on;
    ``needs`` is where the database says which code it needs at least."""

    name: Literal["catalog", "groups"]
    version_table: str
    revision: str
    least: str
    needs: Column[str]

    @property
    def metadata(self) -> MetaData:
        return self.needs.table.metadata


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """One migration that a database has not seen."""

    revision: str
    phase: MigrationPhase
    about: str


CATALOG = Family("catalog", "alembic_version", tables.REVISION, tables.LEAST, tables.log.c.needs)


def stored_format(catalog: Catalog, family: Family) -> str | None:
    """The format that a database has; None without one."""
    with catalog.read() as connection:
        if not inspect(connection).has_table(family.version_table):
            return None
        number = connection.scalar(select(column("version_num")).select_from(table(family.version_table)))
        return None if number is None else str(number)


def check(catalog: Catalog, family: Family) -> None:
    """Raises OperatorError when this code and the database's tables do not go together."""
    has = stored_format(catalog, family)
    if has is None:
        raise OperatorError(f"{catalog.label} has no tables of Tailrace", hint=INIT)
    if has < family.least:
        raise OperatorError(
            f"the {family.name} tables of {catalog.label} have format {has}, "
            f"this version of Tailrace needs {family.least}",
            hint=f"{_UPGRADE} says what it would do, and does it; see "
            + manual_page("operations/catalog.md", "Upgrades"),
        )
    if has > family.revision:
        require_known(catalog, family, has)


def require_known(catalog: Catalog, family: Family, has: str) -> None:
    """Raises OperatorError when tables of a later format can no longer be used by this code."""
    with catalog.read() as connection:
        needs = connection.scalar(select(family.needs))
    if needs is None or needs > family.revision:
        raise OperatorError(
            f"the {family.name} tables of {catalog.label} have format {has}, for Tailrace of format {needs} or later; "
            f"this one knows {family.revision}",
            hint="install the version of Tailrace that wrote them, or a later one",
        )


def plan(catalog: Catalog, family: Family) -> list[MigrationStep]:
    """What an upgrade to this code's format would do, in order. Raises OperatorError when there are no tables, or they
    are of a format that this code does not know."""
    has = stored_format(catalog, family)
    if has is None:
        raise OperatorError(f"{catalog.label} has no tables of Tailrace", hint=INIT)
    steps = _steps(family)
    numbers = [step.revision for step in steps]
    if has not in numbers:
        raise OperatorError(
            f"the {family.name} tables of {catalog.label} have format {has}; this version of Tailrace knows "
            f"{numbers[0]} to {numbers[-1]}",
            hint="upgrade with the version of Tailrace that wrote them, or a later one",
        )
    return steps[numbers.index(has) + 1 :]


def steps_of_phase(steps: Sequence[MigrationStep], phase: MigrationPhase) -> list[MigrationStep]:
    """Those of a plan that a phase runs: up to the first *post* one, or all."""
    if phase == "post":
        return list(steps)
    first = next((at for at, step in enumerate(steps) if step.phase == "post"), len(steps))
    return list(steps[:first])


def create(catalog: Catalog, family: Family) -> None:
    """Make the tables where there are none; of several callers at once one does it."""
    if stored_format(catalog, family) is None:
        migrate(catalog, family, _steps(family))


def migrate(catalog: Catalog, family: Family, steps: Sequence[MigrationStep]) -> None:
    """Run migrations that come next to what the database has, and grant the roles. All or nothing; of several callers
    at once the later ones find it done."""
    from tailrace.migrations.run import Tables, upgrade  # Alembic takes long to import, and is rarely needed

    with catalog.write() as connection:
        if catalog.kind == "postgres":
            _lock(connection, catalog.schema)
            _make_schema(connection, catalog.schema)
        if steps:
            upgrade(Tables(family.name), connection, family.metadata, steps[-1].revision)
        if family is CATALOG:
            _begin_log(connection)
        _raise_needs(connection, family, steps)
        if catalog.kind == "postgres":
            roles.grant(connection, catalog.schema)
    if catalog.kind == "postgres":
        catalog.engine.dispose()  # connections that were made before the schema existed


def _steps(family: Family) -> list[MigrationStep]:
    from tailrace.migrations.run import Tables, steps  # as in ``migrate``

    return [
        MigrationStep(revision, "post" if phase == "post" else "pre", about)
        for revision, phase, about in steps(Tables(family.name))
    ]


def _lock(connection: Connection, schema: str) -> None:
    query = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")
    connection.execute(query, {"name": schema})


def _make_schema(connection: Connection, schema: str) -> None:
    """CREATE SCHEMA IF NOT EXISTS asks for the privilege even when there is nothing to do."""
    if connection.scalar(text("SELECT 1 FROM pg_namespace WHERE nspname = :name"), {"name": schema}):
        return
    quoted = connection.dialect.identifier_preparer.quote_identifier(schema)
    connection.execute(text(f"CREATE SCHEMA {quoted}"))


def _begin_log(connection: Connection) -> None:
    if connection.scalar(select(tables.log.c.id)) is None:
        row = {"id": 1, "log_id": uuid.uuid4().hex, "created_at": now_micros(), "needs": tables.FIRST}
        connection.execute(insert(tables.log).values(row))
        connection.execute(insert(tables.log_head).values(id=1, epoch=0, hash="", declared=f"0:{'0' * 64}"))


def _raise_needs(connection: Connection, family: Family, steps: Sequence[MigrationStep]) -> None:
    taken = [step.revision for step in steps if step.phase == "post"]
    if taken:
        connection.execute(update(family.needs.table).values({family.needs.name: taken[-1]}))
