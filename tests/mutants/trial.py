"""Tests of one mutant, in a private copy of the tree: the checkout is never written."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from pathlib import Path

from tests.mutants.mutations import Mutation
from tests.support import REPOSITORY

LINKED = ("cdc", "eventstore", "migrations", "projections")  # inside tailrace, see hatch_build.py
_TIMES = count(1_000_000_000)
"""Of mutated modules, each another: Python tells by them that what it compiled is of another text."""


class Outcome(StrEnum):
    KILLED = "killed"
    TIMEOUT = "timeout"  # as good as killed
    SURVIVED = "survived"


@dataclass(frozen=True, slots=True)
class Tested:
    passed: bool | None  # None: not in time
    seconds: float
    output: str


def copy_of(folder: Path) -> Path:
    """The checkout as it is now, with the changes that are not committed, without what git ignores."""
    listed = subprocess.check_output(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=REPOSITORY, text=True
    )
    for name in filter(None, listed.split("\0")):
        if (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
    for package in LINKED:
        (folder / "tailrace" / package).symlink_to(Path("..", package))
    return folder


def run_tests(tree: Path, files: Sequence[str], seconds: float) -> Tested:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--scale", "smoke", "-n", "0"]
    command += ["-p", "tests.mutants.plugin", "-p", "no:cacheprovider"]
    command += ["-m", "not slow and not servers and not benchmarks", *files]
    began = time.monotonic()
    process = subprocess.Popen(
        command, cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)}, start_new_session=True, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its servers end with it
        process.communicate()
        return Tested(None, time.monotonic() - began, "")
    return Tested(process.returncode == 0, time.monotonic() - began, output)


def try_mutant(tree: Path, mutation: Mutation, files: Sequence[str], seconds: float) -> Outcome:
    path = tree / mutation.module
    original, times = path.read_bytes(), path.stat()
    path.write_bytes(mutation.mutated)
    os.utime(path, (times.st_atime, next(_TIMES)))
    try:
        tested = run_tests(tree, files, seconds)
    finally:
        path.write_bytes(original)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    if tested.passed is None:
        return Outcome.TIMEOUT
    return Outcome.SURVIVED if tested.passed else Outcome.KILLED
