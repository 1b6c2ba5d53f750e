"""The fingerprint of a definition: equal for two texts that compute the same, different when the code changed.

It covers the function's syntax tree, the project code it reaches (names of its own module, and modules of the project
that those import), the words of a query in SQL, the declared version, key, sink and inputs. Comments, docstrings,
layout and other projections of the same module do not count; neither do installed packages. A generation is refreshed
only by the definition whose fingerprint it carries.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from types import CodeType, FunctionType

from tailrace.projections.definition.model import Events, Projection
from tailrace.projections.definition.source import is_project_file
from tailrace.projections.definition.sql_query import SqlQuery
from tailrace.projections.events.typed_events import Code, TypedEvents

_PLAIN = (str, bytes, int, float, tuple, type(None))


def fingerprint(projection: Projection) -> str:
    """64 hexadecimal digits, the same in every process."""
    digest = hashlib.sha256()
    for part in _parts(projection):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()


def _parts(projection: Projection) -> Iterator[str]:
    yield projection.version
    yield repr(projection.key)
    yield _value_text(projection.sink)
    for name, source in projection.inputs.items():
        if isinstance(source, Events) and source.types:
            yield f"{name}={replace(source, types=None)!r}"
            yield from _texts_of_events(TypedEvents.of(source.topic_id, source.types))
        else:
            yield f"{name}={source!r}"
    yield repr(sorted(projection.tolerance.items()))
    function = inspect.unwrap(projection.function)
    if isinstance(function, SqlQuery):
        yield from function.fingerprint_words
        return
    module = sys.modules.get(projection.module)
    file = getattr(module, "__file__", None)
    if file is None or not isinstance(function, FunctionType):
        yield _code_text(function.__code__)
        return
    reach = _Reach()
    reach.follow_name(_Module.read(projection.module, Path(file)), function.__name__)
    yield from reach.texts


def _texts_of_events(typed: TypedEvents) -> Iterator[str]:
    """What decides how events are read: their models, and what makes them of earlier ones."""
    names = {each.type.name for each in typed.models}
    used = [each.code for each in typed.models]
    modules = {code.module for code in used}
    for kind, step in sorted(typed.steps.items()):
        if isinstance(step, Code):
            used += [step] if kind.name in names or step.module in modules else []
        elif kind.name in names:
            yield f"{kind!r} {step!r}"
    reach = _Reach()
    for code in used:
        file = _project_file(code.module)
        if file is None:
            yield f"{code.module}.{code.name}"
        else:
            reach.follow_name(_Module.read(code.module, file), code.name.partition(".")[0])
    yield from reach.texts


def _value_text(value: object) -> str:
    """A value by its content. Objects that are not dataclasses would print their address."""
    if is_dataclass(value):
        return repr(value)
    plain = {name: part for name, part in sorted(vars(value).items()) if isinstance(part, _PLAIN)}
    return f"{type(value).__module__}.{type(value).__qualname__} {plain!r}"


def _code_text(code: CodeType) -> str:
    """The instructions and constants of a function without source (an interactive session)."""
    constants = [_code_text(part) if isinstance(part, CodeType) else repr(part) for part in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"


@dataclass(frozen=True, slots=True)
class _Module:
    """A module of the project: its top-level statements by the name they bind."""

    name: str
    package: str
    bound: dict[str, list[ast.stmt]]
    body: list[ast.stmt]

    @classmethod
    def read(cls, name: str, file: Path) -> _Module:
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
        bound: dict[str, list[ast.stmt]] = {}
        for statement in tree.body:
            for target in _binds(statement):
                bound.setdefault(target, []).append(statement)
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        return cls(name, package, bound, tree.body)


def _binds(statement: ast.stmt) -> set[str]:
    """Names a top-level statement gives a value to."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import(names=names):
            return {alias.asname or alias.name.partition(".")[0] for alias in names}
        case ast.ImportFrom(names=names):
            return {alias.asname or alias.name for alias in names}
        case _:
            return {
                node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and _is_store(node.ctx)
            }


def _is_store(context: ast.expr_context) -> bool:
    return isinstance(context, ast.Store | ast.Del)


@dataclass(slots=True)
class _Reach:
    """What a function reaches: each name once, in an order that depends on the text alone."""

    texts: list[str] = field(default_factory=list)
    seen: set[tuple[str, str]] = field(default_factory=set)

    def follow_name(self, module: _Module, name: str) -> None:
        """Add the statements that bind ``name`` in ``module``, and what they use in turn."""
        if (module.name, name) in self.seen:
            return
        self.seen.add((module.name, name))
        for statement in module.bound.get(name, ()):
            self._follow_statement(module, statement, name)

    def _follow_statement(self, module: _Module, statement: ast.stmt, name: str) -> None:
        match statement:
            case ast.Import(names=names):
                for alias in names:
                    if name in (alias.asname, alias.name.partition(".")[0]):
                        self._follow_module(alias.name)
            case ast.ImportFrom(module=source, names=names, level=level):
                base = importlib.util.resolve_name("." * level + (source or ""), module.package)
                for alias in names:
                    if name == (alias.asname or alias.name):
                        self._follow_imported(base, alias.name)
            case _:
                self.texts.append(_dump(statement))
                for node in ast.walk(_bare(statement)):
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                        self.follow_name(module, node.id)

    def _follow_imported(self, base: str, name: str) -> None:
        """``from base import name``: a module of the project, or a name in one."""
        if _project_file(f"{base}.{name}") is not None:
            self._follow_module(f"{base}.{name}")
            return
        file = _project_file(base)
        if file is not None:
            self.follow_name(_Module.read(base, file), name)

    def _follow_module(self, name: str) -> None:
        """``import name``: any attribute may be used, so the whole module counts."""
        file = _project_file(name)
        if file is None or (name, "*") in self.seen:
            return
        self.seen.add((name, "*"))
        module = _Module.read(name, file)
        for bound in module.bound:
            self.follow_name(module, bound)


def _project_file(module: str) -> Path | None:
    """The source file of a module of the project; None for packages that are installed, built in or missing."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.has_location or not is_project_file(spec.origin):
        return None
    return Path(spec.origin or "")


def _bare(statement: ast.stmt) -> ast.stmt:
    """The statement without decorators (a projection's are compared as values) and docstrings."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        for node in ast.walk(statement):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                node.body = _without_docstring(node.body)
        statement.decorator_list = [
            decorator for decorator in statement.decorator_list if not _is_projection(decorator)
        ]
    return statement


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest or [ast.Pass()]
    return body


def _is_projection(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name == "projection"


def _dump(statement: ast.stmt) -> str:
    return ast.dump(_bare(statement), annotate_fields=False, include_attributes=False)
