"""The folder of a store's files, for tests that look at or damage them."""

from __future__ import annotations

from pathlib import Path

from tailrace.eventstore.storage import LocalStorage
from tailrace.eventstore.store import Store


def segments_folder(store: Store) -> Path:
    assert isinstance(store.storage, LocalStorage)
    return store.storage.root
