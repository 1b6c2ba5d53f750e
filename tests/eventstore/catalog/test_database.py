"""The catalog: migrations equal the tables, what stands in the way of opening is said clearly, secrets stay secret."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, UniqueConstraint, column, insert, inspect, table, text, update

from tailrace.embedded import PostgresServer
from tailrace.eventstore.catalog import formats, tables
from tailrace.eventstore.catalog import group_tables as group_tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.catalog.formats import MigrationStep
from tailrace.eventstore.catalog.open import GROUPS
from tailrace.eventstore.errors import (
    IntegrityError,
    OperatorError,
    TailraceError,
    TransientError,
    UsageError,
)
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tailrace.migrations.run import Tables, config, downgrade, upgrade
from tests.eventstore.shop import batch, content, register, writer
from tests.fixtures.stores import StoreFactory

FAMILIES = pytest.mark.parametrize(
    ("family", "declared"),
    [(formats.CATALOG, tables.metadata), (GROUPS, group_tables.metadata)],
    ids=["catalog", "groups"],
)


def database_of(store: Store, family: formats.Family) -> Catalog:
    return store.groups_database if family is GROUPS else store.catalog


def differences(connection: Connection, family: formats.Family, declared: MetaData) -> list[object]:
    """Between a database and the tables declared; the other family may live beside them."""

    def ours(name: str | None, kind: str, _parents: object) -> bool:
        return kind != "table" or name in declared.tables

    options = {"compare_type": True, "version_table": family.version_table, "include_name": ours}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), declared))


def test_no_lock_is_held_while_files_are_touched(new_store: StoreFactory) -> None:
    """``tests/fixtures/locks.py`` has every test watch for it; here it sees one."""
    store = new_store()
    store.storage.exists("a")
    with store.catalog.write(), pytest.raises(AssertionError, match="inside a transaction of the catalog"):
        store.storage.exists("a")
    with store.catalog.read():
        store.storage.exists("a")


def test_threads_that_make_stores_of_their_own_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def make(number: int) -> None:
        root = tmp_path / str(number)
        root.mkdir()
        together.wait()
        with Store.open(StoreSettings(), create=True, root=root) as store:
            assert store.groups_database

    with ThreadPoolExecutor(8) as pool:
        for made in [pool.submit(make, number) for number in range(8)]:
            made.result()


@FAMILIES
def test_migrations_from_zero_equal_the_tables(
    new_store: StoreFactory, family: formats.Family, declared: MetaData
) -> None:
    with database_of(new_store(), family).engine.connect() as connection:
        assert differences(connection, family, declared) == []
        scripts = ScriptDirectory.from_config(config(Tables(family.name), connection, family.metadata))
        assert scripts.get_current_head() == family.revision
        found = inspect(connection)
        for each in declared.sorted_tables:  # what autogenerate does not compare
            key = found.get_pk_constraint(each.name)["constrained_columns"]
            assert key == [column.name for column in each.primary_key], each.name
            unique = {tuple(one["column_names"]) for one in found.get_unique_constraints(each.name)}
            expected = {
                tuple(column.name for column in one.columns)
                for one in each.constraints
                if isinstance(one, UniqueConstraint)
            }
            assert unique == expected, each.name


@FAMILIES
def test_downgrading_leaves_nothing_and_upgrading_brings_all_back(
    new_store: StoreFactory, family: formats.Family, declared: MetaData
) -> None:
    database = database_of(new_store(), family)
    with database.write() as connection:
        downgrade(Tables(family.name), connection, family.metadata, "base")
    with database.engine.connect() as connection:
        assert not {*inspect(connection).get_table_names()} & {*declared.tables}
    with database.write() as connection:
        upgrade(Tables(family.name), connection, family.metadata)
        assert differences(connection, family, declared) == []


def test_opening_again_keeps_the_log(new_store: StoreFactory) -> None:
    store = new_store()
    writer(store).append(batch(10, orders=[("c", 1)]))
    again = new_store()
    assert again.log_id == store.log_id
    assert content(again) == content(store)


def test_a_store_that_is_not_there(catalog_url: str, store_dir: Path) -> None:
    with pytest.raises(OperatorError) as caught:
        Store.open(StoreSettings(catalog=catalog_url), root=store_dir)
    assert "tailrace init" in caught.value.hint
    assert not list(store_dir.iterdir())


def set_format(store: Store, family: formats.Family, found: str, needs: str) -> None:
    """As a migration of another version would leave it."""
    with database_of(store, family).write() as connection:
        connection.execute(
            update(table(family.version_table, column("version_num"))).values(version_num=found)
        )
        connection.execute(update(family.needs.table).values({family.needs.name: needs}))


@FAMILIES
def test_tables_of_an_older_format_name_the_upgrade(
    new_store: StoreFactory, family: formats.Family, declared: MetaData
) -> None:
    set_format(new_store(), family, "0000", "0000")
    with pytest.raises(OperatorError, match=f"the {family.name} tables .* format 0000") as caught:
        _ = new_store().groups_database
    assert "tailrace store upgrade" in caught.value.hint


@FAMILIES
def test_tables_that_a_later_version_only_added_to_are_used_as_before(
    new_store: StoreFactory, family: formats.Family, declared: MetaData
) -> None:
    """Processes of one version go on while those of the next are started."""
    store = new_store()
    group = store.group("mails", topics=["shop.*"], start="earliest")
    writer(store).append(batch(10, orders=[("c", 1)]))
    with database_of(store, family).write() as connection:
        table = "segments" if family is formats.CATALOG else "group_partitions"
        connection.execute(text(f"ALTER TABLE {table} ADD COLUMN later bigint"))
    set_format(store, family, "9999", family.revision)
    again = new_store()
    writer(again).append(batch(20, orders=[("c", 2)]))
    with again.group("mails").join(member="a") as member:
        seen = 0
        while seen < 2:
            found = member.poll(timeout=60)
            assert found is not None
            seen += found.rows.num_rows
            found.commit()
    assert group.progress()[0].lag == 0
    again.seal()
    assert len(content(again)) == 2


@FAMILIES
def test_tables_of_which_a_later_version_took_something_away_are_refused(
    new_store: StoreFactory, family: formats.Family, declared: MetaData
) -> None:
    set_format(new_store(), family, "9999", "9998")
    with pytest.raises(OperatorError, match="format 9999, for Tailrace of format 9998") as caught:
        _ = new_store().groups_database
    assert "later" in caught.value.hint


def test_the_first_phase_of_an_upgrade_ends_before_something_is_taken_away() -> None:
    steps = [
        MigrationStep("0002", "pre", "a"),
        MigrationStep("0003", "pre", "b"),
        MigrationStep("0004", "post", "c"),
        MigrationStep("0005", "pre", "d"),
    ]
    assert formats.steps_of_phase(steps, "pre") == steps[:2]
    assert formats.steps_of_phase(steps, "post") == steps
    assert formats.steps_of_phase(steps[2:], "pre") == []


def test_segments_of_another_log_are_refused(tmp_path: Path) -> None:
    def settings(name: str) -> StoreSettings:
        return StoreSettings(catalog=f"sqlite:///{name}.db", segments=Path("segments"))

    Store.open(settings("one"), create=True, root=tmp_path).close()
    with pytest.raises(OperatorError, match="belong to another log"):
        Store.open(settings("two"), create=True, root=tmp_path)
    shutil.rmtree(tmp_path / "segments")
    with pytest.raises(OperatorError, match="not the place of the segments"):
        Store.open(settings("one"), root=tmp_path)


@pytest.mark.parametrize(
    "url", ["nonsense", "mysql://root:secret-word@db/x", "sqlite://", "sqlite:///:memory:", "://secret-word@"]
)
def test_a_url_that_is_no_catalog(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError) as caught:
        Store.open(StoreSettings(catalog=url), create=True, root=tmp_path)
    assert "secret-word" not in str(caught.value)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"this is not a database" * 100)
    with pytest.raises(IntegrityError, match="damaged"):
        Store.open(StoreSettings(catalog="sqlite:///catalog.db"), create=True, root=tmp_path)


def test_a_folder_whose_name_has_url_characters(tmp_path: Path) -> None:
    odd = tmp_path / "50% of #1?"
    odd.mkdir()
    with Store.open(create=True, root=odd) as store:
        writer(store).append(batch(10, orders=[("c", 1)]))
    assert (odd / ".tailrace" / "catalog.db").is_file()
    with Store.open(root=odd) as store:
        assert len(content(store)) == 1


def as_stranger(action: Callable[[], object]) -> str:
    """What the action raises for a user without rights here, as ``Class: text``; run in a forked child."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        said = "nothing"
        try:
            action()
        except TailraceError as error:
            said = f"{type(error).__name__}: {error}"
        except BaseException:  # noqa: BLE001 - the child must end here, whatever happens
            said = traceback.format_exc()
        os.write(write_end, said.encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


def test_folders_and_files_without_permission() -> None:
    """Root may do everything, so the attempt is made as nobody; as an ordinary user the modes suffice."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        store = Store.open(create=True, root=root / "there")
        writer(store).append(batch(10, orders=[("c", 1)]))
        store.close()
        for path in (root / "there").rglob("*"):
            path.chmod(0o555 if path.is_dir() else 0o444)
        (root / "there").chmod(0o555)
        root.chmod(0o555)
        said = as_stranger(lambda: Store.open(create=True, root=root / "new"))
        assert said.startswith("OperatorError") and "let the user that runs Tailrace" in said, said
        said = as_stranger(lambda: writer(Store.open(root=root / "there")))
        assert said.startswith("OperatorError") and "hint:" in said, said
        (root / "there" / ".tailrace").chmod(0o000)
        said = as_stranger(lambda: Store.open(root=root / "there"))
        if os.geteuid() == 0:
            assert said.startswith("OperatorError") and "catalog" in said, said
        for path in [root, *root.rglob("*")]:
            path.chmod(path.stat().st_mode | stat.S_IRWXU)


def test_secrets_of_the_catalog_are_never_shown(postgres: PostgresServer, tmp_path: Path) -> None:
    secret = "secret-word"
    refused = f"postgresql://postgres:{secret}@127.0.0.1:1/nowhere?connect_timeout=5"
    absent = f"postgresql://postgres:{secret}@127.0.0.1:{postgres.port}/no_such_database?password={secret}"
    for url, kind in ((refused, TransientError), (absent, OperatorError)):
        with pytest.raises(kind) as caught:
            Store.open(StoreSettings(catalog=url), create=True, root=tmp_path)
        shown = "".join(traceback.format_exception(caught.value))
        assert secret not in shown and "127.0.0.1" in shown
        assert caught.value.hint


def test_a_user_without_rights(postgres: PostgresServer, database: str, tmp_path: Path) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS log_guest")
        connection.execute("CREATE ROLE log_guest LOGIN")
        connection.execute("REVOKE CREATE ON DATABASE " + database.rpartition("/")[2] + " FROM PUBLIC")
    guest = database.replace("postgres@", "log_guest@")
    with pytest.raises(OperatorError, match="permission denied") as caught:
        Store.open(StoreSettings(catalog=guest), create=True, root=tmp_path)
    assert "grant" in caught.value.hint
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP ROLE log_guest")


def test_a_transaction_that_the_server_rolled_back_is_not_reported_as_a_server_out_of_reach(
    database: str, tmp_path: Path
) -> None:
    with Store.open(StoreSettings(catalog=database), create=True, root=tmp_path) as store:
        for state in ("40P01", "40001"):
            raising = f"DO $$ BEGIN RAISE 'no luck' USING ERRCODE = '{state}'; END $$"
            with (
                pytest.raises(TransientError, match="no luck") as caught,
                store.catalog.write() as connection,
            ):
                connection.execute(text(raising))
            assert "out of reach" not in caught.value.message
            assert caught.value.hint == "another process was in the way: try again"


def test_two_stores_share_a_database(database: str, tmp_path: Path) -> None:
    """Each has a schema of its own, and neither is in ``public``."""
    stores = [
        Store.open(StoreSettings(catalog=database, name=name), create=True, root=tmp_path / name)
        for name in ("acme", "globex")
    ]
    try:
        writer(stores[0]).append(batch(10, orders=[("c", 1)]))
        assert stores[1].head() is None and stores[0].log_id != stores[1].log_id
        with stores[0].catalog.read() as connection:
            assert inspect(connection).get_table_names("public") == []
    finally:
        for store in stores:
            store.close()


def test_a_catalog_inside_a_publication_is_refused(database: str, tmp_path: Path) -> None:
    with Store.open(StoreSettings(catalog=database), create=True, root=tmp_path) as store:
        register(store)
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("CREATE PUBLICATION whole FOR ALL TABLES")
            with pytest.raises(OperatorError, match="inside publication whole"):
                store.take_over("shop")
            assert store.sources()[0].term == 0
            connection.execute("DROP PUBLICATION whole")
        assert store.take_over("shop").term == 1


def test_commits_are_durable(new_store: StoreFactory) -> None:
    """SQLite: WAL and FULL; Postgres: synchronous_commit, also where the server's default is off."""
    store = new_store()
    with store.catalog.write() as connection:
        if store.catalog.kind == "sqlite":
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        else:
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"


def test_synchronous_commit_is_on_where_the_server_turned_it_off(database: str, tmp_path: Path) -> None:
    name = database.rpartition("/")[2]
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    settings = StoreSettings(catalog=database)
    with Store.open(settings, create=True, root=tmp_path) as store, store.catalog.write() as inside:
        assert inside.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"


def test_a_read_is_one_snapshot(new_store: StoreFactory) -> None:
    store, other = new_store(), new_store()
    capture = writer(other)
    capture.append(batch(10, orders=[("c", 1)]))
    with store.catalog.read() as connection:
        first = connection.execute(text("SELECT count(*) FROM epochs")).scalar_one()
        capture.append(batch(20, orders=[("c", 2)]))
        again = connection.execute(text("SELECT count(*) FROM epochs")).scalar_one()
    assert (first, again) == (1, 1)
    assert len(store.epochs()) == 2


def test_an_error_inside_a_write_changes_nothing(new_store: StoreFactory) -> None:
    store = new_store()

    def write_and_fail() -> None:
        with store.catalog.write() as connection:
            connection.execute(insert(tables.terms).values(name="x", term=1))
            raise UsageError("stop")

    with pytest.raises(UsageError, match="stop"):
        write_and_fail()
    with store.catalog.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM terms")).scalar_one() == 0


def test_the_sqlite_catalog_is_one_ordinary_database(tmp_path: Path) -> None:
    """Somebody with a shell can look into it; the version tells what wrote it."""
    with Store.open(create=True, root=tmp_path) as store:
        writer(store).append(batch(10, orders=[("c", 1)]))
    with sqlite3.connect(tmp_path / ".tailrace" / "catalog.db") as connection:
        (count,) = connection.execute("SELECT count(*) FROM epochs").fetchone()
    connection.close()
    assert count == 1


def test_opening_does_not_import_alembic(tmp_path: Path) -> None:
    """Readers open stores in short commands; migrations are needed by ``init`` alone."""
    Store.open(create=True, root=tmp_path).close()
    code = (
        "import sys, pathlib; from tailrace.eventstore.store import Store;"
        f"Store.open(root=pathlib.Path({str(tmp_path)!r})).close(); print('alembic' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"
