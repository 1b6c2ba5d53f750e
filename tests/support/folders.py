"""Folders that tests look into: the repository, and the files of a store."""

from __future__ import annotations

from pathlib import Path

from tailrace.eventstore.storage import LocalStorage
from tailrace.eventstore.store import Store

REPOSITORY = Path(__file__).parents[2]


def segments_folder(store: Store) -> Path:
    assert isinstance(store.storage, LocalStorage)
    return store.storage.root
