"""What a user installs: the wheel of this checkout, and commands that see nothing but what is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support import REPOSITORY

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def run(*command: str | Path, cwd: Path = REPOSITORY) -> str:
    """What a command prints that ends well. It finds no package but those of its own interpreter."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build_wheel(folder: Path) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    return next(folder.glob("*.whl"))


def make_environment(folder: Path) -> Path:
    """The interpreter of a new, empty virtual environment."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    return folder / "bin" / "python"
