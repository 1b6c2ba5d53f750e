"""What most tests of capture begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.capturing import Site


@pytest.fixture
def site(database: str, store_dir: Path) -> Site:
    """An empty source and an empty store."""
    return Site.at(store_dir, database)
