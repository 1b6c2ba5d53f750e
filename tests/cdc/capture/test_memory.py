"""How a process that only captures stays small."""

from __future__ import annotations

import subprocess
import sys

CAPTURE = """
import sys
from tailrace.cli.daily.capture_memory import keep_small
keep_small()
import tailrace.cdc.capture, pyarrow
print("pandas" in sys.modules, pyarrow.default_memory_pool().backend_name)
import pandas
"""


def test_a_capture_goes_without_pandas_and_gives_memory_back() -> None:
    done = subprocess.run([sys.executable, "-c", CAPTURE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "system"]
