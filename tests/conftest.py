"""Loads the plugins of ``tests/fixtures``."""

from __future__ import annotations

import signal
from pathlib import Path

# A shell starts background jobs with SIGINT ignored, and every process of a test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = sorted(
    f"tests.fixtures.{module.stem}"
    for module in (Path(__file__).parent / "fixtures").glob("*.py")
    if module.stem != "__init__"
)
