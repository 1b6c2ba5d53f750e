"""Files of the log say their format: those of every format there was are read, one of a later is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.maintenance.files import fold, tiers
from tailrace.eventstore.metadata import epochs as timeline
from tailrace.eventstore.model.segment_ref import PartitionRange, SegmentRef
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment import encoding
from tailrace.eventstore.settings import StoreSettings, UpkeepSettings
from tailrace.eventstore.storage import LocalStorage
from tailrace.eventstore.store import Store
from tests.eventstore.golden.make import GOLDEN, as_json, rows_of
from tests.eventstore.shop import CUSTOMERS, ORDERS, batch, content, writer

FORMATS = sorted(GOLDEN.glob("format-*"))
SETTINGS = StoreSettings(inline_bytes=0, upkeep=UpkeepSettings(keep_seconds=0, state_bytes=1))


def reference(values: dict[str, Any]) -> SegmentRef:
    ranges = tuple(PartitionRange(**each) for each in values["ranges"])
    return SegmentRef(**{**values, "topic": TopicId.parse(values["topic"]), "ranges": ranges})


@pytest.mark.parametrize("folder", FORMATS, ids=lambda folder: folder.name)
def test_files_of_every_format_there_was_are_read(folder: Path) -> None:
    kept = json.loads((folder / "content.json").read_text("utf-8"))
    epochs = kept.pop("epochs")
    assert set(kept) == {"captured", "merged", "state-run"}
    for name, each in kept.items():
        assert rows_of(folder, reference(each["ref"])) == each["rows"], name
    row: Any = SimpleNamespace(path="epochs.parquet", checksum=epochs["checksum"])
    found = timeline.rows_of(timeline.open_file(LocalStorage(folder), row).read())
    assert as_json([vars_of(epoch) for epoch in found]) == epochs["rows"]


def vars_of(epoch: timeline.Epoch) -> dict[str, Any]:
    return {name: getattr(epoch, name) for name in epoch.__dataclass_fields__}


def test_every_file_says_its_format_and_there_are_golden_ones_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "FAN_IN", 2)
    monkeypatch.setattr(fold, "CHUNK", 2)
    assert FORMATS[-1].name == f"format-{encoding.FORMAT}"
    with Store.open(SETTINGS, create=True, root=tmp_path) as store:
        capture = writer(store)
        for lsn in range(1, 9):
            capture.append(
                batch(lsn, [("u", 1), ("u", 2)], completes=[ORDERS, CUSTOMERS] if lsn == 1 else [])
            )
            if lsn == 4:
                store.maintain()
        list(fold.fold(store, 1))
    paths = list(tmp_path.rglob("*.parquet"))
    assert {path.name.split("-")[0] for path in paths} >= {"merge", "state", "fold"}
    for path in paths:
        assert pq.read_metadata(path).metadata[b"tailrace:format"] == b"%d" % encoding.FORMAT, path


def test_a_file_of_a_later_format_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "CHUNK", 2)
    known = encoding.FORMAT
    monkeypatch.setattr(encoding, "FORMAT", known + 1)
    with Store.open(SETTINGS, create=True, root=tmp_path) as store:
        capture = writer(store)
        for lsn in range(1, 5):
            capture.append(batch(lsn, [("u", 1)]))
        list(fold.fold(store, 1))
        assert len(content(store)) == 4
        monkeypatch.setattr(encoding, "FORMAT", known)
        for look in (lambda: content(store), lambda: store.epochs()):
            with pytest.raises(
                OperatorError, match=rf"\.parquet has format {known + 1}; .* up to {known}"
            ) as caught:
                look()
            assert "install the version that wrote it" in caught.value.hint
