"""Which process is this, and does that one run? For leases, whose holders may be on other hosts or in other containers.

A host's name and a process number do not name a process. Two containers may have one name, and each counts its
processes from 1; and a number is given again. So a process also has a *place*, which is the boot of its kernel and the
namespace that counts its number, and the moment at which it *started* there. Only a process of our own place can be
seen to run or to have ended. Of any other nobody here can tell. Nor of any at all where there is no /proc (macOS), or
one that shows another namespace than ours.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROC = Path("/proc")
_NAMESPACES = Path("/proc/self/ns")
_ENDED = "ZXx"  # states of a process that only waits for its parent to ask
# A place and a start are missing where they were not known. No pid is larger on any Linux.
_TEXT = re.compile(r"([^ ]+?)(?:/([0-9a-f]{16})/([0-9]{1,20}))?:([1-9][0-9]{0,6})")


@dataclass(frozen=True, slots=True)
class Process:
    """``place`` is empty where it is unknown; ``started`` in ticks after the boot of its kernel."""

    host: str
    pid: int
    place: str = ""
    started: int = 0

    def __str__(self) -> str:
        """For people."""
        return f"{self.host}:{self.pid}"

    @property
    def text(self) -> str:
        """For catalogs."""
        return f"{self.host}/{self.place}/{self.started}:{self.pid}" if self.place else str(self)


def parse(text: str) -> Process | None:
    """What ``Process.text`` made; None for anything else."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    host, place, started, pid = found.groups()
    return Process(host, int(pid), place or "", int(started or 0))


def this_process() -> Process:
    return _this(socket.gethostname(), os.getpid(), _PROC)


@lru_cache(maxsize=1)
def _this(host: str, pid: int, proc: Path) -> Process:
    """Of one process that is as long as it lives; ``proc``: by which /proc."""
    with suppress(OSError, ValueError):
        if _counts_as_we_do():
            return Process(host, pid, _place(), _status(pid)[1])
    return Process(host, pid)


def is_running(process: Process) -> bool | None:
    """Whether a process runs; None when it cannot be seen from here."""
    mine = this_process()
    if not mine.place or (process.host, process.place) != (mine.host, mine.place):
        return None
    if process == mine:
        return True
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it runs, as another user
    try:
        state, started = _status(process.pid)
    except (OSError, ValueError):
        return True  # /proc may hide the processes of others
    return started == process.started and state not in _ENDED


def _counts_as_we_do() -> bool:
    """Whether /proc numbers processes as ``os.getpid`` does: it may be mounted from a namespace above."""
    for line in (_PROC / "self/status").read_text(errors="replace").splitlines():
        if line.startswith("NSpid:"):
            return line.split()[1:] == [str(os.getpid())]
    return False


def _place() -> str:
    names = [_BOOT.read_text(encoding="ascii").strip(), os.readlink(_NAMESPACES / "pid")]
    with suppress(FileNotFoundError):  # before Linux 5.6
        names.append(os.readlink(_NAMESPACES / "time"))  # of another, times after boot may be others
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def _status(pid: int) -> tuple[str, int]:
    """State and start of a process. Its name, in parentheses, may itself hold some, and blanks."""
    fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return fields[0], int(fields[19])  # numbers 3 and 22 of proc(5)
