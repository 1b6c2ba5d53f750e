"""The guard collects what ends under it, whatever numbers the kernel gives."""

from __future__ import annotations

import subprocess
import sys

REUSED = """
import os, subprocess
from tailrace.embedded.guard import Guard
guard = Guard()
former, orphan = (subprocess.Popen(["true"]) for _ in range(2))
former.wait()
guard._servers[orphan.pid] = (former, 15)
os.waitid(os.P_PID, orphan.pid, os.WEXITED | os.WNOWAIT)
guard.reap()
"""


def test_an_orphan_with_the_pid_of_a_server_that_ended_is_collected() -> None:
    """It was looked at again and again: the guard took a third of a core and answered nobody."""
    subprocess.run([sys.executable, "-c", REUSED], check=True, timeout=60)
