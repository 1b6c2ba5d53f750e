"""Defining projections, and finding those a project defines."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from eventstore.errors import TailraceError, UsageError
from eventstore.model import TopicId
from projections.failure import shown, user_place
from projections.model import Changes, Events, Input, Projection, State, Through
from projections.specs import OwnSink, ParquetFolder, PostgresTable, RedisCache, SearchIndex, SinkSpec

NOW = "now"
"""A function with a parameter of this name gets the commit time of the position it is computed at (UTC): the clock of
a projection. The wall clock would give another result each time."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")


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
        _check(defined)
        return defined

    return define


def _check(defined: Projection) -> None:
    """Everything that is wrong with a definition by itself. Raises UsageError."""
    if not _NAME.fullmatch(defined.name):
        raise _wrong(
            defined, "its name becomes part of table and index names", "use a-z, 0-9 and _, at most 41"
        )
    if not defined.key or not all(isinstance(name, str) and name for name in defined.key):
        raise _wrong(defined, "it has no key", 'name the columns that tell its rows apart: key="customer_id"')
    if len(set(defined.key)) != len(defined.key):
        raise _wrong(defined, f"its key {defined.key} names a column twice", "name each column once")
    if not isinstance(defined.sink, PostgresTable | RedisCache | SearchIndex | ParquetFolder | OwnSink):
        raise _wrong(
            defined, "its sink is not one", 'for example sink=PostgresTable("mart", "customer_totals")'
        )
    if not defined.inputs:
        raise _wrong(defined, "it reads nothing", 'declare inputs: orders=State("shop.public.orders")')
    for name, source in defined.inputs.items():
        _check_input(defined, name, source)
    wanted = set(inspect.signature(defined.function).parameters) - {NOW}
    if wanted != set(defined.inputs):
        declared = ", ".join(defined.inputs)
        raise _wrong(
            defined,
            f"its parameters ({', '.join(sorted(wanted)) or 'none'}) are not its inputs ({declared})",
            "give the function one parameter for each declared input, of the same name",
        )


def _check_input(defined: Projection, name: str, source: object) -> None:
    if not isinstance(source, State | Changes | Events):
        raise _wrong(
            defined,
            f"{name}={source!r} is no input",
            f'an input is a State, Changes or Events: {name}=State("shop.public.orders")',
        )
    try:
        TopicId.parse(source.topic)
    except UsageError as error:
        raise _wrong(defined, f"input {name!r}: {error.message}", error.hint) from None
    match source.affects:
        case Through() as through:
            _check_through(defined, name, through)
            return
        case Mapping() as paths:
            unknown = [column for column in paths if column not in defined.key]
        case tuple() as columns:
            unknown = [] if len(columns) == len(defined.key) else list(set(columns) - set(defined.key))
        case str() as column:
            unknown = [] if len(defined.key) == 1 else list({column} - set(defined.key))
        case _:
            unknown = []
    if unknown:
        raise _wrong(
            defined,
            f"input {name!r}: affects={source.affects!r} does not give the key ({', '.join(defined.key)})",
            "map each key column to the column of this input that holds it: affects={'customer_id': 'id'}",
        )


def _check_through(defined: Projection, name: str, through: Through) -> None:
    """It leads to inputs with a lineage, and not back."""
    columns = [*through.on, *through.on.values()] if isinstance(through.on, Mapping) else []
    if not columns or not all(isinstance(column, str) and column for column in columns):
        raise _wrong(
            defined,
            f"input {name!r}: {through!r} does not say which columns belong together",
            'map columns of this input to those of the other: Through("orders", {"order_id": "id"})',
        )
    passed = [name]
    at: object = through
    while isinstance(at, Through):
        if at.input not in defined.inputs:
            raise _wrong(
                defined,
                f"input {passed[-1]!r} goes through {at.input!r}, which is no input",
                f"its inputs are {', '.join(defined.inputs)}",
            )
        if at.input in passed:
            raise _wrong(
                defined,
                f"its inputs go through each other in a circle: {' -> '.join([*passed, at.input])}",
                "one of them has to name columns of the key",
            )
        passed.append(at.input)
        at = defined.inputs[at.input].affects
    if at is None:
        raise _wrong(
            defined,
            f"input {name!r} goes through {passed[-1]!r}, of which nobody knows what it affects",
            f"give {passed[-1]!r} affects=, or leave it out here",
        )


def _wrong(defined: Projection, what: str, hint: str) -> UsageError:
    return UsageError(f"projection {defined.name!r} ({defined.place}): {what}", hint=hint)


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
        for defined in _of_module(_import(name, folder)):
            other = found.setdefault(defined.name, defined)
            if other is not defined:
                raise UsageError(
                    f"two projections are named {defined.name!r}: {other.place} and {defined.place}",
                    hint="a projection's name is its function's; rename one of them",
                )
    return found


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
