"""The house at a glance, after ``make lint``: its fullest folders, largest modules and functions, widest signatures.

A size is a smell and no law, so nothing is refused here. What is plainly a mistake fails elsewhere: circles and imports
the wrong way (import-linter), links and names that lead nowhere (``tests/docs``), a second top-level package
(``tests/tailrace/test_install.py``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path

from tests.support import REPOSITORY

ROOMS = ("cdc", "eventstore", "migrations", "projections", "tailrace")
SHOWN = 6

Measure = tuple[int, str]


def main() -> None:
    modules = {
        path: path.read_text(encoding="utf-8") for room in ROOMS for path in _modules(REPOSITORY / room)
    }
    functions = [each for path, text in modules.items() for each in _functions(path, ast.parse(text))]
    columns = {
        "entries a folder": _largest(_folders(modules)),
        "lines a module": _largest((text.count("\n"), _short(path)) for path, text in modules.items()),
        "lines a function": _largest((_lines(function), name) for name, function in functions),
        "parameters": _largest((_parameters(function), name) for name, function in functions),
    }
    widths = [max(map(len, (head, *cells))) for head, cells in columns.items()]
    print(f"{len(modules)} modules, {sum(text.count(chr(10)) for text in modules.values()):,} lines")
    for row in zip_longest(*([head, *cells] for head, cells in columns.items()), fillvalue=""):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _modules(room: Path) -> Iterator[Path]:
    """Through no link: an editable install has them inside ``tailrace``."""
    for entry in sorted(room.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            yield from _modules(entry)
        elif entry.suffix == ".py":
            yield entry


def _folders(modules: Iterable[Path]) -> Iterator[Measure]:
    """Modules and folders in each, without its ``__init__``."""
    entries: dict[Path, set[Path]] = {}
    for path in modules:
        while (folder := path.parent) != REPOSITORY:
            entries.setdefault(folder, set()).add(path)
            path = folder
    for folder, found in entries.items():
        yield sum(path.name != "__init__.py" for path in found), _short(folder)


def _functions(path: Path, node: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _functions(path, child, f"{child.name}.")
        elif isinstance(child, ast.FunctionDef):
            yield f"{path.parent.name}/{path.stem}: {inside}{child.name}", child


def _lines(function: ast.FunctionDef) -> int:
    """Of its body: a signature has its own column."""
    return (function.end_lineno or function.lineno) - function.body[0].lineno + 1


def _parameters(function: ast.FunctionDef) -> int:
    """Without ``self``. Those of a command are options of the command line: none is passed by hand."""
    given = function.args
    parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    if any(each.annotation and ast.unparse(each.annotation) == "typer.Context" for each in parameters):
        return 0
    return sum(each.arg not in ("self", "cls") for each in parameters)


def _largest(found: Iterable[Measure]) -> list[str]:
    return [f"{size:4} {name}" for size, name in sorted(found, reverse=True)[:SHOWN]]


def _short(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


if __name__ == "__main__":
    main()
