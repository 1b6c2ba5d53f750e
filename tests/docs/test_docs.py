"""The documentation tells the truth: links and names in it exist, its examples run."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.cli.app import app
from tailrace.config.load import load_settings
from tailrace.eventstore.store import Store
from tailrace.projections import load_projections
from tailrace.projections.sinks.open import open_sink
from tailrace.projections.sinks.specs import PostgresTable
from tests.projections.sinks.sink_data import fill, target
from tests.support.folders import REPOSITORY

ROOT = REPOSITORY
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("benchmarks/*.md"),
        *ROOT.glob("examples/*.md"),
    ]
)
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

LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(?:#[^)]*)?\)")
NAMED_PATH = re.compile(rf"`((?:{'|'.join(ROOMS)})/[\w./-]*)`")
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def pages() -> list[object]:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES]


@pytest.mark.parametrize("page", pages())
def test_links_lead_somewhere(page: Path) -> None:
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", pages())
def test_named_files_and_folders_exist(page: Path) -> None:
    missing = [name for name in NAMED_PATH.findall(page.read_text()) if not (ROOT / name).exists()]
    assert not missing


@pytest.mark.parametrize("page", ["guarantees.md", "capture.md"])
def test_every_promise_names_a_test_that_exists(page: str) -> None:
    named = NAMED_TEST.findall((ROOT / "docs" / page).read_text())
    assert named
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not (ROOT / file).exists() or f"def {test}(" not in (ROOT / file).read_text()
    ]
    assert not missing


def test_no_page_names_a_path_of_one_machine() -> None:
    assert not [page for page in PAGES if re.search(r"/(?:root|home|work)/", page.read_text())]


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_the_readmes_first_projection_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = next(block for block in python_blocks("README.md") if "@projection" in block)
    assert len(code.splitlines()) <= 20
    (tmp_path / "readme_projection.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = load_projections(["readme_projection"]).values()
    assert found.name == "customer_totals" and found.key == ("customer_id",)


def test_the_readmes_service_reads_what_is_live(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = next(block for block in python_blocks("README.md") if "open_reader(" in block)
    (tmp_path / "tailrace.toml").write_text(
        f'[store]\nname = "acme"\n[sinks.mart]\nkind = "postgres"\ndsn = "{database}"\n'
    )
    monkeypatch.chdir(tmp_path)
    sink = open_sink(PostgresTable("mart", "customer_totals"), load_settings())
    columns = pa.schema({"customer_id": pa.int64(), "total": pa.decimal128(12, 2)})
    shown = target(schema=columns)
    fill(sink, shown, [{"customer_id": 7, "total": Decimal("10.50")}])
    sink.promote(shown, None)
    exec(code, {})
    assert capsys.readouterr().out.strip() == code.rpartition("# ")[2].strip()


def test_the_readmes_service_follows_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = next(block for block in python_blocks("README.md") if "follow(" in block)
    (tmp_path / "tailrace.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    Store.open(load_settings().store, create=True).close()
    exec(code.replace("after_epoch=0", "after_epoch=0, timeout=0.1"), {})


def test_commands_in_the_readme_exist() -> None:
    commands = set(re.findall(r"^\$ tailrace (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert commands
    known = {
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    }
    assert commands <= known
