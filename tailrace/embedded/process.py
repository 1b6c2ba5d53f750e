"""Our end of the guard: start a server process, signal it, wait for it; temporary folders that vanish with us."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tailrace.eventstore.errors import OperatorError

# Below the range from which kernels take ports of outgoing connections (32768 on Linux): a client that connects to a
# stopped server's port can then neither take that port nor, by a simultaneous open, connect to itself.
PORT_RANGE = range(20_000, 32_000)
POLL_SECONDS = 0.01
CLOSE_SECONDS = 30.0

Owner = tuple[int, int]
"""User id and group id."""


def free_port() -> int:
    """A port of the loopback interface on which nothing listens now. Who binds it later must be ready to try again."""
    for candidate in random.SystemRandom().sample(PORT_RANGE, 200):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", candidate))
            except OSError:
                continue
            return candidate
    raise OperatorError(
        f"no free port between {PORT_RANGE.start} and {PORT_RANGE.stop} on 127.0.0.1",
        hint="end what listens there, or pass port= to the server",
    )


def reachable_by_others(path: Path, *, enter: bool = False) -> bool:
    """Whether any user may enter the folders above ``path`` and read it (``enter``: walk through it)."""
    resolved = path.resolve()
    wanted = 0o001 if enter else 0o005 if resolved.is_dir() else 0o004
    return all(folder.stat().st_mode & 0o001 for folder in resolved.parents) and (
        resolved.stat().st_mode & wanted == wanted
    )


class GuardProcess:
    """The guard process of this process; see ``guard.py``. Use ``GuardProcess.current()``."""

    _current: GuardProcess | None = None
    _lock = threading.RLock()

    def __init__(self) -> None:
        self._owner_pid = os.getpid()
        self._numbers = itertools.count(1)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")), str(self._owner_pid)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/", start_new_session=True,
        )  # fmt: skip
        atexit.register(self.close)

    @classmethod
    def current(cls) -> GuardProcess:
        """The running guard; a new one in a forked child, or after the last one ended."""
        with cls._lock:
            guard = cls._current
            if guard is None or guard._owner_pid != os.getpid() or guard._process.poll() is not None:
                guard = cls._current = cls()
            return guard

    @property
    def pid(self) -> int:
        return self._process.pid

    def request(self, do: str, **arguments: object) -> dict[str, Any]:
        """One request, one reply. Raises ``OperatorError`` when the guard refuses or is gone."""
        assert self._process.stdin is not None and self._process.stdout is not None
        if self._owner_pid != os.getpid():
            raise OperatorError("an embedded server belongs to the process that started it, not to its forks")
        with self._lock:
            number = next(self._numbers)
            reply: dict[str, Any] = {}
            try:
                request = {"do": do, "number": number, **arguments}
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                self._process.stdin.flush()
                while reply.get("number") != number:  # an earlier one: Ctrl-C cut off who waited for it
                    reply = json.loads(self._process.stdout.readline() or b"null") or {
                        "number": number,
                        "end": True,
                    }
            except (BrokenPipeError, ValueError):
                reply = {"end": True}
        if "end" in reply:
            raise OperatorError(
                "the guard of the embedded servers has ended, and the servers with it",
                hint="start them again",
            )
        if "error" in reply:
            raise OperatorError(f"an embedded server could not be started or reached: {reply['error']}")
        return reply

    def folder(self, owner: Owner | None = None) -> Path:
        """A new temporary folder that is removed when this process ends, however it ends. ``owner`` may enter it."""
        parent = Path(tempfile.gettempdir())
        if owner is not None and not reachable_by_others(parent):
            parent = next(
                candidate
                for candidate in map(Path, ("/tmp", "/var/tmp", "/"))
                if reachable_by_others(candidate)
            )
        return Path(self.request("folder", parent=str(parent), owner=owner)["path"])

    def remove(self, folder: Path) -> None:
        self.request("remove", path=str(folder))

    def close(self) -> None:
        """Stop all servers, remove all folders and wait until that is done. A forked child leaves them alone."""
        if self._owner_pid != os.getpid() or self._process.stdin is None or self._process.stdin.closed:
            return
        with contextlib.suppress(BrokenPipeError):  # the guard has ended already
            self._process.stdin.close()
        self._process.wait(CLOSE_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


class ServerProcess:
    """A process that the guard started for us."""

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        log: Path,
        owner: Owner | None = None,
        end_signal: signal.Signals = signal.SIGTERM,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start ``argv`` as ``owner`` (default: as ourselves) with its output appended to ``log``.

        ``end_signal`` is sent to it when this process ends without having stopped it.
        """
        self._guard = GuardProcess.current()
        reply = self._guard.request(
            "spawn",
            argv=[str(part) for part in argv],
            env={"PATH": os.defpath, "LC_ALL": "C", **(environment or {})},
            log=str(log),
            owner=owner,
            end_signal=int(end_signal),
        )
        self.pid: int = reply["pid"]

    def poll(self) -> int | None:
        """Exit code, negative for a signal, or None while it runs."""
        code: int | None = self._guard.request("poll", pid=self.pid)["code"]
        return code

    def signal(self, number: signal.Signals) -> None:
        self._guard.request("signal", pid=self.pid, signal=int(number))

    def kill(self) -> None:
        """SIGKILL it and all its children; they are gone when this returns."""
        self._guard.request("kill", pid=self.pid)

    def wait(self, timeout: float) -> int:
        """Wait for its end and return the exit code. Raises ``OperatorError`` after ``timeout`` seconds."""
        if not wait_until(lambda: self.poll() is not None, timeout):
            raise OperatorError(
                f"process {self.pid} of an embedded server did not end within {timeout:.0f} s",
                hint="look at its log, or stop it with mode='immediate'",
            )
        code = self.poll()
        assert code is not None
        return code


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Poll ``condition`` until it holds (True) or ``timeout`` seconds have passed (False)."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def tail_of(log: Path, start: int = 0, lines: int = 15) -> str:
    """The last lines that were written to ``log`` behind byte ``start``; empty when there is no such file."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
