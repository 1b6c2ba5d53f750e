"""Requests are rows that any writer of the catalog may add: capture believes none that ``ask`` would not write."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from tailrace.cdc.stream.requests import SNAPSHOT, rates
from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import IntegrityError
from tests.eventstore.shop import ORDERS, register
from tests.fixtures.stores import StoreFactory, one_catalog

FORGED = {
    "no JSON": {"options": "["},
    "no text": {"options": ""},
    "no mapping": {"options": "[1]"},
    "deep": {"options": "[" * 100_000},
    "a rate that is no number": {"options": '{"rows_per_second": "9"}'},
    "a rate below zero": {"options": '{"rows_per_second": -1}'},
    "a rate without end": {"options": '{"rows_per_second": Infinity}'},
    "no topic": {"topic": 'shop."'},
    "a time that no clock shows": {"asked_at": 2**62},
}


@one_catalog
@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_request_that_somebody_else_wrote_is_refused_with_its_number(
    new_store: StoreFactory, forged: dict[str, object]
) -> None:
    store = new_store()
    register(store)
    (request,) = store.requests.ask(SNAPSHOT, [ORDERS], rows_per_second=7)
    assert rates(store, "shop") == {ORDERS: 7}
    with store.catalog.write() as connection:
        connection.execute(update(tables.requests).values(**forged))
    with pytest.raises(IntegrityError) as refused:
        rates(store, "shop")
    if "asked_at" not in forged:
        assert f"request {request.id}" in refused.value.message and "DELETE" in refused.value.hint
    with pytest.raises(IntegrityError):
        store.requests.get([request.id])
