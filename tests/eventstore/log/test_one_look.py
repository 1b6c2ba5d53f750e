"""Inside one look the catalog is asked once; outside, and after a few seconds, each time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection

from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.log import one_look
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tests.projections.shoplog import ShopLog, topic

ORDERS = topic("orders").text


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[ShopLog]:
    settings = StoreSettings(
        name="acme", catalog=f"sqlite:///{tmp_path}/catalog.db", segments=tmp_path / "segments"
    )
    with Store.open(settings, create=True) as store:
        shop = ShopLog.start(store)
        shop.fill()
        yield shop


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each time that the catalog was asked."""
    found: list[int] = []
    read = Catalog.read

    @contextmanager
    def counted(self: Catalog) -> Iterator[Connection]:
        found.append(1)
        with read(self) as connection:
            yield connection

    monkeypatch.setattr(Catalog, "read", counted)
    return found


def test_answers_are_remembered_inside_and_not_outside(shop: ShopLog, reads: list[int]) -> None:
    store = shop.store
    cut = store.cut()
    with store.look.taken():
        first = (
            store.schemas(ORDERS),
            store.schemas_at(topic("orders"), cut),
            store.state_segments(ORDERS, cut),
        )
        asked = len(reads)
        with store.look.taken():
            assert first == (
                store.schemas(topic("orders")),
                store.schemas_at(ORDERS, cut),
                store.state_segments(ORDERS, cut),
            )
        assert len(reads) == asked
        store.schemas(topic("customers"))
        assert len(reads) > asked, "another topic is another question"
    before = len(reads)
    store.schemas(ORDERS)
    assert len(reads) > before


def test_answers_of_the_look_before_are_believed_at_the_same_position_alone(
    shop: ShopLog, reads: list[int]
) -> None:
    store, cut = shop.store, shop.store.cut()

    def asked(at: Cut | None) -> int:
        before = len(reads)
        with store.look.taken(at):
            store.schemas(ORDERS)
        return len(reads) - before

    assert asked(cut) > 0 and asked(replace(cut)) == 0
    assert asked(Cut(cut.epoch + 1)) > 0
    assert asked(None) > 0 and asked(None) > 0


def test_another_thread_looks_itself(shop: ShopLog, reads: list[int]) -> None:
    with shop.store.look.taken():
        shop.store.schemas(ORDERS)
        before = len(reads)
        thread = threading.Thread(target=lambda: shop.store.schemas(ORDERS))
        thread.start()
        thread.join()
        assert len(reads) > before


def test_after_a_few_seconds_the_catalog_is_asked_again(
    shop: ShopLog, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop.store.look.taken():
        shop.store.schemas(ORDERS)
        before = len(reads)
        monkeypatch.setattr(one_look, "BELIEVED_SECONDS", -1.0)
        shop.store.schemas(ORDERS)
        assert len(reads) > before


def test_an_error_is_no_answer(shop: ShopLog) -> None:
    with shop.store.look.taken():
        for _ in range(2):
            with pytest.raises(UsageError, match="nothing"):
                shop.store.schemas("shop.public.nothing")
