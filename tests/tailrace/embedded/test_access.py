"""An embedded server is its starter's alone: other users of the machine have no password, and find none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psycopg
import pytest
import redis as redis_client
from redis.backoff import NoBackoff
from redis.retry import Retry

from tailrace.embedded import PostgresServer, RedisServer
from tailrace.embedded.server import EmbeddedServer, write_secret
from tailrace.eventstore.errors import OperatorError

SOMEBODY = 54_321  # a user id that nothing here runs as


def require_unseen(secret: str, server: EmbeddedServer) -> None:
    """Not in what any process was started with, and in no file of a folder that others can enter."""
    assert len(secret) >= 40
    for place in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                assert secret.encode() not in (place / name).read_bytes()
            except OSError:
                continue  # it has ended
    home = server.log.parent
    assert home.stat().st_mode & 0o077 == 0
    assert not [file for file in home.rglob("*") if file.is_file() and secret.encode() in file.read_bytes()]
    if os.geteuid() == 0:
        somebody = {"user": SOMEBODY, "group": SOMEBODY, "extra_groups": []}
        seen = subprocess.run(["ls", home], capture_output=True, check=False, **somebody)  # type: ignore[call-overload]
        assert seen.returncode != 0 and not seen.stdout


def test_redis_serves_nobody_without_its_password_and_never_as_root() -> None:
    with RedisServer() as server:
        once = Retry(NoBackoff(), 0)
        for password in (None, "0" * 48):
            with redis_client.Redis(port=server.port, password=password, retry=once) as other:
                for command in ("PING", "CONFIG SET dir /etc", "SAVE", "MODULE LOAD /tmp/x.so", "FLUSHALL"):
                    with pytest.raises(redis_client.AuthenticationError):
                        other.execute_command(*command.split())
        with redis_client.Redis.from_url(server.url) as mine:
            assert mine.ping()
        assert os.stat(f"/proc/{server.pid}").st_uid != 0
        require_unseen(server._password, server)
        server.restart()
        with redis_client.Redis.from_url(server.url) as mine:
            assert mine.ping()
        require_unseen(server._password, server)


def test_postgres_serves_nobody_without_its_password() -> None:
    with PostgresServer() as server:
        for host in ("127.0.0.1", str(server.log.parent)):
            for password in (None, "postgres", "0" * 48):
                with pytest.raises(psycopg.OperationalError, match="password"):
                    psycopg.connect(
                        host=host, port=server.port, user="postgres", dbname="postgres", password=password
                    )
        dsn = server.dsn() + "?require_auth=scram-sha-256"
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT current_user").fetchone() == ("postgres",)
        assert os.stat(f"/proc/{server.pid}").st_uid != 0
        require_unseen(server.password, server)


def test_a_kept_data_folder_whose_password_is_not_known_is_refused(tmp_path: Path) -> None:
    """Such as one that anybody could enter before."""
    (tmp_path / "PG_VERSION").write_text("18\n")
    with pytest.raises(OperatorError, match="the password of its superuser is not known"):
        PostgresServer(tmp_path).start()


def test_a_secret_is_written_through_no_link(tmp_path: Path) -> None:
    target = tmp_path / "somebody's"
    (tmp_path / "secret").symlink_to(target)
    with pytest.raises(FileExistsError):
        write_secret(tmp_path / "secret", "word")
    assert not target.exists()
    write_secret(tmp_path / "own", "word")
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o600
