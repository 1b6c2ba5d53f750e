"""Rows between two epochs are counted from the catalog: exactly where files end there, else between two bounds."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from tailrace.eventstore.log.row_counts import RowCount, count_rows
from tailrace.eventstore.model.topic import TopicId
from tests.eventstore.maintenance.files.test_seal import fill
from tests.eventstore.shop import CUSTOMERS, ORDERS, content
from tests.fixtures.stores import StoreFactory

UNKNOWN = TopicId.table("shop", "public", "unknown")


def test_rows_between_any_two_epochs_are_counted_before_and_after_they_are_sealed(
    new_store: StoreFactory,
) -> None:
    store = new_store(inline_bytes=3500)
    fill(store, epochs=20)
    true = {topic: Counter(row["_epoch"] for row in content(store, topic)) for topic in (ORDERS, CUSTOMERS)}
    spans = [
        (topic, after, up_to, sum(rows for epoch, rows in counts.items() if after < epoch <= up_to))
        for topic, counts in true.items()
        for after, up_to in combinations((0, 2, 5, 9, 12, 13, 20), 2)
    ]
    for topic, after, up_to, rows in spans:
        assert count_rows(store.catalog, topic, after, up_to) == RowCount(rows, rows)
    store.seal(12)
    bounds = []
    for topic, after, up_to, rows in spans:
        counted = count_rows(store.catalog, topic, after, up_to)
        assert counted is not None and counted.at_least <= rows <= counted.at_most
        assert counted.exact or after < 12
        bounds.append(counted.exact)
    assert not all(bounds)
    assert count_rows(store.catalog, ORDERS, 0, 20) == RowCount(true[ORDERS].total(), true[ORDERS].total())
    assert count_rows(store.catalog, UNKNOWN, 0, 20) is None
