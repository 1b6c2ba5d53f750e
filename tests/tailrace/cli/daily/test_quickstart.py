"""The quickstart is short, and does what it says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support import REPOSITORY

LINES_MAX = 60


@pytest.mark.slow
def test_the_quickstart_runs_and_shows_the_view() -> None:
    script = REPOSITORY / "examples" / "quickstart.py"
    assert len(script.read_text(encoding="utf-8").splitlines()) <= LINES_MAX
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "amount: 10.00 → 12.00" in done.stdout
    assert "[('Ada', Decimal('17.50')), ('Grace', Decimal('7.00'))]" in done.stdout
    assert "epochs in the log: [(1, 3), (2, 1)]" in done.stdout


@pytest.mark.slow
def test_the_invoicing_service_writes_every_invoice_once() -> None:
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "examples" / "invoicing.py")],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "(100, Decimal('4950.00'))" in done.stdout
