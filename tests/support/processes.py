"""What anybody sees of other processes: their command lines, whether a session of them has ended; and what Spark's are
given as environment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

_SECONDS = 0.2
_SPARK = ("org.apache.spark", "pyspark.daemon", "tests.support.spark_daemon")


@dataclass
class Processes:
    """Command lines seen; ``spark``: environments of JVMs and workers of Spark."""

    commands: set[str] = field(default_factory=set)
    spark: set[str] = field(default_factory=set)

    def look(self) -> None:
        for place in Path("/proc").glob("[0-9]*"):
            try:
                command = _text(place / "cmdline")
                self.commands.add(command)
                if any(name in command for name in _SPARK):
                    self.spark.add(_text(place / "environ"))
            except OSError:  # it has ended, or is somebody else's
                continue


def has_ended(session: int) -> bool:
    """Whether no process of the session runs any more: workers notice a little later that their driver is gone."""
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, found = place.read_text(errors="replace").rpartition(")")[2].split()[:4]
            if int(found) == session and state not in ("Z", "X"):
                return False
    return True


def _text(place: Path) -> str:
    return place.read_bytes().replace(b"\0", b" ").decode(errors="replace")


@contextmanager
def watch_processes() -> Iterator[Processes]:
    """Looks at all processes again and again, on a thread."""
    watched, stop = Processes(), threading.Event()

    def look() -> None:
        while not stop.wait(_SECONDS):
            watched.look()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield watched
    finally:
        stop.set()
        thread.join()


def descendants(pid: int) -> dict[int, str]:
    """Processes that one began, and those that they began in turn: their command lines; none of one that has ended."""
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(place.name)] = int(
                (place / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
            )
            commands[int(place.name)] = _text(place / "cmdline")
    found, last = {pid}, set[int]()
    while found != last:
        last = set(found)
        found |= {child for child, parent in parents.items() if parent in last}
    return {each: commands[each] for each in found - {pid} if commands.get(each)}
