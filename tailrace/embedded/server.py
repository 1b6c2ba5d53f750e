"""What every embedded server has in common: a port, a folder, a log, start, stop, kill, restart."""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Literal, Self

from tailrace.embedded.account import unprivileged_user
from tailrace.embedded.process import (
    GuardProcess,
    Owner,
    ServerProcess,
    free_port,
    reachable_by_others,
    tail_of,
    wait_until,
)
from tailrace.eventstore.errors import OperatorError

StopMode = Literal["fast", "immediate"]

START_SECONDS = 60.0
STOP_SECONDS = 60.0
PORT_ATTEMPTS = 5


class EmbeddedServer(ABC):
    """A server process on a port of 127.0.0.1, its data in ``data_dir`` or in a temporary folder.

    A given ``data_dir`` is kept. The temporary folder is removed when the server is closed or this process ends.
    Port and data survive ``stop``, ``kill`` and ``restart``. Not for use from several threads at once.
    """

    title: ClassVar[str]
    stop_signal: ClassVar[signal.Signals]

    def __init__(self, data_dir: Path | None, settings: Mapping[str, str], port: int | None) -> None:
        self.settings = dict(settings)
        self._given_data_dir = data_dir
        self._port = port
        self._port_is_settled = port is not None
        self._folder: Path | None = None
        self._process: ServerProcess | None = None

    @abstractmethod
    def bin(self, name: str) -> Path:
        """Path of a program of the installation. Raises ``OperatorError`` when it is not there."""

    @abstractmethod
    def _prepare(self) -> None:
        """Make the data folder unless there is one."""

    @abstractmethod
    def _spawn(self) -> ServerProcess: ...

    @abstractmethod
    def _ready(self, log_start: int) -> bool:
        """Whether connections are taken. What this start logged begins at byte ``log_start``."""

    @property
    def port(self) -> int:
        """Known from the first start on."""
        if self._port is None:
            raise OperatorError(f"the embedded {self.title} server has no port yet", hint="start() it first")
        return self._port

    @property
    def pid(self) -> int:
        """Process id of the server, which may have ended."""
        return self._start_process().pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def data_dir(self) -> Path:
        return self._given_data_dir or self._home() / "data"

    @property
    def log(self) -> Path:
        """The server's log. It lies in the temporary folder, also when ``data_dir`` was given."""
        return self._home() / "server.log"

    def start(self) -> Self:
        """Start and wait until connections are taken; nothing to do when it runs."""
        if self.running:
            return self
        self._prepare()
        for attempt in range(1, PORT_ATTEMPTS + 1):
            self._port = self._port or free_port()
            log_start = self.log.stat().st_size if self.log.exists() else 0
            if self._starts(log_start):
                self._port_is_settled = True
                return self
            output = tail_of(self.log, log_start)
            if self._port_is_settled or "Address already in use" not in output or attempt == PORT_ATTEMPTS:
                raise OperatorError(
                    f"{self.title} did not start on port {self._port} with data in {self.data_dir}: {output}",
                    hint="mend what its log says; a port that is taken can be changed with port=",
                )
            self._port = None  # somebody took it since we looked
        raise AssertionError("the last attempt returns or raises")

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop and wait for the end; nothing to do when it does not run.

        ``fast`` ends connections and brings the data to a clean end, ``immediate`` ends as a crash would.
        """
        if self.running:
            process = self._start_process()
            self._send_stop(process, mode)
            process.wait(STOP_SECONDS)

    def kill(self) -> None:
        """SIGKILL the server and all its children at one moment; they are gone when this returns."""
        if self.running:
            self._start_process().kill()

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop, and remove the temporary folder."""
        if self._folder is not None:
            self.stop("immediate" if self._given_data_dir is None else "fast")
            GuardProcess.current().remove(self._folder)
            self._folder = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _owner(self) -> Owner | None:
        """The user to run as, None for ourselves."""
        return None

    def _unprivileged_owner(self) -> Owner | None:
        """As root: who owns the given data folder, else any unprivileged user. Otherwise ourselves."""
        if os.geteuid() != 0:
            return None
        if self._given_data_dir is not None and self._given_data_dir.exists():
            status = self._given_data_dir.stat()
            if status.st_uid != 0:
                return status.st_uid, status.st_gid
        return unprivileged_user()

    def _claim_data_dir(self) -> None:
        """As root: make the data folder the server's own. Folders above it stay as they are."""
        owner = self._owner()
        if owner is not None and self._given_data_dir is not None:
            existing = next(folder for folder in self.data_dir.resolve().parents if folder.exists())
            if not reachable_by_others(existing, enter=True):
                raise OperatorError(
                    f"as root, {self.title} runs as user {owner[0]}, who cannot enter the folders above "
                    f"{self.data_dir}",
                    hint="choose a data folder that other users can reach, for example below /var/tmp",
                )
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if owner is not None and self.data_dir.stat().st_uid != owner[0]:
            os.chown(self.data_dir, *owner)

    @contextmanager
    def _secret_file(self, path: Path, text: str) -> Iterator[None]:
        """A file that the server alone can read, for as long as it takes to read it."""
        path.unlink(missing_ok=True)  # of a start that failed
        write_secret(path, text, self._owner())
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

    def _send_stop(self, process: ServerProcess, mode: StopMode) -> None:
        if mode == "fast":
            process.signal(self.stop_signal)
        else:
            process.kill()

    def _starts(self, log_start: int) -> bool:
        self._process = process = self._spawn()
        if not wait_until(lambda: self._ready(log_start) or process.poll() is not None, START_SECONDS):
            process.kill()
        return process.poll() is None

    def _start_process(self) -> ServerProcess:
        if self._process is None:
            raise OperatorError(
                f"the embedded {self.title} server has not been started", hint="start() it first"
            )
        return self._process

    def _home(self) -> Path:
        """Our temporary folder: the log, and the data unless a folder for it was given."""
        if self._folder is None:
            self._folder = GuardProcess.current().folder(self._owner())
        return self._folder


def write_secret(path: Path, text: str, owner: Owner | None = None) -> None:
    """A new file that nobody but ``owner`` (default: ourselves) can read. A name that is taken is refused: in a folder
    of another user it may be a link to anywhere."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        if owner is not None:
            os.fchown(descriptor, *owner)
        file.write(text)
