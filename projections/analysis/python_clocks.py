"""Clocks and random numbers of Python, and texts that Spark reads as a clock (``TIMESTAMP'now'``).

A plan shows only the value that they had, so that they are looked for in the source of a function, and of the helpers
and constants of the project that it names."""

from __future__ import annotations

import ast
import importlib
import inspect
import random
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tailrace.projections.definition.source import is_project_file, shown, syntax_tree
from tailrace.projections.definition.sql_query import SqlQuery

_NOW = "give the function a parameter named now for the time; compute other values of the rows'"
_SPOKEN = re.compile(
    r"\b(?:timestamp|timestamp_ntz|timestamp_ltz|date)\s*(['\"])\s*(?:now|today|tomorrow|yesterday)\b[^'\"]*\1",
    re.I,
)
_BY_TEXT = re.compile(
    r"(.*\.)?(datetime\.(now|utcnow|today)|date\.today|time\.(time|time_ns|monotonic|localtime|gmtime)|uuid\.uuid[14]|uuid4"
    r"|random\.\w+|secrets\.\w+)"
)
"""Calls of what a function has from where nobody can look it up."""
_BY_NAME: Mapping[str, frozenset[str]] = {
    "time": frozenset({
        "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time",
        "strftime", "localtime", "gmtime", "ctime", "asctime",
    }),
    "uuid": frozenset({"uuid1", "uuid4", "uuid6", "uuid7"}),
    "posix": frozenset({"urandom", "getpid"}),
    "nt": frozenset({"urandom", "getpid"}),
    "secrets": frozenset({"choice", "randbelow", "randbits", "token_bytes", "token_hex", "token_urlsafe"}),
}  # fmt: skip
_OF_NOW = {"asctime": 0, "ctime": 0, "gmtime": 0, "localtime": 0, "strftime": 1}
"""Functions of ``time`` that take the time now unless they are given one behind so many arguments."""
_Cached = type(cache(len))
_STANDARD = frozenset({"datetime", "os", "random", "secrets", "time", "uuid"})
_UNKNOWN = object()


@dataclass(frozen=True, slots=True)
class Unsteady:
    """``place`` is ``file:line``."""

    what: str
    hint: str
    place: str


def unsteady(function: Any) -> list[Unsteady]:
    """Each once, in the order of the source. Nothing of a function without source."""
    function = inspect.unwrap(function)
    if isinstance(function, SqlQuery):
        return list(_in_query(function))
    search = _Search()
    if isinstance(function, FunctionType):
        search.function(function)
    return list(dict.fromkeys(search.found))


def _in_query(query: SqlQuery) -> Iterator[Unsteady]:
    """Of its words, which comments are none of."""
    said = {match[0].lower() for match in _SPOKEN.finditer(" ".join(query.words))}
    for match in _SPOKEN.finditer(query.text):
        if re.sub(r"\s*(?=['\"])", " ", match[0].lower(), count=1) in said:
            line = query.text.count("\n", 0, match.start()) + 1
            yield _spoken(match[0], f"{query.file}:{line}")


def _spoken(text: str, place: str) -> Unsteady:
    hint = "give the function a parameter named now (:now in SQL): it is the commit time of the position"
    return Unsteady(f"{text} is another time in each refresh", hint, place)


@dataclass(slots=True)
class _Search:
    found: list[Unsteady] = field(default_factory=list)
    _seen: set[object] = field(default_factory=set)

    def function(self, function: FunctionType, call: ast.Call | None = None) -> None:
        """``call``: where it is called; the defaults of what is given there are of no account."""
        code = function.__code__
        tree = _definition(code)
        if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef) and is_project_file(code.co_filename):
            self._defaults(tree, code, _Scope(code.co_filename, function.__globals__), call)
        if code in self._seen:
            return
        self._seen.add(code)
        if tree is not None:
            closed = inspect.getclosurevars(function).nonlocals
            names = function.__globals__
            scope = _Scope(code.co_filename, names, closed, _own_names(tree), code.co_firstlineno)
            self._look(tree, scope, "{}() is another value each time the function is called")

    def _defaults(
        self,
        tree: ast.FunctionDef | ast.AsyncFunctionDef,
        code: CodeType,
        scope: _Scope,
        call: ast.Call | None,
    ) -> None:
        """Values that were made when the module was loaded."""
        arguments = tree.args
        positional = [*arguments.posonlyargs, *arguments.args]
        pairs = [*zip(reversed(positional), reversed(arguments.defaults), strict=False)]
        pairs += [
            (each, value)
            for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if value is not None
        ]
        given = set() if call is None else {each.arg for each in call.keywords}
        given |= {each.arg for each, _ in zip(positional, () if call is None else call.args, strict=False)}
        for each, value in pairs:
            if each.arg not in given and (code, each.arg) not in self._seen:
                self._seen.add((code, each.arg))
                self._look(value, scope, f"{each.arg} holds {{}}(), another value in each process")

    def _look(self, tree: ast.AST, scope: _Scope, words: str) -> None:
        nodes = list(_body(tree))
        calls = {node.func: node for node in nodes if isinstance(node, ast.Call)}
        for node in nodes:
            match node:
                case ast.Call():
                    self._called(node, scope, words)
                case ast.Name(id=name, ctx=ast.Load()):
                    self._named(scope, name, scope.value(node), calls.get(node))
                case ast.Attribute(value=owner, attr=name):
                    module = scope.value(owner)
                    if isinstance(module, ModuleType) and is_project_file(getattr(module, "__file__", None)):
                        self._named(_Scope.of(module), name, getattr(module, name, _UNKNOWN), calls.get(node))
                case ast.Constant(value=str() as text):
                    self._text(text, f"{shown(scope.file)}:{node.lineno}")

    def _called(self, call: ast.Call, scope: _Scope, words: str) -> None:
        called = call.func
        value, text = scope.value(called), ast.unparse(called)
        if _is_given_a_time(call, text):
            return
        if _BY_TEXT.fullmatch(text) if value is _UNKNOWN else _is_unsteady(value):
            self.found.append(Unsteady(words.format(text), _NOW, f"{shown(scope.file)}:{called.lineno}"))

    def _named(self, scope: _Scope, name: str, value: object, call: ast.Call | None) -> None:
        """A helper, or a constant of a module: what is it made of?"""
        if isinstance(value, FunctionType | _Cached):
            for function in _wrapped(value):
                if is_project_file(function.__code__.co_filename):
                    self.function(function, call)
        elif value is not _UNKNOWN and not isinstance(value, ModuleType | type) and name not in scope.closed:
            self._constant(scope, name)
        elif name in scope.closed and isinstance(value, str | tuple | list):
            for text in [value] if isinstance(value, str) else value:
                self._text(str(text), f"{shown(scope.file)}:{scope.line}")

    def _constant(self, scope: _Scope, name: str) -> None:
        if (scope.file, name) in self._seen or not is_project_file(scope.file):
            return
        self._seen.add((scope.file, name))
        for statement in _nested(_statements(scope.file)):
            match statement:
                case ast.Assign(targets=targets, value=value) if name in _stored(targets):
                    pass
                case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value) if target == name:
                    pass
                case ast.ImportFrom(module=source, names=names):
                    for alias in names:
                        if name == (alias.asname or alias.name):
                            self._imported(source, scope, alias.name)
                    continue
                case _:
                    continue
            self._look(value, scope, f"{name} holds {{}}(), another value in each process")

    def _imported(self, source: str | None, scope: _Scope, name: str) -> None:
        module = sys.modules.get(source or "")
        if module is not None and getattr(module, "__file__", None):
            self._constant(_Scope.of(module), name)

    def _text(self, text: str, place: str) -> None:
        self.found += [_spoken(match[0], place) for match in _SPOKEN.finditer(text)]


@dataclass(frozen=True, slots=True)
class _Scope:
    """What names stand for in a piece of source. ``own`` are names that it binds itself: imports of the standard
    library's modules by what they give, others are not known."""

    file: str
    names: Mapping[str, Any]
    closed: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)
    line: int = 1

    @classmethod
    def of(cls, module: ModuleType) -> _Scope:
        return cls(str(module.__file__), vars(module))

    def value(self, node: ast.expr) -> Any:
        """What a name, or a dotted one, stands for now."""
        match node:
            case ast.Name(id=name):
                for names in (self.own, self.closed, self.names):
                    if name in names:
                        return names[name]
                return _UNKNOWN
            case ast.Attribute(value=owner, attr=name):
                value = self.value(owner)
                if isinstance(value, ModuleType | type | random.Random):
                    return getattr(value, name, _UNKNOWN)
                return _UNKNOWN
            case _:
                return _UNKNOWN


def _wrapped(value: Any) -> Iterator[FunctionType]:
    """A function with those that it wraps, as ``functools.cache`` and ``wraps`` tell them."""
    while isinstance(value, FunctionType | _Cached):
        if isinstance(value, FunctionType):
            yield value
        value = getattr(value, "__wrapped__", None)


def _is_given_a_time(call: ast.Call, text: str) -> bool:
    """time.gmtime(0)"""
    others = _OF_NOW.get(text.rpartition(".")[2], len(call.args))
    given = call.args[others:]
    return bool(given) and not (isinstance(given[0], ast.Constant) and given[0].value is None)


def _is_unsteady(called: object) -> bool:
    owner, name = getattr(called, "__self__", None), str(getattr(called, "__name__", ""))
    if isinstance(owner, type) and issubclass(owner, date):
        return name in ("now", "utcnow", "today")
    if isinstance(owner, random.Random):
        return name != "seed"
    if type(owner).__module__.startswith("numpy.random"):
        return True
    return name in _BY_NAME.get(str(getattr(called, "__module__", "")), ())


def _definition(code: CodeType) -> ast.AST | None:
    """The function's own piece of its file; of several lambdas in one line the first."""
    for statement in _statements(code.co_filename):
        for node in ast.walk(statement):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                if first == code.co_firstlineno:
                    return node
            if isinstance(node, ast.Lambda) and (node.lineno, "<lambda>") == (
                code.co_firstlineno,
                code.co_name,
            ):
                return node
    return None


def _statements(file: str) -> list[ast.stmt]:
    try:
        return syntax_tree(file).body
    except (OSError, SyntaxError, ValueError):
        return []


def _nested(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements with those of ``if``, ``try`` and ``with`` among them, which are of the same names."""
    for statement in statements:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _nested(getattr(statement, part, []))
        if isinstance(statement, ast.Try):
            for handler in statement.handlers:
                yield from _nested(handler.body)


def _body(tree: ast.AST) -> Iterator[Any]:
    """All of it but decorators and a docstring."""
    parts = [tree]
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        parts = list(tree.body)
        if isinstance(tree.body[0], ast.Expr) and isinstance(tree.body[0].value, ast.Constant):
            del parts[0]
    for part in parts:
        yield from ast.walk(part)


def _own_names(tree: ast.AST) -> dict[str, Any]:
    own: dict[str, Any] = {}
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                own[name] = _UNKNOWN
            case ast.ImportFrom(module=source, names=names) if source in _STANDARD:
                module = importlib.import_module(str(source))
                own |= {each.asname or each.name: getattr(module, each.name, _UNKNOWN) for each in names}
            case ast.Import(names=names):
                own |= {
                    each.asname or each.name: importlib.import_module(each.name)
                    for each in names
                    if each.name in _STANDARD
                }
    return own


def _stored(targets: list[ast.expr]) -> set[str]:
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
