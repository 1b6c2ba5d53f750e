"""Where in a projection's function something is called. A plan does not say which line made an operator."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tailrace.projections.definition.model import Projection
from tailrace.projections.definition.sql_query import SqlQuery
from tailrace.projections.definition.syntax import syntax_tree
from tailrace.projections.spark.errors import shown


@dataclass(frozen=True, slots=True)
class SourceLines:
    """The lines of a function's calls by the name that is called (``join``, ``row_number``), and those of the inputs
    in its decorator by their names."""

    file: str
    line: int
    calls: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    inputs: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, projection: Projection) -> SourceLines:
        """Of a projection's function; without calls when there is no source (an interactive session)."""
        function = inspect.unwrap(projection.function)
        if isinstance(function, SqlQuery):
            return cls(function.file, function.line, function.calls, function.inputs)
        code = function.__code__
        file, line = code.co_filename, code.co_firstlineno
        try:
            tree = syntax_tree(file)
        except (OSError, SyntaxError, ValueError):
            return cls(shown(file), line)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and _first_line(node) == line:
                return cls(shown(file), line, _calls(node), _arguments(node))
        return cls(shown(file), line)

    def place(self, names: Iterable[str] = ()) -> str:
        """``file:line`` of the call of one of these names; of the function itself when there are several, or none."""
        lines = sorted({line for name in names for line in self.calls.get(name, ())})
        return f"{self.file}:{lines[0] if len(lines) == 1 else self.line}"

    def of_input(self, name: str) -> str:
        """``file:line`` where an input is declared."""
        return f"{self.file}:{self.inputs.get(name, self.line)}"


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _calls(function: ast.FunctionDef) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for statement in function.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                called = node.func
                name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                line = called.end_lineno if isinstance(called, ast.Attribute) else called.lineno
                found.setdefault(name, []).append(line or node.lineno)
    return {name: tuple(lines) for name, lines in found.items()}


def _arguments(function: ast.FunctionDef) -> dict[str, int]:
    """The lines of the decorators' arguments by name."""
    return {
        keyword.arg: keyword.value.lineno
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Call)
        for keyword in decorator.keywords
        if keyword.arg is not None
    }
