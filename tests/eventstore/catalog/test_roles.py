"""Roles of a catalog on Postgres: each can do its work, and none can do another's."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from tailrace.eventstore.catalog import group_tables as group_tables
from tailrace.eventstore.catalog import roles, tables
from tailrace.eventstore.catalog.requests import RequestState
from tailrace.eventstore.catalog.roles import PRIVILEGES, Role
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.maintenance.files.tiers import FAN_IN
from tailrace.eventstore.maintenance.redaction.receipts import receipts
from tailrace.eventstore.maintenance.redaction.redact import RedactionRequest, plan, redact
from tailrace.eventstore.maintenance.repartition import repartition
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.state.state import state
from tailrace.eventstore.store import Store
from tests.eventstore.shop import ORDERS, batch, register, writer

AS = Callable[..., Store]  # of roles


@pytest.fixture
def owner(database: str, store_dir: Path) -> Iterator[Store]:
    settings = StoreSettings(catalog=database, segments=Path("segments"))
    with Store.open(settings, create=True, root=store_dir) as store:
        register(store)
        writer(store).append(batch(10, orders=[("c", 1), ("c", 2)], completes=[ORDERS]))
        yield store


@pytest.fixture
def as_(owner: Store, database: str, store_dir: Path) -> Iterator[AS]:
    """The store as a login sees it that is a member of one role."""
    given = conninfo_to_dict(database)
    with psycopg.connect(database, autocommit=True) as admin, ExitStack() as opened:

        def login(*roles: Role) -> Store:
            name = f"u{uuid.uuid4().hex[:12]}"
            admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'secret'").format(sql.Identifier(name)))
            opened.callback(admin.execute, sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))
            member = sql.SQL("GRANT {} TO {}")
            for role in roles:
                group = sql.Identifier(role.of(owner.catalog.schema))
                admin.execute(member.format(group, sql.Identifier(name)))
            url = f"postgresql://{name}:secret@{given['host']}:{given['port']}/{given['dbname']}"
            settings = StoreSettings(catalog=url, segments=Path("segments"))
            return opened.enter_context(Store.open(settings, root=store_dir))

        yield login


@contextmanager
def permission_denied() -> Iterator[None]:
    with pytest.raises(OperatorError, match="permission denied") as caught:
        yield
    assert "role" in caught.value.hint


def test_every_privilege_is_of_a_table_there_is() -> None:
    known = {*tables.metadata.tables, *group_tables.metadata.tables}
    assert {name for privileges in PRIVILEGES.values() for name in privileges} <= known


def test_a_reader_reads_consumes_verifies_and_changes_nothing_of_the_log(owner: Store, as_: AS) -> None:
    store = as_(Role.READER)
    assert sum(part.num_rows for part in store.read(ORDERS)) == 2
    assert sum(part.num_rows for part in state(store, ORDERS, store.cut())) == 2
    assert store.verify().findings == ()
    with store.group("mails", topics=["shop.*"], start="earliest").join(member="a") as member:
        found = member.poll(timeout=60)
        assert found is not None
        found.commit()
    store.group("mails").delete()
    with permission_denied():
        store.requests.ask("snapshot", [ORDERS])
    with permission_denied():
        store.take_over("shop")
    with permission_denied():
        repartition(store, ORDERS, 2)
    with permission_denied():
        store.seal()


def test_a_writer_appends_and_asks_and_cannot_change_what_is_there(owner: Store, as_: AS) -> None:
    store = as_(Role.WRITER)
    writer(store).append(batch(20, orders=[("u", 1)]))
    asked = store.requests.ask("snapshot", [ORDERS])
    assert asked[0].state is RequestState.ASKED
    assert store.collect_orphans() == 0
    assert repartition(store, ORDERS, 2).epoch == 3
    assert sum(part.num_rows for part in store.read(ORDERS)) == 3
    with permission_denied():
        store.seal()
    for statement in (
        "DELETE FROM epochs",
        "UPDATE epochs SET hash = ''",
        "DELETE FROM segments",
        "UPDATE blobs SET data = ''",
        "DROP TABLE epochs",
    ):
        with (
            pytest.raises(OperatorError, match=r"permission denied|must be owner"),
            store.catalog.write() as connection,
        ):
            connection.execute(text(statement))


def test_a_maintainer_keeps_the_log_in_order_and_cannot_append(owner: Store, as_: AS) -> None:
    for lsn in range(20, 20 + 10 * FAN_IN, 10):
        writer(owner).append(batch(lsn, orders=[("u", 1)]))
        owner.seal()
    store = as_(Role.MAINTAINER)
    writer(owner).append(batch(990, orders=[("u", 1)]))
    done = store.maintain()
    assert done.sealed_epochs and done.merged_files
    assert sum(part.num_rows for part in owner.read(ORDERS)) == 2 + FAN_IN + 1
    with permission_denied():
        store.take_over("shop")
    with permission_denied():
        repartition(store, ORDERS, 2)
    with permission_denied():
        writer(store).append(batch(999, orders=[("u", 1)]))


def statements(name: str, columns: Sequence[str]) -> dict[str, str]:
    """One that needs each privilege of a table, and would change nothing."""
    updates = {f"UPDATE {column}": f'UPDATE {name} SET "{column}" = NULL WHERE false' for column in columns}  # noqa: S608
    return updates | {
        "SELECT": f"SELECT count(*) FROM {name} WHERE false",  # noqa: S608
        "INSERT": f"INSERT INTO {name} SELECT * FROM {name} WHERE false",  # noqa: S608
        "DELETE": f"DELETE FROM {name} WHERE false",  # noqa: S608
        "TRUNCATE": f"TRUNCATE {name}",
        "TRIGGER": f"CREATE TRIGGER t AFTER INSERT ON {name} EXECUTE FUNCTION tsvector_update_trigger()",
        "ALTER": f"ALTER TABLE {name} ADD COLUMN mine int",
        "DROP": f"DROP TABLE {name}",
    }


def declared(role: Role, table: str, columns: Sequence[str]) -> set[str]:
    found = {"SELECT"}
    for privilege, named in re.findall(r"(\w+)(?: \((.*?)\))?(?:, |$)", PRIVILEGES[role].get(table, "")):
        updated = named.split(", ") if named else columns
        found |= {f"UPDATE {column}" for column in updated} if privilege == "UPDATE" else {privilege}
    return found


@pytest.mark.parametrize("role", Role)
def test_the_server_lets_a_role_do_what_is_declared_and_nothing_else(
    owner: Store, as_: AS, role: Role
) -> None:
    """Every statement on every table there is: a new one may only be read until it is declared."""
    store, schema = as_(role), owner.catalog.schema
    query = """
        SELECT table_name, array_agg(column_name::text) FROM information_schema.columns
        WHERE table_schema = :schema GROUP BY table_name
    """
    with owner.catalog.read() as connection:
        found = {str(name): columns for name, columns in connection.execute(text(query), {"schema": schema})}
    assert found.keys() >= {*tables.metadata.tables}
    others = (f"CREATE TABLE {schema}.mine (id int)", "CREATE SCHEMA mine", f"DROP SCHEMA {schema} CASCADE")
    with store.catalog.write() as connection:

        def may(statement: str) -> bool:
            savepoint = connection.begin_nested()
            try:
                connection.execute(text(statement))
            except ProgrammingError as error:
                if not re.search("permission denied|must be owner", str(error)):
                    raise
                return False
            finally:
                savepoint.rollback()
            return True

        for table, columns in found.items():
            asked = statements(f'{schema}."{table}"', columns)
            allowed = {privilege for privilege, statement in asked.items() if may(statement)}
            assert allowed == declared(role, table, columns), table
        assert not any(map(may, others))


def test_erasing_takes_writer_and_maintainer_and_who_is_not_both_is_refused_before(
    owner: Store, as_: AS
) -> None:
    request = RedactionRequest(ORDERS, ["1"])
    names = {role: role.of(owner.catalog.schema) for role in Role}
    for role, lacking in (
        (Role.READER, [Role.WRITER, Role.MAINTAINER]),
        (Role.WRITER, [Role.MAINTAINER]),
        (Role.MAINTAINER, [Role.WRITER]),
    ):
        store = as_(role)
        assert plan(store, request).rows == 1  # who may read may look
        with pytest.raises(OperatorError) as permission_denied:
            redact(store, request)
        members = [names[each] for each in lacking]
        assert (
            f"may not erase rows: it is not a member of {' and '.join(members)};"
            in permission_denied.value.message
        )
        assert permission_denied.value.hint.startswith(f"GRANT {', '.join(members)} TO u")
    assert list(owner.storage.list("log")) == [] and receipts(owner) == []
    assert redact(as_(Role.WRITER, Role.MAINTAINER), request).rows == 1
    assert [each.rows for each in receipts(as_(Role.READER))] == [1]
    assert owner.verify().findings == ()


def test_roles_are_those_declared_whatever_was_granted_by_hand(owner: Store) -> None:
    schema = owner.catalog.schema
    with owner.catalog.write() as connection:
        connection.execute(text(f"GRANT DELETE ON {schema}.epochs TO {Role.READER.of(schema)}"))
        roles.grant(connection, schema)
        query = text(
            "SELECT privilege_type FROM information_schema.role_table_grants"
            " WHERE table_schema = :schema AND table_name = 'epochs' AND grantee = :name"
        )
        found = connection.scalars(query, {"schema": schema, "name": Role.READER.of(schema)})
        assert {*found} == {"SELECT"}
