"""Rows that become files of their own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.eventstore.segment import segment
from tailrace.eventstore.segment.select import select_rows
from tailrace.eventstore.storage import LocalStorage
from tests.eventstore.golden.make import rows_of
from tests.eventstore.segment.test_file_format import FORMATS, reference


def test_partitions_that_are_large_enough_for_a_group_of_their_own_keep_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "ROWS_PER_OWN_GROUP", 1)
    folder = tmp_path / "log"
    shutil.copytree(FORMATS[-1], folder)
    kept = json.loads((folder / "content.json").read_text("utf-8"))["captured"]
    captured = reference(kept["ref"])
    assert len(captured.ranges) > 1
    (part,) = select_rows(
        LocalStorage(folder),
        [captured],
        lambda table: pa.array([True] * table.num_rows),
        lambda: "all.parquet",
        1 << 24,
    )
    assert rows_of(folder, part.ref(captured.topic)) == kept["rows"]
