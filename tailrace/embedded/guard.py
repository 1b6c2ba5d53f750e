"""The guard: a small process that starts servers, keeps their temporary folders and outlives its parent.

It is run as a script (``python -I -S guard.py PARENT_PID``) and imports the standard library only. Requests come as
JSON lines on standard input, each is answered with one JSON line on standard output. When the input ends, which the
kernel sees to however the parent died, the guard stops every server and removes every folder. Should the guard itself
be killed, the kernel signals the servers (PR_SET_PDEATHSIG): it is single-threaded, so the signal is tied to its
process and cannot come early from an ended thread.

It sits in a session of its own: Ctrl-C in a terminal reaches the parent alone, which then decides.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
IPC_RMID = 0
STOP_SECONDS = 10.0  # how long a server may take to end by itself before it is killed
PARENT_POLL_SECONDS = (
    1.0  # a forked child of the parent may hold the pipe open: look at the parent itself too
)
FOLDER_PREFIX = "tailrace-"

Request = dict[str, Any]
Reply = dict[str, Any]


class Guard:
    """The servers and folders of one parent process."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        # Children of a killed server come to us: in a container, process 1 may not reap them.
        self._control_process(PR_SET_CHILD_SUBREAPER, 1)
        self._servers: dict[int, tuple[subprocess.Popen[bytes], int]] = {}
        self._folders: list[Path] = []
        self._handlers: dict[str, Callable[[Request], Reply]] = {
            "folder": self._make_folder,
            "remove": self._remove_folder,
            "spawn": self._spawn,
            "poll": self._poll,
            "signal": self._signal,
            "kill": self._kill,
        }

    def handle(self, request: Request) -> Reply:
        try:
            return self._handlers[request["do"]](request)
        except (OSError, subprocess.SubprocessError) as error:
            return {"error": str(error)}

    def reap(self) -> None:
        """Collect whatever ended: our servers, and what their end left to us."""
        if sys.platform != "linux":
            return  # orphans come to us on Linux only, and our own children are waited for by name
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                server = self._servers.get(ended.si_pid)
                if (
                    server is None or server[0].returncode is not None
                ):  # an orphan, maybe with a former server's pid
                    os.waitpid(ended.si_pid, 0)
                else:
                    server[0].poll()  # it keeps the exit code for later questions

    def close(self) -> None:
        """Stop every server, gently first, then remove every folder."""
        for process, end_signal in self._servers.values():
            if process.poll() is None:
                process.send_signal(end_signal)
        deadline = time.monotonic() + STOP_SECONDS
        for process, _ in self._servers.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                kill_tree(process)
        self.reap()
        for folder in reversed(self._folders):
            self._clear(folder)

    def _make_folder(self, request: Request) -> Reply:
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=request["parent"]))
        self._folders.append(folder)
        if request["owner"] is not None:
            os.chown(folder, *request["owner"])
        return {"path": str(folder)}

    def _remove_folder(self, request: Request) -> Reply:
        folder = Path(request["path"])
        if folder in self._folders:
            self._folders.remove(folder)
            self._clear(folder)
        return {}

    def _spawn(self, request: Request) -> Reply:
        owner, end_signal = request["owner"], int(request["end_signal"])
        guard = os.getpid()

        def tie_to_guard() -> None:  # runs after the change of user, which would have undone it
            self._control_process(PR_SET_PDEATHSIG, end_signal)
            if os.getppid() != guard:
                os.kill(os.getpid(), signal.SIGKILL)

        identity: dict[str, Any] = {}
        if owner is not None:
            identity = {"user": owner[0], "group": owner[1], "extra_groups": []}
        with open(request["log"], "ab") as log:
            if owner is not None:
                os.fchown(log.fileno(), *owner)
            process = subprocess.Popen(
                request["argv"], env=request["env"], cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=tie_to_guard, **identity,
            )  # fmt: skip
        self._servers[process.pid] = (process, end_signal)
        return {"pid": process.pid}

    def _poll(self, request: Request) -> Reply:
        return {"code": self._servers[request["pid"]][0].poll()}

    def _signal(self, request: Request) -> Reply:
        self._servers[request["pid"]][0].send_signal(request["signal"])
        return {}

    def _kill(self, request: Request) -> Reply:
        kill_tree(self._servers[request["pid"]][0])
        self.reap()  # its children came to us
        return {}

    def _control_process(self, option: int, value: int) -> None:
        if sys.platform == "linux":
            self._libc.prctl(option, value, 0, 0, 0)

    def _clear(self, folder: Path) -> None:
        for lock_file in folder.glob("*/postmaster.pid"):
            self._free_shared_memory(lock_file)
        for _ in range(50):  # a killed server's last children may still be writing
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                return
            time.sleep(0.1)

    def _free_shared_memory(self, lock_file: Path) -> None:
        """Free the System V segment of a Postgres that was killed: its lock file, still there, names it in line 7."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            self._libc.shmctl(int(lock_file.read_text().splitlines()[6].split()[1]), IPC_RMID, None)


def descendants(root: int) -> list[int]:
    """Process ids below ``root``; empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            after_name = stat.read_text(errors="replace").rpartition(")")[2].split()
            children.setdefault(int(after_name[1]), []).append(int(stat.parent.name))
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL a server with all its children at one moment, as a crash would; wait until they are gone."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGSTOP)  # a stopped server starts no further child while they are counted
    family = descendants(process.pid)
    for pid in [process.pid, *family]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + STOP_SECONDS
    while any(is_alive(pid) for pid in family) and time.monotonic() < deadline:
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Whether the process still runs; one that ended and waits to be reaped does not count."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def serve(guard: Guard, parent: int) -> None:
    """Answer requests until the input ends or the parent is no longer ours."""
    pending = b""
    while os.getppid() == parent:
        guard.reap()
        if not select.select([0], [], [], PARENT_POLL_SECONDS)[0]:
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            return
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            request = json.loads(line)
            reply = {**guard.handle(request), "number": request["number"]}
            os.write(1, json.dumps(reply).encode() + b"\n")


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    guard = Guard()
    try:
        with contextlib.suppress(BrokenPipeError):
            serve(guard, int(sys.argv[1]))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the clean-up below is what SIGTERM asks for
        guard.close()


if __name__ == "__main__":
    main()
