"""A user's mistakes say what, where and what to do; no traceback, no password."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from tailrace.cdc.postgres.connect import Address, connect, connect_replication
from tailrace.cdc.postgres.errors import RowTooLarge, SlotActive, SlotLost, failure, refusal
from tailrace.embedded import PostgresServer
from tailrace.eventstore.errors import OperatorError, TailraceError, TransientError, UsageError
from tests.support.capturing import (
    RunningCapture,
    Site,
    execute,
    init_and_capture,
    init_and_load,
    query,
    rows,
    server_version,
    slot_pid,
    table,
    wait_until,
)

SECRET = "s3cr3t-Päßwort"


def complaint(action: Callable[[], object]) -> TailraceError:
    with pytest.raises(TailraceError) as raised:
        action()
    error = raised.value
    assert error.hint, f"no hint: {error}"
    assert SECRET not in f"{error}{error.__cause__ or ''}"
    return error


@contextmanager
def role(postgres: PostgresServer, name: str, options: str) -> Iterator[None]:
    execute(postgres.dsn(), f"CREATE ROLE {name} LOGIN {options}")
    try:
        yield
    finally:
        execute(postgres.dsn(), f"DROP ROLE {name}")


@pytest.mark.parametrize(
    ("dsn", "kind", "words"),
    [
        ("postgresql://u:{secret}@127.0.0.1:1/shop", TransientError, ("127.0.0.1:1", "nobody answers")),
        (
            "postgresql://u:{secret}@no-such-host.invalid/shop",
            (OperatorError, TransientError),  # the latter where no name server answers
            ("no-such-host.invalid", "host name"),
        ),
        ("host=127.0.0.1 pasword={secret}", UsageError, ("not a Postgres connection string",)),
        ("postgresql:/{secret}", UsageError, ("not a Postgres connection string",)),
    ],
)
def test_addresses_that_lead_nowhere(
    dsn: str, kind: type[TailraceError] | tuple[type[TailraceError], ...], words: tuple[str, ...]
) -> None:
    for way in (connect, connect_replication):
        error = complaint(lambda: way(Address.parse(dsn.format(secret=SECRET))))  # noqa: B023
        assert isinstance(error, kind)
        for word in words:
            assert word in error.message


def test_wrong_database_and_user(postgres: PostgresServer) -> None:
    for dsn, words in (
        (postgres.dsn("nowhere"), "no such database"),
        (postgres.dsn(user="stranger"), "no such user"),
    ):
        for way in (connect, connect_replication):
            error = complaint(lambda: way(Address.parse(dsn)))  # noqa: B023
            assert isinstance(error, OperatorError) and words in error.message


def test_a_user_without_the_replication_attribute(postgres: PostgresServer) -> None:
    with role(postgres, "no_replication", ""):
        error = complaint(lambda: connect_replication(Address.parse(postgres.dsn(user="no_replication"))))
        assert isinstance(error, OperatorError)
        assert "REPLICATION" in error.hint


@pytest.mark.parametrize(
    ("text", "kind", "word"),
    [
        ('FATAL:  password authentication failed for user "u"', OperatorError, "password"),
        ("FATAL:  no pg_hba.conf entry for host", OperatorError, "pg_hba.conf"),
        ("FATAL:  sorry, too many clients already", TransientError, "max_connections"),
        (
            "FATAL:  number of requested standby connections exceeds max_wal_senders",
            TransientError,
            "max_wal_senders",
        ),
        ("FATAL:  the database system is starting up", TransientError, "wait"),
        ("FATAL:  unsupported startup parameter: replication", OperatorError, "pooler"),
        ("SSL error: certificate verify failed", OperatorError, "sslmode"),
        ("SSL SYSCALL error: EOF detected", TransientError, "log"),
        ("server closed the connection unexpectedly", TransientError, "log"),
        (
            'could not translate host name "db" to address: Temporary failure in name resolution',
            TransientError,
            "network",
        ),
        (f"FATAL:  something new about {SECRET}", TransientError, "log"),
    ],
)
def test_what_servers_and_poolers_refuse_with(text: str, kind: type[TailraceError], word: str) -> None:
    error = refusal(text, "database shop at db:5432", SECRET)
    assert isinstance(error, kind) and "database shop at db:5432" in error.message
    assert word in error.hint and SECRET not in str(error)


def test_states_of_a_slot_become_errors_of_their_own() -> None:
    active = failure("55006", 'replication slot "s" is active for PID 4711', "starting", "db")
    assert (
        isinstance(active, SlotActive) and active.pid == 4711 and "pg_terminate_backend(4711)" in active.hint
    )
    lost = failure("55000", 'cannot get changes from replication slot "s"', "starting", "db")
    assert isinstance(lost, SlotLost) and "tailrace source repair" in lost.hint


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("XX000", "ERROR:  invalid memory alloc request size 1258291203"),
        (
            "54000",
            "ERROR:  out of memory\nDETAIL:  Cannot enlarge string buffer containing 9 bytes by 1200000003.",
        ),
        ("54000", "ERROR:  string buffer exceeds maximum allowed length (1073741823 bytes)"),
        ("42883", "ERROR:  no binary output function available for type aclitem"),
    ],
)
def test_a_row_that_the_server_cannot_send_is_a_stop_with_a_name(state: str, text: str) -> None:
    error = failure(state, text, "streaming changes", "database shop at db:5432")
    assert isinstance(error, RowTooLarge)
    assert "too large" in error.message and "1 GiB" in error.hint and "in pieces" in error.hint


def test_wal_level_not_logical(postgres_server: Callable[..., PostgresServer], store_dir: Path) -> None:
    server = postgres_server(settings={"wal_level": "replica"})
    execute(server.dsn(), "CREATE TABLE t (id int PRIMARY KEY)")
    site = Site.at(store_dir, server.dsn())
    error = complaint(site.init)
    assert "wal_level is replica" in error.message and "restart" in error.hint
    assert query(server.dsn(), "SELECT count(*) FROM pg_publication")[0] == (0,)
    server.settings["wal_level"] = "logical"
    server.restart()
    site.init()
    server.settings["wal_level"] = "replica"
    server.restart()
    error = site.capture_error()
    assert "wal_level" in error.message


def test_no_free_slot(postgres_server: Callable[..., PostgresServer], store_dir: Path) -> None:
    server = postgres_server(settings={"max_replication_slots": "1"})
    execute(server.dsn(), "CREATE TABLE t (id int PRIMARY KEY)")
    site = Site.at(store_dir, server.dsn())
    site.init()
    query(server.dsn(), "SELECT pg_create_physical_replication_slot('other')")
    assert "max_replication_slots" in complaint(site.init).hint
    assert "max_replication_slots" in site.capture_error().hint


def test_capture_of_a_source_that_was_not_prepared(database: str, store_dir: Path) -> None:
    error = Site.at(store_dir, database).capture_error()
    assert isinstance(error, UsageError) and "tailrace init" in error.hint


def test_a_select_privilege_that_is_missing_leaves_nothing_behind(
    postgres: PostgresServer, database: str, store_dir: Path
) -> None:
    name = database.rpartition("/")[2]
    execute(database, "CREATE TABLE t (id int PRIMARY KEY)")
    with role(postgres, name, "REPLICATION"):
        Site.at(store_dir, database).init()
        site = Site.at(store_dir, database.replace("postgres@", f"{name}@"))
        with RunningCapture(site) as capture:
            error = complaint(lambda: capture.ended() and capture.raise_error())
            assert "SELECT" in error.hint
            assert capture.store.head() is None
            capture.forgive()


@pytest.mark.versions
def test_a_lost_slot_says_why(postgres_server: Callable[..., PostgresServer], store_dir: Path) -> None:
    server = postgres_server(settings={"max_slot_wal_keep_size": "16MB", "max_wal_size": "32MB"})
    execute(server.dsn(), "CREATE TABLE t (id int PRIMARY KEY, v text)")
    site = Site.at(store_dir, server.dsn())
    init_and_load(site)
    for _ in range(6):
        execute(
            server.dsn(),
            "INSERT INTO t SELECT 1, repeat('x', 1000)",
            "DELETE FROM t",
            "SELECT pg_switch_wal()",
        )
        execute(server.dsn(), "CHECKPOINT")
    error = site.capture_error()
    assert isinstance(error, SlotLost)
    assert "wal_status lost" in error.message
    assert "wal_removed" in error.message or server_version(server.dsn()) < 17
    query(server.dsn(), "SELECT pg_drop_replication_slot('acme_shop')")
    error = site.capture_error()
    assert isinstance(error, SlotLost) and "missing" in error.message


def test_a_slot_dropped_under_a_running_capture_ends_it_with_what_mends_it(
    database: str, store_dir: Path
) -> None:
    execute(database, "CREATE TABLE t (id int PRIMARY KEY)")
    site = Site.at(store_dir, database)
    with init_and_capture(site) as capture:
        execute(database, "INSERT INTO t VALUES (1)")
        capture.catch_up()
        while True:  # a capture whose connection is cut takes its slot again at once
            with suppress(psycopg.errors.ObjectInUse):
                execute(
                    database,
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                    " WHERE slot_name = 'acme_shop' AND active",
                    "SELECT pg_drop_replication_slot('acme_shop')",
                )
                break
        error = complaint(lambda: capture.ended() and capture.raise_error())
        assert isinstance(error, SlotLost) and "missing" in error.message
        assert "tailrace source repair" in error.hint
        capture.forgive()
        assert len(rows(capture.store, table("t"))) == 1, "what was captured stays"


def test_a_log_older_than_the_slot_is_refused(database: str, store_dir: Path) -> None:
    """A restored catalog: what was confirmed since is not sent again, so going on would lose it."""
    execute(database, "CREATE TABLE t (id int PRIMARY KEY)")
    site = Site.at(store_dir, database)
    init_and_load(site)
    execute(database, "INSERT INTO t VALUES (1)")
    query(database, "SELECT pg_replication_slot_advance('acme_shop', pg_current_wal_lsn())")
    error = site.capture_error()
    assert "confirmed up to" in error.message


def test_another_server_under_the_same_name_is_refused(
    postgres_server: Callable[..., PostgresServer], database: str, store_dir: Path
) -> None:
    execute(database, "CREATE TABLE t (id int PRIMARY KEY)")
    Site.at(store_dir, database).init()
    other = postgres_server()
    assert "system" in Site.at(store_dir, other.dsn()).capture_error().message


def test_two_first_loads_at_once_are_refused(database: str, store_dir: Path) -> None:
    """The second would drop the first one's slot. The first waits here for an open transaction."""
    execute(database, "CREATE TABLE t (id int PRIMARY KEY)")
    site = Site.at(store_dir, database)
    site.init()
    with psycopg.connect(database) as blocker:
        blocker.execute("INSERT INTO t VALUES (1)")
        with RunningCapture(site) as first:
            wait_until(
                lambda: query(database, "SELECT 1 FROM pg_locks WHERE locktype = 'advisory'") != [],
                alive=lambda: first.running,
            )
            with RunningCapture(site) as second:
                assert "another capture" in complaint(lambda: second.ended() and second.raise_error()).message
                second.forgive()
            blocker.rollback()
            first.catch_up()


@pytest.mark.versions
def test_a_transaction_that_keeps_the_new_slot_waiting_is_named(
    database: str, store_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.cdc.context._REPORT_AFTER_SECONDS", 0.3)
    execute(database, "CREATE TABLE t (id int PRIMARY KEY)")
    site = Site.at(store_dir, database)
    site.init()
    with psycopg.connect(database) as blocker, caplog.at_level(logging.INFO, "tailrace"):
        blocker.execute("INSERT INTO t VALUES (1)")
        with RunningCapture(site) as capture:
            capture.wait_until(
                lambda: any(str(blocker.info.backend_pid) in text for text in capture.status.messages)
            )
        wait_until(lambda: slot_pid(site) is None)


def test_stopping_while_a_slot_waits_is_prompt(database: str, store_dir: Path) -> None:
    execute(database, "CREATE TABLE t (id int PRIMARY KEY)")
    site = Site.at(store_dir, database)
    site.init()
    with psycopg.connect(database) as blocker:
        blocker.execute("INSERT INTO t VALUES (1)")
        capture = RunningCapture(site)
        with capture:
            threading.Event().wait(0.5)
        assert not capture.running
