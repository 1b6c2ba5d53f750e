"""``python -m module …`` or ``python -c text …`` as a process of its own that needs no second to import: forked off a
server which holds all modules already.

``Forked`` is a ``subprocess.Popen``: pid, signals, pipes, environment, folder, session and exit code are a real
process's. Its parent is the server, one per test process, which has one thread and only ever imports. What reads the
environment while it is imported has read the server's: fail points are armed anew in the child, and variables that
libraries read so early must be the server's. Tests of start-up, of imports, of memory or of what a list of processes
shows start a real interpreter instead.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from tests.support import REPOSITORY

EARLY = ("ARROW_", "JE_", "LD_", "MALLOC_", "NUMBA_", "OMP_", "OPENBLAS_", "TMPDIR", "XDG_")
OF_SERVER = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # as `tailrace capture` chooses it
    # Threads that begin when a library is loaded: no fork has them.
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OPENBLAS_NUM_THREADS": "1",
}
MODULES = (
    "alembic.command", "tailrace.cdc.capture", "tailrace.cdc.repair.repair", "tailrace.cdc.setup.prepare",
    "tailrace.cdc.repair.verify", "tailrace.eventstore.maintenance",
    "tailrace.eventstore.subscriptions", "tailrace.projections.lifecycle.catch_up", "tailrace.cli.app",
    "tailrace.config.load", "tailrace.doctor.doctor",
    "tailrace.upkeep", "tests.support.capturing", "typer.rich_utils",
)  # fmt: skip
MESSAGE_BYTES = 1 << 17
_INT = struct.Struct("i")


@dataclass(frozen=True)
class Request:
    """A process to be. Beside it travel its three standard streams, and a pipe that is told its pid and its end."""

    argv: list[str]  # as behind the interpreter's name
    cwd: str
    environment: dict[str, str]
    new_session: bool


class Forked(subprocess.Popen[str]):
    """``Popen([sys.executable, "-m" or "-c", …])``. Its methods stand in for those that call fork and waitpid."""

    _status = -1  # the pipe that tells pid and end

    def _execute_child(
        self, args: Sequence[str], executable: None, preexec_fn: None, close_fds: bool, pass_fds: tuple[()],
        cwd: str | os.PathLike[str] | None, env: Mapping[str, str] | None, startupinfo: None, creationflags: int,
        shell: bool, p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int, errread: int, errwrite: int,
        restore_signals: bool, gid: None, gids: None, uid: None, umask: int, start_new_session: bool, *_: object,
    ) -> None:  # fmt: skip
        request = Request(
            behind_interpreter(args), os.fspath(cwd or Path.cwd()), dict(env or os.environ), start_new_session
        )
        connection, early = server()
        refuse_changed(early, early_of(request.environment))
        given = (p2cread, c2pwrite, errwrite)
        streams = [stream if fd == -1 else fd for stream, fd in enumerate(given)]
        self._status, told = os.pipe()
        try:
            socket.send_fds(connection, [json.dumps(asdict(request)).encode()], [*streams, told])
        finally:
            os.close(told)
        self.pid = self._read_status()
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    def _try_wait(self, flags: int) -> tuple[int, int]:
        """What ``os.waitpid(self.pid, flags)`` gives the parent of a process."""
        if flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        status = self._read_status()
        os.close(self._status)
        return self.pid, status

    def _internal_poll(self, *_: object, **__: object) -> int | None:
        lock = self._waitpid_lock  # type: ignore[attr-defined]
        if self.returncode is None and lock.acquire(blocking=False):
            try:
                pid, status = (0, 0) if self.returncode is not None else self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                lock.release()
        return self.returncode

    def _read_status(self) -> int:
        data = os.read(self._status, _INT.size)
        if not data:
            raise ChildProcessError("the fork server has ended")
        return int(_INT.unpack(data)[0])


def run(
    argv: Sequence[str],
    *,
    timeout: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    start: type[subprocess.Popen[str]] = Forked,
) -> subprocess.CompletedProcess[str]:
    """``subprocess.run`` with captured output and no input."""
    with start(
        argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def behind_interpreter(argv: Sequence[str]) -> list[str]:
    if argv[0] != sys.executable or argv[1] not in ("-m", "-c"):
        raise ValueError(f"only Python with -m or -c can be forked, not {argv!r}")
    return list(argv[1:])


def early_of(environment: Mapping[str, str]) -> dict[str, str]:
    """What libraries read when they are loaded, but for what the server has anyhow."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(EARLY) and OF_SERVER.get(name) != value
    }


def refuse_changed(read: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    if changed := sorted(name for name, _ in read.items() ^ wanted.items()):
        raise ValueError(
            f"libraries have read {', '.join(changed)} before the fork; start a real interpreter"
        )


@cache
def server() -> tuple[socket.socket, dict[str, str]]:
    """Our end of the connection to this process's server, which ends with it; what its libraries have read."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        of_each = ("PYTHONPATH", "TAILRACE_")  # those of a child
        environment = {name: value for name, value in os.environ.items() if not name.startswith(of_each)}
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forking", str(theirs.fileno())],
            cwd=REPOSITORY, env={**environment, **OF_SERVER}, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
        )  # fmt: skip
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours, early_of(environment)


def serve(connection: socket.socket) -> Request | None:
    """Fork a child for each request and tell how it ended. Returns in every child, with what it is to run; in the
    server None, when the other side has gone."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    told: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([connection.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, 1)
            reap(told)
            continue
        message, fds, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 4)
        if not message:
            return None
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            connection.close()
            for stream, fd in enumerate(fds[:3]):
                os.dup2(fd, stream)
            os.closerange(3, max([wake, woken, *fds, *told.values()]) + 1)
            return Request(**json.loads(message))
        for fd in fds[:3]:
            os.close(fd)
        told[pid] = fds[3]
        os.write(fds[3], _INT.pack(pid))


def reap(told: dict[int, int]) -> None:
    """Pass on the exit statuses of children that have ended."""
    while told:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        fd = told.pop(pid)
        with suppress(BrokenPipeError):  # nobody waits for it any more
            os.write(fd, _INT.pack(status))
        os.close(fd)


def become(request: Request, path: Sequence[str]) -> None:
    """In the child: be as a new interpreter is. ``path`` is where modules are found behind PYTHONPATH."""
    from tailrace.eventstore import failpoints

    for number in (signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if request.new_session:
        os.setsid()
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())  # type: ignore[union-attr]
    option, program, *arguments = request.argv
    first = request.cwd if option == "-m" else ""
    chosen = list(dict.fromkeys(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))))
    sys.path[:] = [first, *chosen, *(folder for folder in path if folder not in chosen)]
    sys.argv = [option, *arguments]
    failpoints.arm(os.environ.get(failpoints.VARIABLE, ""))
    code: object = 0
    try:
        if option == "-m":
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            sys.modules["__main__"] = main = ModuleType("__main__")
            exec(compile(program, "<string>", "exec"), main.__dict__)
    except SystemExit as asked:
        code = asked.code or 0
    leave(code)


def leave(code: object) -> None:
    """End as an interpreter does, except that no module is taken apart, which would copy all memory of the server."""
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then let go of us
    of_python = sys.path[1:]
    for name in MODULES:
        importlib.import_module(name)
    from tailrace.cdc.columnar.decode import prepare

    prepare()
    gc.collect()
    gc.freeze()  # a child that collects garbage would copy every page that an object lies on
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        become(request, of_python)


if __name__ == "__main__":
    main()
