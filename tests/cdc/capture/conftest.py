"""What most tests of this folder begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import workload
from tests.support.capturing import Site


@pytest.fixture
def site(database: str, store_dir: Path) -> Site:
    """A source with the tables of the random workload, and an empty store."""
    workload.create_tables(database)
    return Site.at(store_dir, database, tables=workload.PATTERNS)
