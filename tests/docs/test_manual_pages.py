"""Hints name pages and headings of the documentation that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.eventstore.errors import DOCS_URL_VARIABLE, heading_anchor, manual_page
from tests.support import REPOSITORY

ROOMS = ("cdc", "eventstore", "migrations", "projections", "tailrace")
SOURCES = [
    path
    for room in ROOMS
    for path in sorted((REPOSITORY / room).rglob("*.py"))
    if not any(parent.is_symlink() for parent in path.parents)
]


def named_pages() -> Iterator[tuple[str, ...]]:
    """The arguments of each call of ``manual_page``."""
    for path in SOURCES:
        text = path.read_text()
        if "manual_page(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "manual_page":
                words = tuple(each.value for each in node.args if isinstance(each, ast.Constant))
                assert len(words) == len(node.args), f"{path}: a page is named by constants"
                yield tuple(map(str, words))


@pytest.mark.parametrize("named", sorted(set(named_pages())), ids=" ".join)
def test_a_page_that_a_hint_names_has_the_heading(named: tuple[str, ...]) -> None:
    page = REPOSITORY / "docs" / named[0]
    assert page.is_file()
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    assert set(named[1:]) <= set(headings)


def test_hints_name_pages_by_one_function() -> None:
    by_hand = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno}"
        for path in SOURCES
        for node in ast.walk(_without_docstrings(path))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.search(r"\bdocs/\w", node.value)
    ]
    assert not by_hand


def _without_docstrings(path: Path) -> ast.Module:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        for statement in getattr(node, "body", ()) if isinstance(getattr(node, "body", ()), list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                statement.value = ast.Constant(None)
    return tree


def test_a_page_is_named_by_an_address_where_a_team_serves_the_documentation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(DOCS_URL_VARIABLE, raising=False)
    assert (
        manual_page("operations/storage.md", "Moving a store")
        == "the documentation's page operations/storage.md (Moving a store)"
    )
    monkeypatch.setenv(DOCS_URL_VARIABLE, "https://docs.example.org/tailrace/")
    assert manual_page("operations/storage.md", "Moving a store").endswith(
        "/tailrace/operations/storage.md#moving-a-store"
    )
    assert manual_page("operations/upkeep.md") == "https://docs.example.org/tailrace/operations/upkeep.md"
    assert (
        heading_anchor("Checking: `tailrace projection check [NAME…]`")
        == "checking-tailrace-projection-check-name"
    )
