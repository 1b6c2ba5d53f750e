"""Clocks and random numbers of Python, and texts that Spark reads as the time (``TIMESTAMP'now'``).

A plan shows only the value that they had, so the function is watched while it is called: which clock it or a helper
asks, and with which texts it calls Spark. What modules of the project made when they were loaded is looked up in their
source. A clock that neither shows gives a second call of the function another value (``analyse``).
"""

from __future__ import annotations

import ast
import random
import re
import secrets
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from types import CodeType, FrameType, ModuleType
from typing import Any

from tailrace.projections.definition.findings import DefinitionFinding, Level
from tailrace.projections.definition.source import is_project_file, relative_path, syntax_tree
from tailrace.projections.definition.sql_query import SqlQuery

_NOW = "give the function a parameter named now for the time; compute other values of the rows'"
_TIME_TEXT = re.compile(
    r"\b(?:timestamp|timestamp_ntz|timestamp_ltz|date)\s*(['\"])\s*(?:now|today|tomorrow|yesterday)\b[^'\"]*\1",
    re.I,
)
_OTHER_EACH_CALL: Mapping[str, frozenset[str]] = {
    "time": frozenset({"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "process_time"}),
    "uuid": frozenset({"uuid1", "uuid4", "uuid6", "uuid7"}),
    "posix": frozenset({"urandom", "getpid"}),
    "nt": frozenset({"urandom", "getpid"}),
    "secrets": frozenset({"choice", "randbelow", "randbits", "token_bytes", "token_hex", "token_urlsafe"}),
}  # fmt: skip
"""Functions of the standard library by their modules, beside ``datetime.now`` and the methods of ``random``."""
_PERHAPS_NOW = frozenset({"asctime", "ctime", "gmtime", "localtime", "strftime"})
"""Those of ``time`` that take the time now unless they are given one."""
_IN_PYTHON = tuple(str(module.__file__) for module in (random, secrets, uuid))
"""Modules of the standard library that ask the clock, or for random bytes, for their callers."""


@dataclass(slots=True)
class Watch:
    """``found``: each clock and text once, in the order of the calls. ``codes``: the project's functions that were
    called, with the names of their modules."""

    found: dict[DefinitionFinding, None] = field(default_factory=dict)
    codes: dict[CodeType, Mapping[str, Any]] = field(default_factory=dict)

    def see(self, frame: FrameType, event: str, called: Any) -> None:
        """A call, as ``sys.setprofile`` tells it."""
        if event == "c_call":
            name, caller = str(getattr(called, "__name__", "")), frame
            while caller.f_code.co_filename in _IN_PYTHON and caller.f_back is not None:
                name, caller = caller.f_code.co_name, caller.f_back
            owner = getattr(called, "__self__", None)
            name = f"{owner.__name__}.{name}" if isinstance(owner, type) else name
            if is_project_file(caller.f_code.co_filename):
                self._clock(called, name, f"{relative_path(caller.f_code.co_filename)}:{caller.f_lineno}")
        elif event == "call":
            above = frame.f_back
            if is_project_file(frame.f_code.co_filename):
                self.codes[frame.f_code] = frame.f_globals
            elif above is not None and is_project_file(above.f_code.co_filename):
                self._texts(
                    frame.f_locals.values(), f"{relative_path(above.f_code.co_filename)}:{above.f_lineno}"
                )

    def _clock(self, called: Any, name: str, place: str) -> None:
        if _is_other_each_call(called):
            what = f"{name}() is another value each time the function is called"
            self.found[DefinitionFinding("fail", what, _NOW, place)] = None
        elif getattr(called, "__module__", "") == "time" and name in _PERHAPS_NOW:
            what = f"{name}() may read the clock: not proved, so computed in full"
            self.found[DefinitionFinding("warn", what, _NOW, place)] = None

    def _texts(self, values: Any, place: str) -> None:
        for value in values:
            for text in value if isinstance(value, tuple | list) else (value,):
                for match in _TIME_TEXT.finditer(text) if isinstance(text, str) else ():
                    self.found[_time_text(match[0], place)] = None


@contextmanager
def watched() -> Iterator[Watch]:
    """Watch the calls of this thread meanwhile."""
    watch, before = Watch(), sys.getprofile()
    sys.setprofile(watch.see)
    try:
        yield watch
    finally:
        sys.setprofile(before)


def python_clocks(function: Any, watch: Watch) -> list[DefinitionFinding]:
    """Each once: those that the watched calls of the function showed, and those of constants that it uses."""
    if isinstance(function, SqlQuery):
        return list(_in_query(function))
    return list(dict.fromkeys([*watch.found, *_made_at_load(watch)]))


def _in_query(query: SqlQuery) -> Iterator[DefinitionFinding]:
    """Those among the words that count, which comments are none of."""
    said = {match[0].lower() for match in _TIME_TEXT.finditer(" ".join(query.words))}
    for match in _TIME_TEXT.finditer(query.text):
        if re.sub(r"\s*(?=['\"])", " ", match[0].lower(), count=1) in said:
            line = query.text.count("\n", 0, match.start()) + 1
            yield _time_text(match[0], f"{query.file}:{line}")


def _time_text(text: str, place: str) -> DefinitionFinding:
    hint = "give the function a parameter named now (:now in SQL): it is the commit time of the position"
    return DefinitionFinding("fail", f"{text} is another time in each refresh", hint, place)


def _made_at_load(watch: Watch) -> Iterator[DefinitionFinding]:
    """Constants that the project's modules made of a clock when they were loaded, and defaults of functions, as far as
    the called functions name them."""
    spaces = [
        space for space in map(vars, list(sys.modules.values())) if is_project_file(space.get("__file__"))
    ]
    for code, names in watch.codes.items():
        named = list(map(names.get, code.co_names))
        for space in (names, *spaces):
            is_named = any(isinstance(each, ModuleType) and vars(each) is space for each in named)
            used = {
                name
                for name in code.co_names
                if name in space and (is_named or names.get(name, space) is space[name])
            }
            yield from _clocks_of(used, space) if used else ()


def _clocks_of(used: set[str], space: Mapping[str, Any]) -> Iterator[DefinitionFinding]:
    """The clocks by which a module's source makes names that are used."""
    file = str(space.get("__file__") or "")
    try:
        nodes = list(ast.walk(syntax_tree(file)))
    except (OSError, SyntaxError, ValueError):  # no source to look at
        return
    for node in nodes:
        level: Level = "fail"
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                made: ast.AST = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                made = value
            case ast.FunctionDef(name=name, args=arguments):
                made, level = arguments, "warn"  # a default may not be taken
            case _:
                continue
        for call in ast.walk(made) if name in used else ():
            if isinstance(call, ast.Call) and _is_other_each_call(_named(call.func, space)):
                what = f"{name} holds {ast.unparse(call.func)}(), another value in each process"
                yield DefinitionFinding(level, what, _NOW, f"{relative_path(file)}:{call.lineno}")


def _named(expression: ast.expr, names: Mapping[str, Any]) -> Any:
    """What a dotted name stands for in a module."""
    if isinstance(expression, ast.Attribute):
        return getattr(_named(expression.value, names), expression.attr, None)
    return names.get(expression.id) if isinstance(expression, ast.Name) else None


def _is_other_each_call(called: object) -> bool:
    owner, name = getattr(called, "__self__", None), str(getattr(called, "__name__", ""))
    if isinstance(owner, type) and issubclass(owner, date):
        return name in ("now", "utcnow", "today")
    if isinstance(owner, random.Random):
        return name != "seed"
    if type(owner).__module__.startswith("numpy.random"):
        return True
    return name in _OTHER_EACH_CALL.get(str(getattr(called, "__module__", "")), ())
