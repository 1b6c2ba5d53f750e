"""``tailrace store upgrade``: it says what it would do, and touches nothing that it does not know."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tailrace.eventstore.catalog import group_tables, tables
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tests.tailrace.conftest import Project


def test_a_store_of_this_versions_format_has_nothing_to_do(project: Project) -> None:
    project.configure("[store]\nname = 'acme'\n")
    with Store.open(StoreSettings(name="acme"), create=True, root=project.folder) as store:
        store.group("mails", topics=["shop.*"], start="earliest")
    done = project.run("store", "upgrade", "--detailed-exitcode")
    assert done.code == 3
    assert done.out.splitlines() == [
        f"catalog tables: format {tables.REVISION}, this version's",
        f"groups tables: format {group_tables.REVISION}, this version's",
        "nothing to do",
    ]
    (document,) = project.ok("store", "upgrade", "--phase", "post", "--json").documents
    assert [(each["tables"], each["steps"]) for each in document["tables"]] == [
        ("catalog", []),
        ("groups", []),
    ]


@pytest.mark.parametrize("found", ["0000", "9999", "what"])
def test_a_format_that_is_not_known_is_refused_and_stays(project: Project, found: str) -> None:
    project.configure("[store]\nname = 'acme'\n")
    Store.open(StoreSettings(name="acme"), create=True, root=project.folder).close()
    with sqlite3.connect(project.folder / ".tailrace" / "catalog.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (found,))
    done = project.run("store", "upgrade")
    assert done.code == 7
    known = f"this version of Tailrace knows {tables.FIRST} to {tables.REVISION}"
    assert f"format {found}; {known}" in " ".join(done.err.split())
    with sqlite3.connect(project.folder / ".tailrace" / "catalog.db") as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(found,)]


def test_roles_that_the_owner_may_not_make_are_named_and_granted_once_they_are_there(
    project: Project, database: str, tmp_path: Path
) -> None:
    name = f"o{database.rpartition('_')[2]}"
    url = database.replace("postgres@", f"{name}@")
    project.configure(f"[store]\nname = '{name}'\ncatalog = '{url}'\n")
    quoted = sql.Identifier(name)
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(quoted))
        admin.execute(
            sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(sql.Identifier(admin.info.dbname), quoted)
        )
        Store.open(StoreSettings(name=name, catalog=url), create=True, root=project.folder).close()
        said = " ".join(project.ok("store", "upgrade").err.split())
        roles = [f"{name}_log_{role}" for role in ("reader", "writer", "maintainer")]
        assert all(f"CREATE ROLE {role} NOLOGIN" in said for role in roles)
        for role in roles:
            admin.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(role)))
        assert "CREATE ROLE" not in project.ok("store", "upgrade").err
        query = "SELECT has_table_privilege(%s, %s, 'SELECT'), has_table_privilege(%s, %s, 'DELETE')"
        epochs = f"{name}_log.epochs"
        assert admin.execute(query, (roles[0], epochs, roles[0], epochs)).fetchall() == [(True, False)]
