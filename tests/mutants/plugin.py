"""For pytest in a mutant: chosen tests in a given order, examples that are the same each time, and word of each test as
it begins and ends. Without a mutation it also notes which tests run which lines."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import pytest
from hypothesis import Phase, settings

_PROCESSES = frozenset(
    {"subprocess.Popen", "os.fork", "os.posix_spawn", "socket.sendmsg"}  # tests/support/forking.py sends
)
_Trace = Callable[[FrameType, str, object], Any]


@dataclass(frozen=True, slots=True)
class Event:
    """``test`` begins (``seconds`` is None) or has ended. ``ran`` are the lines of each function ``MODULE:NAME`` that
    it ran; with ``processes``, others may have run more."""

    test: str
    seconds: float | None = None
    setup: float = 0.0
    failed: bool = False
    ran: Mapping[str, Sequence[int]] = field(default_factory=dict)
    processes: bool = False
    why: str = ""  # it failed


class Plugin:
    """Given to ``pytest.main``. Events go to ``told``, a line each. ``tests``: only these, in this order."""

    def __init__(self, told: TextIO, tests: Sequence[str] = (), recorder: Recorder | None = None) -> None:
        self._told = told
        self._places = {test: place for place, test in enumerate(tests)}
        self._spark: set[str] = set()
        self._recorder = recorder
        self._seconds: dict[str, float] = {}
        self._failed = False

    def pytest_sessionstart(self) -> None:
        settings.register_profile(
            "mutants",
            settings(),
            phases=(Phase.explicit, Phase.generate),
            derandomize=True,
            database=None,
        )
        settings.load_profile("mutants")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._spark = {each.nodeid for each in items if "spark" in getattr(each, "fixturenames", ())}
        if self._places:
            chosen = [each for each in items if each.nodeid in self._places]
            if len(chosen) < len(self._places):  # a mutated value is in the name of one: any may be it
                chosen = items
            last = len(self._places)
            items[:] = sorted(chosen, key=lambda each: self._places.get(each.nodeid, last))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._tell(Event(report.nodeid, 0.0, failed=True, why=report.longreprtext))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._tell(Event(nodeid))
        self._seconds, self._failed = {}, False
        if self._recorder is not None:
            self._recorder.start()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.when] = report.duration
        self._failed |= report.failed
        if report.failed:
            seconds = sum(self._seconds.values())
            self._tell(Event(report.nodeid, seconds, failed=True, why=report.longreprtext))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        seconds, setup = sum(self._seconds.values()), self._seconds.get("setup", 0.0)
        ran, processes = ({}, False) if self._recorder is None else self._recorder.stop()
        self._tell(Event(nodeid, seconds, setup, self._failed, ran, processes or nodeid in self._spark))

    def _tell(self, event: Event) -> None:
        fields = {name: getattr(event, name) for name in Event.__slots__}
        self._told.write(json.dumps(fields) + "\n")
        self._told.flush()


class _Lines:
    """Those that ran. A class, because a function that returns itself is garbage of which tests that measure memory
    would see some."""

    __slots__ = ("lines",)

    def __init__(self) -> None:
        self.lines: set[int] = set()

    def __call__(self, frame: FrameType, event: str, argument: object) -> _Trace:
        self.lines.add(frame.f_lineno)
        return self


class Recorder:
    """Which lines of modules this process runs, and whether it has others run."""

    def __init__(self, tree: Path, modules: Sequence[str]) -> None:
        self._tree = tree
        self._modules = frozenset(modules)
        self._known: dict[str, str | None] = {}
        self._ran: dict[str, _Lines] = {}
        self._processes = False
        sys.addaudithook(self._audit)

    def start(self) -> None:
        self._ran, self._processes = {}, False
        threading.settrace(self._call)
        sys.settrace(self._call)

    def stop(self) -> tuple[dict[str, list[int]], bool]:
        sys.settrace(None)
        threading.settrace(None)
        return {name: sorted(ran.lines) for name, ran in self._ran.items()}, self._processes

    def _audit(self, event: str, arguments: object) -> None:
        self._processes |= event in _PROCESSES

    def _call(self, frame: FrameType, event: str, argument: object) -> _Trace | None:
        code = frame.f_code
        try:
            module = self._known[code.co_filename]
        except KeyError:
            module = self._known[code.co_filename] = self._module(code.co_filename)
        if (
            module is None or not code.co_flags & CO_OPTIMIZED
        ):  # a body of a module or class: all tests import it
            return None
        return self._ran.setdefault(f"{module}:{named(code.co_qualname)}", _Lines())(frame, event, argument)

    def _module(self, file: str) -> str | None:
        path = Path(file)
        if not path.is_relative_to(self._tree):
            return None
        name = str(path.relative_to(self._tree)).removeprefix("tailrace/")
        return name if name in self._modules else None


def named(qualified: str) -> str:
    """A code object's name as mutations have it: a comprehension or lambda is its function."""
    return ".".join(part for part in qualified.split(".") if not part.startswith("<"))
