"""The small changes that can be made to a module, each to one place of its text: comparisons, boundaries, conditions,
results, statements left out, and the conditions of SQL and Lua inside strings. Pure.

Left alone: what is said to people (``raise``), annotations, defaults and decorators, assertions, fail points.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

_Change = tuple[int, int, str]  # bytes from, to, and what comes there instead

_SWAPS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"), ast.And: ("and", "or"), ast.Or: ("or", "and"), ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
}  # fmt: skip
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_STATEMENTS = re.compile(rb"\b(SELECT|UPDATE|INSERT|DELETE|WHERE|redis\.call)\b")
_IN_STATEMENTS = {
    rb"\bAND\b": "OR", rb"\bOR\b(?! REPLACE)": "AND", rb" < ": " <= ", rb" <= ": " < ", rb" > ": " >= ",
    rb" >= ": " > ", rb" = ": " <> ", rb" == ": " ~= ", rb" ~= ": " == ", rb"\bIS NULL\b": "IS NOT NULL",
    rb"\bIS NOT NULL\b": "IS NULL", rb"\bNOT EXISTS\b": "EXISTS", rb"(?<!IF )(?<!NOT )\bEXISTS \(": "NOT EXISTS (",
}  # fmt: skip
_LARGEST = 8  # integers up to it are boundaries; larger ones are sizes, and one more or less is the same


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change. ``was`` and ``becomes`` are the lines that it touches, with single spaces: they and the function say
    which mutation it is, also after it has moved."""

    module: str
    function: str
    line: int
    was: str
    becomes: str
    mutated: bytes

    @property
    def identity(self) -> tuple[str, str, str, str]:
        return self.module, self.function, self.was, self.becomes


def mutations(module: str, source: bytes) -> list[Mutation]:
    """All mutations of a module's text, in its order."""
    text = _Text(source)
    found = []
    for function, (start, end, instead) in sorted(
        _walk(text, ast.parse(source), ""), key=lambda each: each[1]
    ):
        mutated = source[:start] + instead.encode() + source[end:]
        first, last = source.rfind(b"\n", 0, start) + 1, source.find(b"\n", end)
        was, becomes = source[first:last], mutated[first : last + len(mutated) - len(source)]
        line = source.count(b"\n", 0, start) + 1
        found.append(Mutation(module, function, line, _one_line(was), _one_line(becomes), mutated))
    return found


class _Text:
    """Places of nodes in the bytes of a module."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self._lines = [0, *(place.end() for place in re.finditer(rb"\n", source))]

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self._lines[node.lineno - 1] + node.col_offset
        return start, self._lines[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: ast.expr) -> str:
        start, end = self.span(node)
        return self.source[start:end].decode()

    def between(self, left: ast.expr, right: ast.expr, operator: ast.AST) -> Iterator[_Change]:
        """The operator between two operands, swapped."""
        if (swap := _SWAPS.get(type(operator))) is not None:
            start, end = self.span(left)[1], self.span(right)[0]
            word = re.escape(swap[0]).replace("\\ ", r"\s+")
            if place := re.compile(word.encode()).search(self.source, start, end):
                yield place.start(), place.end(), swap[1]


def _walk(text: _Text, node: ast.AST, function: str) -> Iterator[tuple[str, _Change]]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}".lstrip(".")
    yield from ((function, change) for change in _changes(text, node, inside=bool(function)))
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert | ast.Raise | ast.JoinedStr) or _is_aside(
        node
    ):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or isinstance(value, ast.arguments):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(text, child, function)


def _is_aside(node: ast.AST) -> bool:
    """A docstring, a fail point, what only type checkers read, a check of lengths."""
    match node:
        case (
            ast.Expr(value=ast.Constant())
            | ast.If(test=ast.Name(id="TYPE_CHECKING"))
            | ast.keyword(arg="strict")
        ):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="failpoints")))):
            return True
    return False


def _changes(text: _Text, node: ast.AST, *, inside: bool) -> Iterator[_Change]:
    if _is_aside(node):
        return
    match node:
        case ast.Compare():
            for left, operator, right in zip(
                [node.left, *node.comparators], node.ops, node.comparators, strict=False
            ):
                yield from text.between(left, right, operator)
        case ast.BoolOp():
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from text.between(left, right, node.op)
        case ast.BinOp():
            yield from text.between(node.left, node.right, node.op)
        case ast.UnaryOp(op=ast.Not()):
            yield (*text.span(node), f"({text.of(node.operand)})")
        case ast.Constant(value=bool(value)):
            yield (*text.span(node), str(not value))
        case ast.Constant(value=int(value)) if inside and value <= _LARGEST:
            yield (*text.span(node), str(value + 1))
            if value:
                yield (*text.span(node), str(value - 1))
        case ast.Constant(value=str()) | ast.JoinedStr():
            yield from _in_statement(text, node)
        case ast.If() | ast.IfExp() if isinstance(
            node.test, ast.Name | ast.Attribute | ast.Call | ast.NamedExpr
        ):
            yield (*text.span(node.test), f"(not ({text.of(node.test)}))")
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield (*text.span(value), "None")
        case ast.Call(func=ast.Attribute(attr="where") | ast.Name(id="and_")):
            for condition in node.args:
                if not isinstance(condition, ast.Starred):
                    yield (*text.span(condition), "True")
        case ast.Name(id=name, ctx=ast.Load()) if name in _NAMES:
            yield (*text.span(node), _NAMES[name])
        case ast.Raise() | ast.AugAssign() | ast.Delete() | ast.Continue() | ast.Expr(value=ast.Call()):
            yield (*text.span(node), "pass")
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield (*text.span(node), "pass")


def _in_statement(text: _Text, node: ast.expr) -> Iterator[_Change]:
    start, end = text.span(node)
    if _STATEMENTS.search(text.source, start, end):
        lua = b"redis.call" in text.source[start:end]
        for pattern, instead in _IN_STATEMENTS.items():
            if lua and pattern == rb" = ":  # an assignment
                continue
            for place in re.compile(pattern).finditer(text.source, start, end):
                yield place.start(), place.end(), instead


def _one_line(text: bytes) -> str:
    return " ".join(text.decode().split())
