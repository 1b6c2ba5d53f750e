"""A service waits until the log has what it wrote."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tailrace.eventstore.errors import NotYet, UsageError
from tests.eventstore.shop import batch, writer
from tests.fixtures.stores import StoreFactory, one_catalog


@one_catalog
def test_waiting_for_a_position_ends_when_the_log_has_it_or_the_time_is_over(new_store: StoreFactory) -> None:
    store = new_store()
    capture = writer(store)
    capture.append(batch(1, orders=[("c", 1)]))
    assert store.wait_for(1, timeout=0) == 1
    with pytest.raises(NotYet, match=r"the log does not hold 2 after 0\.05 s"):
        store.wait_for(2, timeout=0.05)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.wait_for, 2, timeout=60)
        capture.append(batch(2, orders=[("c", 2)]))
        assert waiting.result(60) == 2
    with pytest.raises(UsageError, match="neither an epoch nor an LSN"):
        store.wait_for("yesterday")
