"""Two catalogs over one place of segments: only one of them removes files there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.maintenance.move.backup import backup
from tailrace.eventstore.settings import StoreSettings, UpkeepSettings
from tailrace.eventstore.storage.open import CATALOG_MARKER
from tailrace.eventstore.store import Store
from tests.eventstore.shop import batch, content, writer
from tests.fixtures.stores import StoreFactory, one_catalog
from tests.support.folders import segments_folder

AT_ONCE = UpkeepSettings(keep_seconds=0, keep_epochs=4)


def files_of(store: Store) -> set[str]:
    return set(store.storage.list("log")) | set(store.storage.list("epochs"))


@one_catalog
def test_a_copied_catalog_removes_no_file_of_the_originals(new_store: StoreFactory, tmp_path: Path) -> None:
    store = new_store(inline_bytes=0, upkeep=AT_ONCE)
    capture = writer(store)
    capture.append(batch(1, orders=[("c", 1)]))
    store.maintain()
    backup(store, tmp_path)
    settings = StoreSettings(
        catalog=f"sqlite:///{tmp_path}/catalog.db", segments=segments_folder(store), upkeep=AT_ONCE,
        inline_bytes=0,
    )  # fmt: skip
    with Store.open(settings) as copy:
        capture.append(batch(2, orders=[("c", 2)]))
        copy.take_over("shop").append(batch(3, orders=[("c", 3)]))
        before = files_of(store)
        for remove in (copy.collect_orphans, copy.maintain):
            with pytest.raises(OperatorError, match="another catalog") as refused:
                remove()
            assert str(store.storage.place(CATALOG_MARKER)) in refused.value.hint
        assert before <= files_of(store)
        assert len(content(store)) == 2 and store.verify().findings == ()
    store.maintain()
    assert len(content(store)) == 2

    store.storage.delete(CATALOG_MARKER)  # the user's word
    with Store.open(settings) as copy:
        copy.maintain()
    with pytest.raises(OperatorError, match="another catalog"):
        store.maintain()


@one_catalog
def test_a_store_that_is_copied_or_restored_whole_is_its_own_from_the_first_round_on(
    new_store: StoreFactory, tmp_path: Path
) -> None:
    store = new_store(inline_bytes=0, upkeep=AT_ONCE)
    capture = writer(store)
    capture.append(batch(1, orders=[("c", 1)]))
    store.maintain()
    backup(store, tmp_path / "backup")
    shutil.copytree(tmp_path / "backup", tmp_path / "whole")
    shutil.copytree(segments_folder(store), tmp_path / "whole" / "segments", dirs_exist_ok=True)
    for folder in ("backup", "whole"):
        settings = StoreSettings(catalog="sqlite:///catalog.db", segments=Path("segments"), upkeep=AT_ONCE)
        with Store.open(settings, root=tmp_path / folder) as copy:
            assert copy.storage.exists(CATALOG_MARKER) == (folder == "whole")
            copy.maintain()
            copy.maintain()
            assert copy.verify().findings == ()
    store.maintain()
