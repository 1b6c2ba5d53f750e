"""The most memory that a process ever held. The figure of rusage counts the process from which it was forked, too."""

from __future__ import annotations

import re
from pathlib import Path

_PEAK = re.compile(r"^VmHWM:\s*(\d+) kB", re.MULTILINE)


def peak_kib(process: int | str = "self") -> int:
    """KiB resident at the peak, from /proc (proc(5), VmHWM); 0 for a process that has ended."""
    try:
        found = _PEAK.search(Path(f"/proc/{process}/status").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(found[1]) if found else 0
