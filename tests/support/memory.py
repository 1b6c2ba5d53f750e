"""Where tests put their files: in memory, where the machine has room for that.

The store waits for the disk at each commit, and nearly every test commits. Nothing they prove is lost: what a killed
process wrote is there on any file system, and the order in which files are synced is proved by the calls themselves
(``tests/proof/test_durability_order.py``).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
FILES_BYTES = 4 << 30
"""A run of all tests left 618 MiB while no folder was removed; servers have theirs there, too."""
TESTS_BYTES = 8 << 30
"""What their processes need beside it: two sessions of Spark, and servers."""


def prefer_memory() -> None:
    """Have temporary folders of this process and its children in memory, unless TMPDIR says where they belong."""
    if "TMPDIR" not in os.environ and has_room(SHARED_MEMORY):
        os.environ["TMPDIR"] = str(SHARED_MEMORY)
        tempfile.tempdir = None


def has_room(folder: Path) -> bool:
    """Whether it is a file system of enough memory, from which programs may be run."""
    try:
        room = os.statvfs(folder)
        memory = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return False
    (available,) = [line.split()[1] for line in memory.splitlines() if line.startswith("MemAvailable:")]
    return (
        not room.f_flag & os.ST_NOEXEC
        and room.f_bavail * room.f_frsize >= FILES_BYTES
        and int(available) << 10 >= FILES_BYTES + TESTS_BYTES
    )
