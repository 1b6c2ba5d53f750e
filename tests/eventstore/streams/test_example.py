"""``examples/bank.py`` does what its first line says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_bank_example_runs(database: str) -> None:
    done = subprocess.run(
        [sys.executable, "examples/bank.py", database],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "opened: True",
        "opened again: False",
        "  1 account_opened Opened(owner='Ada')",
        "  2 deposited Deposited(amount=Decimal('12.50'))",
        "balance, and whether row and event are of one transaction: (Decimal('12.50'), True)",
    ]
