"""A topic whose table is gone can be given up: nobody waits for it, its history stays, and the log holds together."""

from __future__ import annotations

import pytest

from tailrace.eventstore.errors import IncompleteTopic, TopicGone, UsageError
from tailrace.eventstore.maintenance.retire import retire
from tailrace.eventstore.model.info import DROPPED, LEFT
from tests.eventstore.shop import CUSTOMERS, ORDERS, batch, content, writer
from tests.fixtures.stores import StoreFactory


def test_a_retired_topic_keeps_its_history_and_what_reads_its_state_is_not_told_to_wait(
    new_store: StoreFactory,
) -> None:
    store = new_store()
    capture = writer(store)
    capture.append(batch(1, [("c", 1)], [("c", 1)], completes=[ORDERS, CUSTOMERS]))
    with pytest.raises(UsageError, match="orders cannot be retired: it is captured"):
        retire(store, ORDERS)
    capture.append(batch(2, [], [("u", 1)], suspends=[(ORDERS, "read again: requested")]))
    with pytest.raises(UsageError, match="it is incomplete: read again"):
        retire(store, ORDERS)
    with pytest.raises(IncompleteTopic):
        store.state(ORDERS)
    capture.append(batch(3, [], [("u", 1)], suspends=[(ORDERS, DROPPED)]))
    with pytest.raises(TopicGone, match="its table was dropped") as gone:
        store.state(ORDERS)
    assert gone.value.exit_code == 7 and "take it out of what reads it" in gone.value.hint
    assert retire(store, ORDERS) == 4
    assert retire(store, ORDERS) == 0, "it is retired already"
    assert store.topic(ORDERS).is_retired
    with pytest.raises(TopicGone, match="retired"):
        store.state(ORDERS)
    assert sum(rows.num_rows for rows in store.state(ORDERS, 1)) == 1
    assert len(content(store)) == 1
    capture.append(batch(5, [], [("u", 1)]))  # the writer goes on
    capture.append(batch(6, [("r", 2)], completes=[ORDERS]))
    assert not store.topic(ORDERS).is_retired, "a table of its name is captured again"
    assert sum(rows.num_rows for rows in store.state(ORDERS)) == 2
    capture.append(batch(7, suspends=[(CUSTOMERS, LEFT)]))
    assert retire(store, CUSTOMERS)
    assert not store.verify().findings
