"""The documentation tells the truth: links and names in it exist, its examples run."""

from __future__ import annotations

import ast
import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from tailrace.cli.app import app
from tailrace.config.load import load_settings
from tailrace.eventstore.store import Store
from tailrace.projections import load_projections
from tests.support import REPOSITORY
from tests.tailrace.live_projection import LIVE_ROW, make_live

ROOMS = (
    "cdc",
    "eventstore",
    "projections",
    "migrations",
    "tailrace",
    "tests",
    "docs",
    "examples",
    "benchmarks",
)
PAGES = sorted(
    {
        *REPOSITORY.glob("*.md"),
        *REPOSITORY.glob("docs/**/*.md"),
        *(page for room in ROOMS for page in REPOSITORY.glob(f"{room}/*.md")),
    }
)
PROMISES = REPOSITORY / "docs" / "guarantees.md"
# Pages that say where tests are and how they ran: of the tests themselves, of contributors, and of the last full run.
ABOUT_TESTS = {
    PROMISES,
    REPOSITORY / "docs" / "soak.md",
    REPOSITORY / "CONTRIBUTING.md",
    REPOSITORY / "tests" / "README.md",
}

LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")
NAMED_PATH = re.compile(rf"`((?:{'|'.join(ROOMS)})/[\w./-]*)`")
TESTS = sorted((REPOSITORY / "tests").rglob("test_*.py"))
NAMED_TEST = re.compile(r"`((?:tests|tailrace)/[\w/]+\.py)::(\w+)`")
NAMED_HERE = re.compile(r"`([\w-]+(?:/[\w-]+)*(?:/|\.py))`")
DOTTED = re.compile(r"`(tailrace(?:\.\w+)+)(?:\(\S*\))?`")
IMPORTED = re.compile(r"^from (tailrace[\w.]*) import \(?([\w ,]+)", re.MULTILINE)
NO_MODULES = {
    "tailrace.toml",
    "tailrace.json",
    "tailrace.ddl",
    "tailrace.secret",
    "tailrace.subject_keys",
}  # two files, the prefix of the trigger's messages, a table


def pages() -> list[object]:
    return [pytest.param(page, id=str(page.relative_to(REPOSITORY))) for page in PAGES]


@pytest.mark.parametrize("page", pages())
def test_links_lead_somewhere(page: Path) -> None:
    missing = [
        f"{link}#{anchor}"
        for link, anchor in LINK.findall(page.read_text())
        if not leads_somewhere(page.parent / link if link else page, anchor)
    ]
    assert not missing


def leads_somewhere(target: Path, anchor: str) -> bool:
    return target.exists() and (not anchor or anchor in anchors(target))


def anchors(page: Path) -> set[str]:
    """Names that GitHub gives a page's headings: lower case, without punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", pages())
def test_named_files_and_folders_exist(page: Path) -> None:
    missing = [name for name in NAMED_PATH.findall(page.read_text()) if not (REPOSITORY / name).exists()]
    assert not missing


@pytest.mark.parametrize("room", ROOMS)
def test_what_a_rooms_readme_names_is_in_the_room(room: str) -> None:
    named = NAMED_HERE.findall((REPOSITORY / room / "README.md").read_text())
    missing = [
        name for name in named if not (REPOSITORY / room / name).exists() and not (REPOSITORY / name).exists()
    ]
    assert not missing


@pytest.mark.parametrize("page", pages())
def test_named_modules_and_their_names_exist(page: Path) -> None:
    text = page.read_text()
    named = set(DOTTED.findall(text)) - NO_MODULES
    named |= {
        f"{module}.{name.strip().split(' as ')[0]}"
        for module, names in IMPORTED.findall(text)
        for name in names.split(",")
        if name.strip()
    }
    assert not [name for name in sorted(named) if not is_defined(name)]


def is_defined(dotted: str) -> bool:
    """Whether a module is there, or names the last part: defined, imported or listed."""
    parts = dotted.split(".")
    module, _, name = dotted.rpartition(".")
    return bool(source_of(parts)) or (
        module != "" and re.search(rf"\b{name}\b", source_of(module.split("."))) is not None
    )


def source_of(parts: list[str]) -> str:
    for path in (REPOSITORY.joinpath(*parts).with_suffix(".py"), REPOSITORY.joinpath(*parts, "__init__.py")):
        if path.exists():
            return path.read_text() or "empty"
    return ""


@pytest.mark.parametrize("package", ["tailrace", "cdc", "projections", "eventstore"])
def test_the_order_of_rooms_is_the_one_that_lint_checks(package: str) -> None:
    page = (REPOSITORY / "docs" / "ARCHITECTURE.md").read_text()
    (line,) = re.findall(rf"^{package}/ +(\S.* > .*)$", page, re.MULTILINE)
    container = package if package == "tailrace" else f"tailrace.{package}"
    (layers,) = (
        contract["layers"]
        for contract in tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"][
            "contracts"
        ]
        if contract.get("containers") == [container] and contract.get("exhaustive")
    )
    places = {room: at for at, layer in enumerate(layers) for room in re.split(r" [|:] ", layer)}
    shown = [[places[room] for room in rooms.split(", ")] for rooms in line.split(" > ")]
    assert all(max(upper) < min(lower) for upper, lower in pairwise(shown))


def test_every_promise_names_a_test_that_exists() -> None:
    named = NAMED_TEST.findall(PROMISES.read_text())
    assert named
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not (REPOSITORY / file).exists() or f"def {test}(" not in (REPOSITORY / file).read_text()
    ]
    assert not missing


def test_every_promise_has_a_test_that_is_not_slow() -> None:
    lines = [NAMED_TEST.findall(line) for line in PROMISES.read_text().splitlines()]
    assert not [named for named in lines if named and all(is_slow(*each) for each in named)]


def is_slow(file: str, test: str) -> bool:
    tree = ast.parse((REPOSITORY / file).read_text())
    return any(
        ast.unparse(decorator) == "pytest.mark.slow"
        for each in ast.walk(tree)
        if isinstance(each, ast.FunctionDef) and each.name == test
        for decorator in each.decorator_list
    )


@pytest.mark.parametrize("page", pages())
def test_tests_are_named_by_the_page_of_promises_alone(page: Path) -> None:
    if page not in ABOUT_TESTS:
        assert not re.findall(r"tests/[\w/]*test_\w+\.py", page.read_text())


def test_no_page_names_a_path_of_one_machine() -> None:
    assert not [page for page in PAGES if re.search(r"/(?:root|home|work)/", page.read_text())]


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (REPOSITORY / page).read_text(), re.DOTALL)


def test_the_readmes_first_projection_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = next(block for block in python_blocks("README.md") if "@projection" in block)
    assert len(code.splitlines()) <= 20
    (tmp_path / "readme_projection.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = load_projections(["readme_projection"]).values()
    assert found.name == "customer_totals" and found.key == ("customer_id",)


def test_the_readmes_service_reads_what_is_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = next(block for block in python_blocks("README.md") if "open_reader(" in block)
    make_live(tmp_path)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert capsys.readouterr().out.strip() == code.rpartition("# ")[2].strip() == repr(LIVE_ROW)


def test_the_readmes_service_follows_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = next(block for block in python_blocks("README.md") if "follow(" in block)
    (tmp_path / "tailrace.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    Store.open(load_settings().store, create=True).close()
    exec(code.replace("after_epoch=0", "after_epoch=0, timeout=0.1"), {})


def test_commands_in_the_readme_exist() -> None:
    commands = set(re.findall(r"^\$ tailrace (\w+)", (REPOSITORY / "README.md").read_text(), re.MULTILINE))
    assert commands
    known = {
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    }
    assert commands <= known
