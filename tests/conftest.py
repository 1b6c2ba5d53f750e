"""Loads the plugins of ``tests/fixtures``."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.memory import prefer_memory

prefer_memory()

# A shell starts background jobs with SIGINT ignored, nohup with SIGHUP, and every process of a test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest_plugins = sorted(
    f"tests.fixtures.{module.stem}"
    for module in (Path(__file__).parent / "fixtures").glob("*.py")
    if module.stem != "__init__"
)

_TESTS = Path(__file__).parent
_CAPTURING = {"benchmarks", "cdc", "docs", "fuzz", "proof", "tailrace"}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile the kernels once before tests that capture, so that none of them waits for the compiler."""
    if not session.config.option.collectonly and any(
        item.path.relative_to(_TESTS).parts[0] in _CAPTURING for item in session.items
    ):
        from tailrace.cdc.columnar.decode import prepare

        prepare()
