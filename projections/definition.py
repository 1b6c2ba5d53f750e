"""Defining projections, and finding those a project defines."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from eventstore.errors import TailraceError, UsageError
from projections.failure import shown, user_place
from projections.findings import Finding
from projections.mistakes import mistakes_of
from projections.model import NOW, Input, Projection
from projections.specs import SinkSpec


def projection(
    *,
    key: str | Sequence[str],
    sink: SinkSpec,
    version: str | int = "",
    trust: bool = False,
    tolerance: Mapping[str, float] | None = None,
    **inputs: Input,
) -> Callable[[Callable[..., Any]], Projection]:
    """Make a projection of a function from DataFrames to one DataFrame.

    ``key`` names the columns of the result that tell its rows apart, ``sink`` where the rows go, and every other
    argument an input: the function has a parameter of the same name and gets a DataFrame there. A parameter ``now``
    gets the commit time of the position.

        @projection(key="customer_id", sink=PostgresTable("mart", "customer_totals"),
                    customers=State("shop.public.customers", affects={"customer_id": "id"}),
                    orders=State("shop.public.orders", affects="customer_id"))
        def customer_totals(customers, orders): ...

    Raises UsageError, with file and line, when the parts do not fit together.
    """
    keys = (key,) if isinstance(key, str) else tuple(key)

    def define(function: Callable[..., Any]) -> Projection:
        code = inspect.unwrap(function).__code__
        defined = Projection(
            name=function.__name__,
            key=keys,
            sink=sink,
            inputs=dict(inputs),
            function=function,
            version=str(version),
            trust=trust,
            tolerance=dict(tolerance or {}),
            wants_now=NOW in inspect.signature(function).parameters,
            module=function.__module__,
            file=shown(code.co_filename),
            line=code.co_firstlineno,
        )
        for found in _told(defined, mistakes_of(defined)):
            raise UsageError(f"projection {defined.name!r} ({found.place}): {found.what}", hint=found.hint)
        return defined

    return define


@dataclass(frozen=True, slots=True)
class Mistake:
    """Something wrong with a definition, or with a module (then ``projection`` is None)."""

    projection: Projection | None
    finding: Finding


_gathered: ContextVar[list[Mistake] | None] = ContextVar("gathered", default=None)


@contextmanager
def gathering() -> Iterator[list[Mistake]]:
    """Inside, mistakes of definitions and modules are gathered instead of raised, so that all can be told at once;
    ``load_projections`` leaves out what has one."""
    found: list[Mistake] = []
    token = _gathered.set(found)
    try:
        yield found
    finally:
        _gathered.reset(token)


def _told(defined: Projection | None, found: Iterable[Finding]) -> list[Finding]:
    """What has to be raised: nothing while mistakes are gathered."""
    gathered, mistakes = _gathered.get(), list(found)
    if gathered is None:
        return mistakes
    gathered += [Mistake(defined, each) for each in mistakes]
    return []


def load_projections(modules: Iterable[str], root: Path | None = None) -> dict[str, Projection]:
    """Import the modules and return their projections by name, in order of definition.

    ``root`` (default: the working folder) is put on ``sys.path``, as ``python -m`` would. Raises UsageError for a
    module that is missing or does not import, and for two projections of one name.
    """
    folder = str((root or Path.cwd()).resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    found: dict[str, Projection] = {}
    for name in modules:
        try:
            for defined in _of_module(_import(name, folder)):
                _add(found, defined)
        except UsageError as error:
            if _told(None, [Finding("fail", error.message, error.hint, name)]):
                raise
    broken = [id(mistake.projection) for mistake in _gathered.get() or ()]
    return {name: defined for name, defined in found.items() if id(defined) not in broken}


def _add(found: dict[str, Projection], defined: Projection) -> None:
    other = found.setdefault(defined.name, defined)
    if other is not defined:
        raise UsageError(
            f"two projections are named {defined.name!r}: {other.place} and {defined.place}",
            hint="a projection's name is its function's; rename one of them",
        )


def _import(name: str, folder: str) -> ModuleType:
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except TailraceError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise UsageError(
                f"there is no module {name!r}, which projections.modules names",
                hint=f"modules are looked up from {folder} and the installed packages",
            ) from None
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> UsageError:
    if isinstance(error, SyntaxError) and error.filename:
        place, words = f"{shown(error.filename)}:{error.lineno}", error.msg
    else:
        place, words = user_place(error) or name, str(error)
    return UsageError(
        f"module {name!r} does not import ({place}): {type(error).__name__}: {words}",
        hint="mend it, or take it from projections.modules",
    )


def _of_module(module: ModuleType) -> list[Projection]:
    """The projections a module defines (not those it imports), refusing one hidden by another of its name."""
    own = [
        value
        for value in vars(module).values()
        if isinstance(value, Projection) and value.module == module.__name__
    ]
    file = getattr(module, "__file__", None)
    if file is None:
        return own
    lines: dict[str, int] = {}
    names = {defined.name for defined in own}
    for node in ast.parse(Path(file).read_text(encoding="utf-8"), file).body:
        if isinstance(node, ast.FunctionDef) and node.name in names:
            if node.name in lines:
                raise UsageError(
                    f"two projections are named {node.name!r}:"
                    f" {shown(file)}:{lines[node.name]} and {shown(file)}:{node.lineno}",
                    hint="a projection's name is its function's; rename one of them",
                )
            lines[node.name] = node.lineno
    return own
