"""A program of your own, killed at every step of Tailrace's that it passes: is its work right when it is run again?

    @pytest.mark.parametrize("point", crash_points("consumer"))
    def test_invoices_are_written_once(point):
        killed_at(point, [sys.executable, "invoices.py"])
        subprocess.run([sys.executable, "invoices.py"], check=True)
        assert ...

The kill is SIGKILL, as a power cut is to a program: nothing of it runs any more.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import UsageError

Steps = Literal["capture", "projections", "maintenance", "consumer", "publication", "move"]


def crash_points(steps: Steps) -> tuple[str, ...]:
    """The steps of what a program does, by their names: where it can be killed. Raises UsageError for another word."""
    found = failpoints.GROUPS.get(steps)
    if found is None:
        raise UsageError(f"there are no steps of {steps!r}", hint=f"of {', '.join(failpoints.GROUPS)}")
    return found


def killed_at(
    point: str,
    argv: Sequence[str | Path],
    *,
    passes: int = 1,
    env: Mapping[str, str] | None = None,
    seconds: float = 300.0,
) -> bool:
    """Run a program until it passes ``point`` for so many times, where it is killed; False when it ended before.

    Raises UsageError for a point that there is not, AssertionError when the program fails otherwise, with what it
    said, and subprocess.TimeoutExpired.
    """
    armed = f"{point}:{passes}"
    failpoints.parse(armed)
    environment = {**os.environ, **(env or {}), failpoints.VARIABLE: armed}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode not in (0, -signal.SIGKILL):
        raise AssertionError(
            f"it ended with {done.returncode} and was to be killed at {point}:\n{done.stderr}"
        )
    return done.returncode != 0
