"""The plugin for pytest, in a project as a user has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CONFTEST = 'pytest_plugins = ["tailrace.testing.plugin"]\n'
TESTS = """
from decimal import Decimal

import psycopg
from pydantic import BaseModel

from tailrace import Stream, append, event


@event("paid")
class Paid(BaseModel):
    amount: Decimal


def test_rows_and_events_of_a_transaction_reach_the_log(tailrace_dsn, tailrace_log):
    with psycopg.connect(tailrace_dsn) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
        connection.execute("INSERT INTO orders VALUES (1, 'first')")
    tailrace_log.catch_up()
    with psycopg.connect(tailrace_dsn) as connection:
        connection.execute("INSERT INTO orders VALUES (2, 'second')")
        append(connection, Stream("order", "2"), [Paid(amount=Decimal(5))])
    with psycopg.connect(tailrace_dsn) as connection:
        connection.execute("CREATE TABLE later (id int PRIMARY KEY)")
        connection.execute("INSERT INTO later VALUES (7)")
    tailrace_log.catch_up()
    store = tailrace_log.store
    rows = [row["note"] for part in store.state("test.public.orders") for row in part.to_pylist()]
    assert sorted(rows) == ["first", "second"]
    assert sum(part.num_rows for part in store.state("test.public.later")) == 1
    (batch,) = store.tail(["test.order"], start="earliest", timeout=0)
    assert [each.data for each in batch.events()] == [Paid(amount=Decimal(5))]


def test_each_test_has_a_database_of_its_own(tailrace_dsn):
    with psycopg.connect(tailrace_dsn) as connection:
        found = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
    assert found == (0,)
"""


def test_a_users_tests_get_a_database_and_a_log_that_follows_it(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_orders.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
