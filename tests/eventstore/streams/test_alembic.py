"""A service's own Alembic makes, changes and takes back the tables of domain events, with what is in them."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, make_url
from sqlalchemy.engine import Connection

from tailrace import Stream, append, event_tables, load
from tailrace.eventstore.errors import UsageError
from tests.eventstore.streams.bank import Deposited

ENV = """
from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=None, transaction_per_migration=True)
with context.begin_transaction():
    context.run_migrations()
"""
ORDERS = """
from alembic import op

revision, down_revision = "1", None

def upgrade():
    op.execute("CREATE TABLE orders (id bigint PRIMARY KEY)")

def downgrade():
    op.execute("DROP TABLE orders")
"""
EVENTS = """
from alembic import op
from tailrace import event_tables

revision, down_revision = "2", "1"

def upgrade():
    event_tables.upgrade(op.get_bind())

def downgrade():
    event_tables.downgrade(op.get_bind(), 4)
"""


@pytest.fixture
def scripts(tmp_path: Path) -> Config:
    versions = tmp_path / "versions"
    versions.mkdir()
    (tmp_path / "env.py").write_text(ENV)
    (versions / "1_orders.py").write_text(ORDERS)
    (versions / "2_events.py").write_text(EVENTS)
    settings = Config()
    settings.set_main_option("script_location", str(tmp_path))
    settings.set_main_option("path_separator", "os")
    return settings


def numbers(dsn: str) -> list[int]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT number FROM tailrace.migrations ORDER BY 1").fetchall()
    return [number for (number,) in rows]


def test_a_services_own_migrations_have_the_tables_among_them(database: str, scripts: Config) -> None:
    engine = create_engine(make_url(database).set(drivername="postgresql+psycopg"))
    everything = [each.number for each in event_tables.migrations()]

    def run(connection: Connection, what: str, revision: str) -> None:
        scripts.attributes["connection"] = connection
        getattr(command, what)(scripts, revision)

    with engine.connect() as connection:
        run(connection, "upgrade", "head")
        connection.commit()
    assert numbers(database) == everything
    with psycopg.connect(database) as service:
        append(service, Stream("account", "1"), [Deposited(amount=5)])
    with engine.connect() as connection:
        run(connection, "downgrade", "1")
        connection.rollback()  # whatever Alembic committed is committed
    assert numbers(database) == [1, 2, 3, 4]
    with engine.connect() as connection:
        run(connection, "upgrade", "head")
        connection.commit()
    assert numbers(database) == everything
    with psycopg.connect(database) as service:
        assert [each.data for each in load(service, Stream("account", "1"))] == [Deposited(amount=5)]
    engine.dispose()


def test_another_drivers_connection_is_refused() -> None:
    engine = create_engine("sqlite://")
    with (
        engine.connect() as connection,
        pytest.raises(UsageError, match="a connection of psycopg, not of sqlite3"),
    ):
        event_tables.upgrade(connection)
    engine.dispose()
