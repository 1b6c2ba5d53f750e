"""The source text of a project: which files are the user's own, their syntax trees, and where a function is called.

A plan does not say which line made an operator, so a message looks the line up here.
"""

from __future__ import annotations

import ast
import inspect
import os
import sysconfig
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path

from tailrace.projections.definition.model import Projection
from tailrace.projections.definition.sql_query import SqlQuery

_TREES_MAX = 32
"""Parsed files in memory. A refresh looks at each file of a project several times; it is parsed once."""
_PATHS_MAX = 8192
"""Most paths whose owner is remembered. An analysis asks for the file of every loaded module and of every call."""


@cache
def _foreign_roots() -> tuple[str, ...]:
    """Folders whose code is not the project's: the interpreter's libraries, installed packages and ours.
    The demo's projections are a project of their own."""
    paths = sysconfig.get_paths()
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    libraries = [paths[name] for name in names]
    own = [str(room) for room in Path(__file__).parents[2].iterdir() if room.is_dir() and room.name != "demo"]
    return tuple({os.path.realpath(folder) + os.sep for folder in libraries + own})


@lru_cache(_PATHS_MAX)
def is_project_file(path: str | None) -> bool:
    """Whether a source file is the user's own: not a library's, not the interpreter's, not ours."""
    if not path or path.startswith("<") or "pyspark.zip" in path or "py4j" in path:
        return False
    real = os.path.realpath(path)
    return not real.startswith(_foreign_roots()) and os.sep + "site-packages" + os.sep not in real


def relative_path(path: str) -> str:
    """A path as messages give it: relative to the working folder when it is below it."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def user_place(error: BaseException) -> str | None:
    """``file:line`` of the innermost frame of the user's own code in an exception's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if is_project_file(frame.filename):
            return f"{relative_path(frame.filename)}:{frame.lineno}"
    return None


def syntax_tree(file: str) -> ast.Module:
    """The tree of a file of Python, shared: do not change it.

    Raises OSError, SyntaxError and ValueError (not UTF-8, or a NUL in it)."""
    return _tree(file, Path(file).read_text(encoding="utf-8"))


@lru_cache(_TREES_MAX)
def _tree(file: str, text: str) -> ast.Module:
    return ast.parse(text, file)


@dataclass(frozen=True, slots=True)
class SourceLines:
    """The places (``line:column``) of a function's calls by the name that is called (``join``, ``row_number``), and
    those of the inputs and other arguments in its decorator by their names."""

    file: str
    line: int
    calls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    declared: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, projection: Projection) -> SourceLines:
        """The lines of a projection's function; no calls when there is no source (an interactive session)."""
        function = inspect.unwrap(projection.function)
        if isinstance(function, SqlQuery):
            return cls(function.file, function.line, function.calls, {**function.header, **function.inputs})
        code = function.__code__
        file, line = code.co_filename, code.co_firstlineno
        try:
            text = Path(file).read_text(encoding="utf-8")
            tree = _tree(file, text)
        except (OSError, SyntaxError, ValueError):
            return cls(relative_path(file), line)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and _first_line(node) == line:
                lines = text.splitlines()
                return cls(relative_path(file), line, _calls(node, lines), _arguments(node, lines))
        return cls(relative_path(file), line)

    def place(self, names: Iterable[str] = ()) -> str:
        """``file:line:column`` of the call of one of these names; ``file:line`` of the function itself when there are
        several, or none."""
        places = {place for name in names for place in self.calls.get(name, ())}
        return f"{self.file}:{places.pop() if len(places) == 1 else self.line}"

    def declared_place(self, name: str) -> str:
        """``file:line:column`` where an input or another argument (``sink``, ``key``) is declared."""
        return f"{self.file}:{self.declared.get(name, self.line)}"


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _calls(function: ast.FunctionDef, lines: Sequence[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for statement in function.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                called = node.func
                name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                place = _place(lines, called.lineno, called.col_offset)
                if isinstance(called, ast.Attribute) and called.end_lineno and called.end_col_offset:
                    at = called.end_col_offset - len(name.encode())
                    place = _place(lines, called.end_lineno, at)
                found.setdefault(name, []).append(place)
    return {name: tuple(places) for name, places in found.items()}


def _arguments(function: ast.FunctionDef, lines: Sequence[str]) -> dict[str, str]:
    """The places of the decorators' arguments by name."""
    return {
        keyword.arg: _place(lines, keyword.lineno, keyword.col_offset)
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Call)
        for keyword in decorator.keywords
        if keyword.arg is not None
    }


def _place(lines: Sequence[str], line: int, offset: int) -> str:
    """``line:column`` of a byte of a line, as the syntax tree counts."""
    return f"{line}:{len(lines[line - 1].encode()[:offset].decode(errors='ignore')) + 1}"
