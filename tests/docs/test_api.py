"""``docs/api.md`` lists what may be imported, all of it and nothing else, and its examples run."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.eventstore.store import Store
from tailrace.eventstore.streams.database.event_tables import install
from tests.support import REPOSITORY
from tests.tailrace.live_projection import LIVE_ROW, make_live

PAGE = (REPOSITORY / "docs" / "api.md").read_text()
MODULES = ("tailrace", "tailrace.errors", "tailrace.functions", "tailrace.testing")
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
NAME = re.compile(r"`(\w+)[^`]*`")


def listed(module: str) -> set[str]:
    """Names in the first column of a section's table, and errors that a row of another one names."""
    rows = [line.split("|")[1:-1] for line in SECTIONS[module].splitlines() if line.startswith("| `")]
    names = {name for row in rows for name in NAME.findall(row[0])}
    return names | {name for row in rows for name in re.findall(r"`(\w+)`: ", row[1])}


@pytest.mark.parametrize("module", MODULES)
def test_the_page_lists_what_a_module_exports(module: str) -> None:
    exported = set(importlib.import_module(module).__all__)
    assert listed(module) - {"TailraceError", "Reaction"} == exported - {"TailraceError", "Reaction"}
    assert {"TailraceError", "Reaction"} & exported <= set(NAME.findall(SECTIONS[module]))


@pytest.mark.parametrize("module", MODULES)
def test_every_exported_name_is_there_and_says_what_it_is(module: str) -> None:
    found = importlib.import_module(module)
    for name in set(found.__all__) - {"__version__"}:
        assert inspect.getdoc(getattr(found, name)), name


def test_the_methods_that_are_public_are_there() -> None:
    named = PAGE.partition("Of `Store` these are public: ")[2].partition(". ")[0]
    methods = NAME.findall(named)
    assert len(methods) > 20
    for name in methods:
        assert callable(getattr(Store, name)), name


def test_importing_tailrace_loads_nothing_else() -> None:
    program = (
        "import sys; before = set(sys.modules); import tailrace; print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    heavy = {"pyarrow", "numba", "pyspark", "sqlalchemy", "pydantic", "psycopg", "tailrace.eventstore"}
    assert "tailrace" in done.stdout.split() and not heavy & set(done.stdout.split())


def test_domain_events_import_nothing_large_beside_the_driver_and_pydantic() -> None:
    program = (
        "import sys, psycopg, pydantic; pydantic.TypeAdapter(pydantic.create_model('M', x=int))\n"
        "before = set(sys.modules)\n"
        "from tailrace import Stream, append, event, load; print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    ours = [name for name in loaded if name.partition(".")[0] == "tailrace"]
    assert "tailrace.eventstore.streams.writing.append" in ours and len(ours) < 60
    assert loaded == ours


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_readers_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_live(tmp_path)
    monkeypatch.chdir(tmp_path)
    by_name, of_log, *_ = examples()
    exec(by_name, {})
    assert capsys.readouterr().out.strip() == repr(LIVE_ROW)
    exec(of_log, {})
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "table" and "[{'id': 5, 'note': '10.0'}]" in shown
    assert [line[0] for line in shown if "{'id'" in line and line[0] != "["] == ["c", "u"]


def test_the_events_of_the_page_run(database: str) -> None:
    install(database)
    names: dict[str, Any] = {}
    exec(compile(examples()[2], "api.md", "exec", dont_inherit=True), names)
    with psycopg.connect(database) as connection:
        for amount in ("10.50", "0.25"):
            names["deposit"](connection, "42", Decimal(amount))
        assert names["balance"](connection, "42") == Decimal("10.75")
