"""Sealed segments are plain Parquet: the code of docs/operations/files.md, run as it stands there on a real log."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace import Store, load_settings
from tailrace.eventstore.state.state import state
from tests.eventstore.shop import ORDERS, batch, content, register, writer
from tests.support import REPOSITORY

BLOCKS = re.findall(
    r"```python\n(.*?)```", (REPOSITORY / "docs" / "operations" / "files.md").read_text(), re.DOTALL
)


def key(number: int) -> int:
    """Rows of the tests' shop with other keys have a cell that only ``_raw`` holds."""
    return 7 * number + 1


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> dict[str, Any]:
    """The names that the page's code leaves."""
    (tmp_path / "tailrace.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    with Store.open(load_settings().store, create=True) as store:
        register(store)
        capture = writer(store)
        capture.append(batch(10, orders=[("r", key(number)) for number in range(50)], completes=[ORDERS]))
        for lsn in range(20, 120, 10):
            capture.append(
                batch(lsn, orders=[("u", key(lsn % 50)), ("d", key(lsn // 10)), ("c", key(1000 + lsn))])
            )
            if lsn % 40 == 0:
                store.seal()
        store.seal()
    names: dict[str, Any] = {"spark": spark}
    for block in BLOCKS:
        exec(block, names)
    return names


def test_other_tools_read_the_files_as_the_page_says(page: dict[str, Any]) -> None:
    with Store.open(load_settings().store) as store:
        held = {
            (row["id"], row["note"])
            for part in state(store, ORDERS, store.cut())
            for row in part.select(["id", "note"]).to_pylist()
        }
        rows = content(store)
    assert len(page["files"]) > 1
    assert {tuple(row) for row in page["latest"].fetchall()} == held
    assert Counter(page["changes"]["_op"]) == Counter(row["_op"] for row in rows)
    assert page["per_day"].sum() == len(rows)
    assert {row["id"] for row in page["deleted"].collect()} == {
        row["key"]["id"] for row in rows if row["_op"] == "d"
    }
