"""Tests of one mutant, in a private copy of the tree: the checkout is never written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from itertools import count
from pathlib import Path
from types import TracebackType

from tests.mutants.mutations import Mutation
from tests.mutants.plugin import Event
from tests.mutants.worker import Answer, Request
from tests.support import REPOSITORY, forking

LINKED = ("cdc", "eventstore", "migrations", "projections")  # inside tailrace, see hatch_build.py
IMPORTED = ("hypothesis.stateful", "pyarrow.parquet", "pyspark.sql", "redis", *forking.MODULES)
_TIMES = count(1_000_000_000)
"""Of mutated modules, each another: Python tells by them that what it compiled is of another text."""


class Outcome(StrEnum):
    KILLED = "killed"
    TIMEOUT = "timeout"  # as good as killed
    SURVIVED = "survived"


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


class Worker:
    """A process that runs tests in a tree. To be closed."""

    def __init__(self, tree: Path, imported: Sequence[str] = IMPORTED) -> None:
        self.tree = tree.resolve()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutants.worker", str(self.tree), *imported],
            cwd=REPOSITORY, env=os.environ | forking.OF_SERVER, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def run_tests(self, request: Request) -> Answer:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(request)) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return Answer(**answer | {"events": [Event(**each) for each in answer["events"]]})

    def try_mutant(self, mutation: Mutation, request: Request) -> tuple[Outcome, str]:
        """What becomes of it, and by which test."""
        path = self.tree / mutation.module
        original, times = path.read_bytes(), path.stat()
        path.write_bytes(mutation.mutated)
        os.utime(path, (times.st_atime, next(_TIMES)))
        try:
            answer = self.run_tests(request)
        finally:
            path.write_bytes(original)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        if answer.passed is None:
            return Outcome.TIMEOUT, answer.by
        return (Outcome.SURVIVED, "") if answer.passed else (Outcome.KILLED, answer.by)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Also in the midst of a test: what it started ends with it."""
        self._process.terminate()
        self._process.communicate()
