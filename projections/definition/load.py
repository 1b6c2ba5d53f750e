"""Defining projections, and loading those of a project."""

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

from tailrace.eventstore.errors import TailraceError, UsageError
from tailrace.eventstore.settings import ProjectionSettings
from tailrace.projections.definition.findings import DefinitionFinding
from tailrace.projections.definition.model import NOW, Input, Projection
from tailrace.projections.definition.order import circle_of
from tailrace.projections.definition.source import relative_path, syntax_tree, user_place
from tailrace.projections.definition.stage import MarkedStages
from tailrace.projections.definition.validate import mistakes_of
from tailrace.projections.sinks.specs import SinkSpec


def projection(
    *,
    key: str | Sequence[str],
    sink: SinkSpec,
    version: str | int = "",
    trust: bool = False,
    tolerance: Mapping[str, float] | None = None,
    freshness: str | float | None = None,
    collation: str = "",
    **inputs: Input,
) -> Callable[[Callable[..., Any]], Projection]:
    """Make a projection of a function from DataFrames to one DataFrame.

    ``key`` names the columns of the result that identify its rows, ``sink`` is where the rows go, and every other
    argument is an input: the function has a parameter of the same name and gets a DataFrame there. A parameter ``now``
    gets the commit time of the position. ``freshness``, seconds or text ("10min"), is how old the result may be:
    ``tailrace run`` schedules by it. ``collation="C"`` says that texts are meant to be ordered by their bytes.

        @projection(key="customer_id", sink=PostgresTable("mart", "customer_totals"),
                    customers=State("shop.public.customers", affects={"customer_id": "id"}),
                    orders=State("shop.public.orders", affects="customer_id"))
        def customer_totals(customers, orders): ...

    Raises UsageError, with file and line, when the parts do not fit together.
    """
    keys, tolerances = _keys(key), _tolerances(tolerance)

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
            tolerance=tolerances,
            freshness=freshness,
            collation=collation,
            wants_now=NOW in inspect.signature(function).parameters,
            module=function.__module__,
            file=relative_path(code.co_filename),
            line=code.co_firstlineno,
            stages=MarkedStages(),
        )
        _report(defined, defined.name, defined.place, mistakes_of(defined))
        return defined

    return define


def _keys(given: Any) -> tuple[str, ...]:
    """The key columns; a value that is no key stays as it is, for ``mistakes_of`` to report."""
    return tuple(given) if isinstance(given, tuple | list) else (given,)


def _tolerances(given: Any) -> Any:
    return dict(given or {}) if given is None or isinstance(given, Mapping) else given


@dataclass(frozen=True, slots=True)
class Mistake:
    """Something wrong with a definition, or with a module or file that gives none (then ``projection`` is None).
    ``name`` and ``place`` are those of the definition if they are known, else of the module."""

    projection: Projection | None
    finding: DefinitionFinding
    name: str
    place: str

    @property
    def is_of_module(self) -> bool:
        """Whether a whole module or file is missing, or wrong before it defines anything."""
        return self.projection is None and self.name == self.place


def as_error(mistakes: Iterable[Mistake], name: str) -> UsageError:
    """The first mistake of a definition or module, as the error that loading it would raise."""
    own = [mistake for mistake in mistakes if mistake.name == name]
    return (
        UsageError(own[0].finding.what, hint=own[0].finding.hint)
        if own[0].is_of_module
        else _first_error(name, [mistake.finding for mistake in own])
    )


def _first_error(name: str, findings: Sequence[DefinitionFinding]) -> UsageError:
    more = f" (and {len(findings) - 1} more: tailrace projection check)" if len(findings) > 1 else ""
    first = findings[0]
    return UsageError(f"projection {name!r} ({first.place}): {first.what}{more}", hint=first.hint)


@dataclass(frozen=True, slots=True)
class BrokenProject:
    """What does not load of a project."""

    mistakes: tuple[Mistake, ...] = ()

    @property
    def definitions(self) -> dict[str, UsageError]:
        """The first mistake of each definition, by name."""
        return self._errors(of_modules=False)

    @property
    def modules(self) -> dict[str, UsageError]:
        """The first mistake of each module or file that defines nothing because of it."""
        return self._errors(of_modules=True)

    def _errors(self, *, of_modules: bool) -> dict[str, UsageError]:
        own = [mistake for mistake in self.mistakes if mistake.is_of_module is of_modules]
        return {name: as_error(own, name) for name in dict.fromkeys(each.name for each in own)}


_mistakes: ContextVar[list[Mistake] | None] = ContextVar("gathered", default=None)


@contextmanager
def gather_mistakes() -> Iterator[list[Mistake]]:
    """Inside, mistakes of definitions and modules are gathered instead of raised, so that all can be reported at once.
    ``load_projections`` leaves out what has one."""
    found: list[Mistake] = []
    token = _mistakes.set(found)
    try:
        yield found
    finally:
        _mistakes.reset(token)


def _report(defined: Projection | None, name: str, place: str, findings: Iterable[DefinitionFinding]) -> None:
    """Raises UsageError with the first mistake of a definition, or gathers all."""
    gathered, mistakes = _mistakes.get(), list(findings)
    if gathered is not None:
        gathered += [Mistake(defined, each, name, place) for each in mistakes]
        return
    if mistakes:
        raise _first_error(name, mistakes)


def import_from(root: Path) -> Path:
    """Put a folder on ``sys.path``, as ``python -m`` would: a project's modules and sinks are there."""
    folder = root.resolve()
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return folder


def load_configured(settings: ProjectionSettings, root: Path) -> dict[str, Projection]:
    """The projections that settings name. Raises what ``load_projections`` raises."""
    return load_projections(settings.modules, root, settings.sql)


def load_projections(
    modules: Iterable[str],
    root: Path | None = None,
    sql: Iterable[str | Path] = (),
) -> dict[str, Projection]:
    """Import the modules, read the ``.sql`` files (and folders of them), and return their projections by name, in order
    of definition.

    ``root`` (default: the working folder) is put on ``sys.path``, and paths begin there. Raises UsageError for a module
    that is missing or does not import, a file that is missing or wrong, and for two projections of one name.
    """
    folder = import_from(root or Path.cwd())
    found: dict[str, Projection] = {}
    for name in modules:
        with _report_module(name):
            for defined in _projections_of(_import(name, str(folder))):
                _add(found, defined)
    for path in sql:
        with _report_module(str(path)):
            for file in _files(folder, path):
                for defined in _load_file(file):
                    _add(found, defined)
    right = _without_mistakes(found)
    for defined in right.values():
        circle = circle_of(right, defined.name)
        if circle:
            what = f"it reads its own result: {' <- '.join(circle)}"
            hint = "one of them has to read topics instead"
            _report(
                defined, defined.name, defined.place, [DefinitionFinding("fail", what, hint, defined.place)]
            )
    return _without_mistakes(right)


def _without_mistakes(projections: Mapping[str, Projection]) -> dict[str, Projection]:
    broken = [id(mistake.projection) for mistake in _mistakes.get() or ()]
    return {name: defined for name, defined in projections.items() if id(defined) not in broken}


@contextmanager
def _report_module(name: str) -> Iterator[None]:
    """Mistakes of a module or path: gathered, or raised."""
    try:
        yield
    except UsageError as error:
        gathered = _mistakes.get()
        if gathered is None:
            raise
        gathered.append(Mistake(None, DefinitionFinding("fail", error.message, error.hint, name), name, name))


def _files(folder: Path, path: str | Path) -> list[Path]:
    """A ``.sql`` file, or all of a folder."""
    place = folder / path
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise UsageError(
            f"there is no file or folder {str(path)!r}, which projections.sql names",
            hint=f"paths begin at {folder}",
        )
    found = sorted(place.rglob("*.sql"))
    if not found:
        raise UsageError(
            f"the folder {str(path)!r}, which projections.sql names, has no .sql file",
            hint="remove it from projections.sql, or write one",
        )
    return found


def _load_file(file: Path) -> list[Projection]:
    """The projection of one file; none when the file does not say what it should be."""
    try:
        from tailrace.projections.definition.sql.load import load_sql
    except ModuleNotFoundError as error:
        raise UsageError(
            f"projections in SQL need {error.name}, which is not installed",
            hint="pip install 'tailrace[spark]'",
        ) from None
    try:
        loaded = load_sql(file)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{relative_path(str(file))} cannot be read: {error}", hint="a definition is UTF-8 text"
        ) from None
    _report(loaded.projection, loaded.name, loaded.file, loaded.findings)
    return [loaded.projection] if loaded.projection is not None else []


def _add(projections: dict[str, Projection], defined: Projection) -> None:
    other = projections.setdefault(defined.name, defined)
    if other is not defined:
        what = f"two projections are named {defined.name!r}: {other.place} and {defined.place}"
        hint = "a projection's name is its function's, or its file's; rename one of them"
        # Reported for both: with one left out, nobody could know that the other one is meant.
        _report(other, other.name, other.place, [DefinitionFinding("fail", what, hint, other.place)])


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


_WITHOUT_SPARK = ("SESSION_OR_CONTEXT_NOT_EXISTS", "NO_ACTIVE_OR_DEFAULT_SESSION")


def _broken(name: str, error: Exception) -> UsageError:
    if isinstance(error, SyntaxError) and error.filename:
        place, words = f"{relative_path(error.filename)}:{error.lineno}", error.msg
    else:
        place, words = user_place(error) or name, str(error)
    hint = "mend it, or remove it from projections.modules"
    if any(condition in words for condition in _WITHOUT_SPARK):  # modules are imported before Spark starts
        hint = "no Spark runs at import: call F.… in the projection's function, and give a udf's type as an object"
    return UsageError(
        f"module {name!r} does not import ({place}): {type(error).__name__}: {words}", hint=hint
    )


def _projections_of(module: ModuleType) -> list[Projection]:
    """The projections that a module defines (not those it imports). One that is hidden by another of its name is
    refused."""
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
    for node in syntax_tree(file).body:
        if isinstance(node, ast.FunctionDef) and node.name in names:
            if node.name in lines:
                raise UsageError(
                    f"two projections are named {node.name!r}:"
                    f" {relative_path(file)}:{lines[node.name]} and {relative_path(file)}:{node.lineno}",
                    hint="a projection's name is its function's; rename one of them",
                )
            lines[node.name] = node.lineno
    return own
