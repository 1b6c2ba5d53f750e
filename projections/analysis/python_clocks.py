"""Clocks and random numbers of Python, and texts that Spark reads as the time (``TIMESTAMP'now'``).

A plan shows only the value that they had, so the function is watched while it is called: which clock it or a helper
asks, and with which texts it calls Spark. What modules of the project made when they were loaded is looked up in their
source. A clock that neither shows gives a second call of the function another value (``analyse``).
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from types import CodeType, FrameType, ModuleType
from typing import Any

from tailrace.projections.definition.findings import DefinitionFinding, Level
from tailrace.projections.definition.source import is_project_file, relative_path, syntax_tree
from tailrace.projections.definition.sql_query import SqlQuery

_NOW = "give the function a parameter named now (:now in SQL) for the time; compute other values of the rows'"
_TIME_TEXT = re.compile(
    r"\b(?:timestamp|timestamp_ntz|timestamp_ltz|date)\s*(['\"])\s*(?:now|today|tomorrow|yesterday)\b[^'\"]*\1",
    re.I,
)
_CLOCKS: Sequence[tuple[Level, re.Pattern[str], str]] = (
    ("fail", re.compile(
        r"\w+\.(now|utcnow|today)|time\.(monotonic|perf_counter|process_time|time)(_ns)?|uuid\.uuid[1467]"
        r"|(posix|nt)\.(urandom|getpid)|secrets\.(choice|rand\w+|token_\w+)|random\.(?!seed)[a-z]\w*"
        r"|numpy\.random\.\w+\.(?!default_rng|seed)\w+"
    ), "is another value each time the function is called"),
    ("warn", re.compile(
        r"time\.(asctime|ctime|gmtime|localtime|strftime)"  # the time now, unless they are given one
    ), "may read the clock: not proved, so computed in full"),
)  # fmt: skip
"""Functions by the names of their modules or classes and their own."""


@dataclass(slots=True)
class Watch:
    """``found``: each clock and text once, in the order of the calls. ``codes``: the project's functions that were
    called, with the names of their modules."""

    found: dict[DefinitionFinding, None] = field(default_factory=dict)
    codes: dict[CodeType, Mapping[str, Any]] = field(default_factory=dict)

    def see(self, frame: FrameType, event: str, called: Any) -> None:
        """A call, as ``sys.setprofile`` tells it."""
        code, caller = frame.f_code, frame if event == "c_call" else frame.f_back
        if event == "call" and is_project_file(code.co_filename):
            self.codes[code] = frame.f_globals
        elif event in ("call", "c_call") and caller and is_project_file(caller.f_code.co_filename):
            path = _path(called) if event == "c_call" else f"{frame.f_globals.get('__name__')}.{code.co_name}"
            for level, clocks, words in _CLOCKS:
                if clocks.fullmatch(path):
                    self.found[DefinitionFinding(level, f"{path}() {words}", _NOW, _place(caller))] = None
            for match in _time_texts(frame.f_locals.values() if event == "call" else ()):
                what = f"{match[0]} is another time in each refresh"
                self.found[DefinitionFinding("fail", what, _NOW, _place(caller))] = None


def _place(frame: FrameType) -> str:
    """``file:line:column`` of the call that a frame is in."""
    positions = islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
    line, _, column, _ = next(positions, (None,) * 4)
    start = "" if column is None else f":{column + 1}"
    return f"{relative_path(frame.f_code.co_filename)}:{line or frame.f_lineno}{start}"


def _time_texts(given: Iterable[Any]) -> Iterator[re.Match[str]]:
    for value in given:
        for text in value if isinstance(value, tuple | list) else (value,):
            yield from _TIME_TEXT.finditer(text) if isinstance(text, str) else ()


@contextmanager
def watch_calls() -> Iterator[Watch]:
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
        return list(_query_clocks(function))
    return list(dict.fromkeys([*watch.found, *_earlier_clocks(watch)]))


def _query_clocks(query: SqlQuery) -> Iterator[DefinitionFinding]:
    """Those among the words that count, which comments are none of."""
    said = {match[0].lower() for match in _TIME_TEXT.finditer(" ".join(query.words))}
    for match in _TIME_TEXT.finditer(query.text):
        if re.sub(r"\s*(?=['\"])", " ", match[0].lower(), count=1) in said:
            line = query.text.count("\n", 0, match.start()) + 1
            column = match.start() - query.text.rfind("\n", 0, match.start())
            what = f"{match[0]} is another time in each refresh"
            yield DefinitionFinding("fail", what, _NOW, f"{query.file}:{line}:{column}")


def _earlier_clocks(watch: Watch) -> Iterator[DefinitionFinding]:
    """What modules of the project made of a clock when they were loaded (constants, defaults, attributes of classes),
    and what functions remember (``functools.cache``), as far as the called functions name it."""
    spaces = {id(space): space for space in (*watch.codes.values(), *map(vars, list(sys.modules.values())))}
    for space in (each for each in spaces.values() if is_project_file(each.get("__file__"))):
        used = {
            name
            for code, names in watch.codes.items()
            for name in code.co_names
            if name in space and names.get(name, space[name]) is space[name]
        }
        try:
            statements = syntax_tree(space["__file__"]).body if used else []
        except (OSError, SyntaxError, ValueError):  # no source to look at
            continue
        for statement in statements:
            yield from _clocks_of(statement, used, space)


def _clocks_of(statement: ast.stmt, used: set[str], space: Mapping[str, Any]) -> Iterator[DefinitionFinding]:
    """The clocks by which a statement of a module makes names that are used."""
    parts = list(_nodes_at_load(statement))
    made = {each.id for each in parts if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    made |= {each.name for each in parts if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    for name in made & used:
        calls = [_resolve(each.func, space) for each in parts if isinstance(each, ast.Call)]
        remembers = hasattr(space[name], "cache_info")
        if (level := _level([*calls, space[name]] if remembers else calls, set())) is not None:
            # Of a function the default may not be taken, of a class another attribute be read.
            is_sure = remembers or not isinstance(statement, ast.FunctionDef | ast.ClassDef)
            what = f"{name} holds what a clock gave before, another value in each process"
            place = f"{relative_path(space['__file__'])}:{statement.lineno}:{statement.col_offset + 1}"
            yield DefinitionFinding(level if is_sure else "warn", what, _NOW, place)


def _nodes_at_load(node: ast.AST) -> Iterator[ast.AST]:
    """What of it runs when its module is loaded: no bodies of functions."""
    yield node
    body = node.args if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) else node
    for child in ast.iter_child_nodes(body):
        yield from _nodes_at_load(child)


def _resolve(expression: ast.expr, names: Mapping[str, Any]) -> Any:
    """What a dotted name stands for in a module."""
    if isinstance(expression, ast.Attribute):
        return getattr(_resolve(expression.value, names), expression.attr, None)
    return names.get(expression.id) if isinstance(expression, ast.Name) else None


def _level(values: Iterable[Any], seen: set[CodeType]) -> Level | None:
    """How sure it is that one of the values is a clock, or a function of the project that names one."""
    levels: set[Level | None] = set()
    for value in values:
        function = getattr(value, "__wrapped__", value)
        code = getattr(function, "__code__", None)
        if not isinstance(code, CodeType) or not is_project_file(code.co_filename):
            levels |= {level for level, clocks, _ in _CLOCKS if clocks.fullmatch(_path(value))}
        elif code not in seen:
            seen.add(code)
            named = [function.__globals__[name] for name in code.co_names if name in function.__globals__]
            inside = [
                getattr(each, name, None) for each in named if isinstance(each, ModuleType | type)
                for name in code.co_names
            ]  # fmt: skip
            levels.add(_level([*named, *inside], seen))
    return next((level for level in ("fail", "warn") if level in levels), None)


def _path(called: Any) -> str:
    """The names of a function's module or class and its own."""
    owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
    if isinstance(owner, type):
        return f"{owner.__name__}.{name}"
    module = getattr(
        called if owner is None or isinstance(owner, ModuleType) else type(owner), "__module__", ""
    )
    return f"{module}.{name}"
