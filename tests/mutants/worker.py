"""``python -m tests.mutants.worker TREE MODULE…``: runs tests of a private copy of the tree, each time in a fork of a
process that has everything imported but the project itself. To start an interpreter and import takes longer than most
tests. ``MODULE…`` are imported first, for what they import.

Requests come as lines of JSON on standard input, answers go to standard output.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TextIO

import pytest

from tests.mutants.plugin import Event, Plugin, Recorder

_OURS = ("tailrace", "tests")
_OUTPUT_BYTES = 3000


@dataclass(frozen=True, slots=True)
class Request:
    """Run ``tests`` of ``files`` (all when empty), in this order, up to the first failure. ``limits`` are seconds that
    a test may take; ``limit``, what comes before and between them. ``record``: modules whose lines are noted."""

    files: Sequence[str]
    tests: Sequence[str] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    limit: float = 600.0
    record: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """``passed`` is None when a test (or what comes before the first one) went over its limit; ``by`` is that test, or
    the one that failed."""

    passed: bool | None
    by: str = ""
    output: str = ""
    events: Sequence[Event] = ()


def serve(requests: TextIO, answers: TextIO) -> None:
    for line in requests:
        answers.write(json.dumps(asdict(run(Request(**json.loads(line))))) + "\n")
        answers.flush()


def run(request: Request) -> Answer:
    with tempfile.TemporaryDirectory(prefix="m", ignore_cleanup_errors=True) as folder:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _become(request, Path(folder), writing)
        os.close(writing)
        try:
            passed, by, events = _watch(request, pid, reading)
        finally:
            os.close(reading)
            _end(pid)
        output = Path(folder, "output")
        said = output.read_bytes()[-_OUTPUT_BYTES:].decode(errors="replace") if output.exists() else ""
        return Answer(passed, by, "" if passed else said, events)


def _become(request: Request, folder: Path, told: int) -> None:
    """In the fork: be pytest, in a session and with temporary files of its own."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT, 0o600)
    for stream, fd in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
        os.dup2(fd, stream)
    recorder = Recorder(Path.cwd(), request.record) if request.record else None
    arguments = ["-q", "-x", "--scale", "smoke", "-n", "0", "-p", "no:cacheprovider", "-o", "timeout=0"]
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    arguments += ["-m", "not slow and not servers and not benchmarks", *request.files]
    with os.fdopen(told, "w", encoding="utf-8") as events:
        code = pytest.main(arguments, plugins=[Plugin(events, request.tests, recorder)])
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _watch(request: Request, pid: int, told: int) -> tuple[bool | None, str, list[Event]]:
    """Until the fork ends, a test fails or is over its limit."""
    events: list[Event] = []
    test, until, rest = "", time.monotonic() + request.limit, b""
    while True:
        ready, _, _ = select.select([told], [], [], max(0.0, min(1.0, until - time.monotonic())))
        data = os.read(told, 1 << 16) if ready else b""
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            event = Event(**json.loads(line))
            events.append(event)
            if event.failed:
                return False, event.test, events
            if event.seconds is None:
                test = event.test
                until = time.monotonic() + request.limits.get(test, request.limit)
            else:
                until = time.monotonic() + request.limit
        if not data:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status) == 0, test, events
            if time.monotonic() >= until:
                return None, test, events


def _end(pid: int) -> None:
    """The fork and all that it started; servers end with it."""
    try:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def import_others(modules: Sequence[str]) -> None:
    """Import what the tests and the project use, and take the project out again: each fork imports it as it is then."""
    for name in modules:
        importlib.import_module(name)
    if "tailrace.cdc.columnar.decode" in sys.modules:
        sys.modules["tailrace.cdc.columnar.decode"].prepare()
    for name in [each for each in sys.modules if each.partition(".")[0] in _OURS]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()


def main(tree: str, *modules: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # ends the fork, too
    import_others(modules)
    os.chdir(tree)
    sys.path[0] = os.environ["PYTHONPATH"] = tree
    serve(sys.stdin, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
