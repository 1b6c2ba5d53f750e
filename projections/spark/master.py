"""What a Spark master's address says of where tasks run. Pure."""

from __future__ import annotations

import os
import re

_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\d+)?\])?$")


def runs_here(master: str) -> bool:
    """Whether tasks run in the driver's own JVM: elsewhere nothing of this machine is there for them."""
    return _LOCAL.match(master) is not None


def parallelism_of(master: str, fallback: int) -> int:
    """How many units of work to cut an input into: the local master's cores, or ``fallback`` on a cluster."""
    match = _LOCAL.match(master)
    if match is None:
        return fallback
    threads = match[1]
    return (os.cpu_count() or 1) if threads == "*" else int(threads or 1)
