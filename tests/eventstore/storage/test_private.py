"""Files and folders of data are for the user who runs Tailrace, whatever the umask."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.cdc.recording.file import RecordingHeader, RecordingWriter
from tailrace.doctor.doctor import check_folder
from tailrace.eventstore.maintenance.move.backup import backup
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tests.projections.sinks.parquet import test_sink as test_parquet_sink
from tests.projections.sinks.search import test_sink as test_search_sink
from tests.projections.sinks.sink_data import ANNA, fill, target


@pytest.fixture(params=[0, 0o077], ids=["an open umask", "a closed umask"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def fill_everything(folder: Path) -> None:
    """A store with a file and a backup, a group, a recording, and both sinks of files."""
    settings = StoreSettings(catalog="sqlite:///.tailrace/catalog.db", segments=".tailrace/segments")
    with Store.open(settings, create=True, root=folder) as store:
        store.storage.write("log/shop/1/t1-0.parquet", b"rows")
        store.groups_database  # noqa: B018 made by looking
        backup(store, folder / "backup")
        beside = modes_of(folder / ".tailrace")
        assert {beside["catalog.db-wal"], beside["catalog.db-shm"]} == {beside["catalog.db"]}
    RecordingWriter(folder / "recording", RecordingHeader("shop", "1", "shop")).close()
    for sink in (test_parquet_sink.sink_at(folder / "lake"), test_search_sink.sink_at(folder / "indexes")):
        fill(sink, target(), [ANNA])
        sink.promote(target(), None)


def modes_of(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_mode & 0o777
        for path in folder.rglob("*")
        if not path.is_symlink()
    }


@pytest.mark.parametrize(("parent", "folders", "files"), [(0o755, 0o700, 0o600), (0o750, 0o750, 0o640)])
def test_nobody_else_may_read_what_is_written_whatever_the_umask(
    umask: None, tmp_path: Path, parent: int, folders: int, files: int
) -> None:
    """A folder that was opened to its group alone passes that on; one that all may read opens nothing."""
    top = tmp_path / "top"
    top.mkdir()
    top.chmod(parent)
    fill_everything(top)
    found = modes_of(top)
    wrong = {
        name: oct(mode)
        for name, mode in found.items()
        if mode != (folders if (top / name).is_dir() else files)
    }
    assert not wrong
    made = ("catalog.db", "backup/catalog.db", "log-id", ".lock", "_manifest.json", "meta.json", "recording")
    for part in made:
        assert any(name.endswith(part) for name in found), part


def test_a_folder_that_an_earlier_version_left_open_is_told_with_what_closes_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    found = check_folder("segments folder", tmp_path)
    assert (found.verdict, found.remedy) == ("warn", f"chmod -R o= {tmp_path}")
    tmp_path.chmod(0o750)
    assert check_folder("segments folder", tmp_path).verdict == "ok"
