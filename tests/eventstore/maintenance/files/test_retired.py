"""Upkeep removes files that others replaced, and none that is in use, whatever the catalog says."""

from __future__ import annotations

import pytest
from sqlalchemy import insert, select

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.maintenance.files import retired, seal, tiers
from tailrace.eventstore.settings import UpkeepSettings
from tailrace.eventstore.storage.open import MARKER
from tailrace.eventstore.store import Store
from tests.eventstore.maintenance.files.test_seal import everything, fill
from tests.eventstore.shop import ORDERS
from tests.fixtures.stores import StoreFactory, one_catalog


@pytest.fixture
def store(new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Sealed files, some of them replaced by a merged one."""
    monkeypatch.setattr(seal, "CHUNK_EPOCHS", 2)
    monkeypatch.setattr(tiers, "FAN_IN", 3)
    opened = new_store(inline_bytes=3500, upkeep=UpkeepSettings(keep_seconds=0))
    fill(opened, 12)
    opened.seal()
    opened.merge()
    return opened


def retire(store: Store, path: str) -> None:
    """As somebody would who writes to the catalog and has the file removed in Tailrace's name."""
    with store.catalog.write() as connection:
        row = {"number": 10_000, "path": path, "bytes": 1, "retired_at": 1}
        connection.execute(insert(tables.retired), row)


@one_catalog
def test_a_file_that_is_in_use_is_not_removed_because_a_row_says_that_it_was_replaced(store: Store) -> None:
    before = everything(store)
    with store.catalog.read() as connection:
        live = str(connection.scalar(select(tables.segments.c.path).limit(1)))
    replaced = retired.retired_files(store, ORDERS)
    assert replaced and store.verify().findings == ()
    retire(store, live)
    (found,) = store.verify(quick=True).findings
    assert found.place == f"retired: path {live}"
    for remove in (store.maintain, lambda: retired.remove(store, retired.retired_files(store, ORDERS))):
        with pytest.raises(
            IntegrityError, match=f"retired: number 10000: {live} is in use: segments names it"
        ):
            remove()
    assert all(store.storage.exists(row.path) for row in replaced)
    assert everything(store) == before


@one_catalog
def test_what_is_no_file_of_the_log_is_not_removed(store: Store) -> None:
    retire(store, MARKER)
    (found,) = store.verify(quick=True).findings
    assert found.place == f"retired: path {MARKER}"
    with pytest.raises(IntegrityError, match="is no name that the log gives"):
        store.maintain()
    assert store.storage.exists(MARKER)
