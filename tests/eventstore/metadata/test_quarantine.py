"""A topic in quarantine: what is kept for it moves with its source, in order, and goes once it is complete."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.eventstore.errors import IncompleteTopic, IntegrityError
from tailrace.eventstore.metadata import quarantine
from tailrace.eventstore.model.epoch import QuarantinedTopic
from tailrace.eventstore.store import Store
from tests.eventstore.shop import CUSTOMERS, ORDERS, batch, notes, writer
from tests.fixtures.stores import StoreFactory, one_catalog

ENTRY = QuarantinedTopic(ORDERS, "no such type", 20, b"frame")


def first(store: Store) -> tuple[int, int, bytes] | None:
    """Number, frames and bytes of the first that is kept."""
    found = quarantine.first_frames(store.catalog, store.storage, ORDERS)
    return None if found is None else (found[0].number, found[0].frames, found[1])


@one_catalog
def test_frames_are_kept_in_order_until_they_are_decoded_or_the_topic_is_complete(
    new_store: StoreFactory,
) -> None:
    store = new_store(inline_bytes=10)
    capture = writer(store)
    capture.append(batch(10, orders=[("c", 1)], completes=[ORDERS]))
    in_catalog = capture.store_undecoded(ORDERS, b"0123456789", 2)
    in_files = [
        capture.store_undecoded(ORDERS, b"0123456789+", 3),
        capture.store_undecoded(ORDERS, b"+", 1, as_file=True),
    ]
    assert in_catalog.data == b"0123456789" and in_catalog.path is None
    assert [(each.bytes, each.data) for each in in_files] == [(11, None), (1, None)]
    kept = [in_catalog, *in_files]
    begun = capture.append(batch(20, customers=[("c", 9)], quarantined=[ENTRY], undecoded=kept))
    assert begun is not None and begun.epoch == 2
    assert quarantine.quarantined_topics(store.catalog) == [replace(ENTRY, frames=6, bytes=22)]
    with pytest.raises(IncompleteTopic, match="in quarantine since 0/14: no such type"):
        store.require_complete(ORDERS, store.cut())
    assert first(store) == (1, 2, b"0123456789")
    capture.append(batch(30, orders=[("c", 2)], released=[(ORDERS, 1)]))
    assert first(store) == (2, 3, b"0123456789+")
    capture.append(batch(40, released=[(ORDERS, 2)]))
    assert first(store) == (3, 1, b"+")
    capture.append(batch(50, completes=[ORDERS]))
    assert first(store) is None and quarantine.quarantined_topics(store.catalog) == []
    assert notes(store) == ["10.0", "30.0"] and notes(store, CUSTOMERS) == ["20.0"]


@one_catalog
def test_an_epoch_may_bring_frames_alone_and_quarantine_begun_again_drops_them(
    new_store: StoreFactory,
) -> None:
    store = new_store()
    capture = writer(store)
    capture.append(batch(10, quarantined=[ENTRY]))
    for lsn in (20, 30):
        info = capture.append(batch(lsn, undecoded=[capture.store_undecoded(ORDERS, b"ab", 1)]))
        assert info is not None and (info.commit_lsn, info.rows) == (lsn, 0)
    assert first(store) == (1, 2, b"abab")
    capture.append(batch(40, quarantined=[replace(ENTRY, keeps=False)]))
    assert first(store) is None
    assert quarantine.quarantined_topics(store.catalog, "shop") == [replace(ENTRY, keeps=False)]
    assert quarantine.quarantined_topics(store.catalog, "other") == []


@one_catalog
def test_damaged_frames_are_noticed(new_store: StoreFactory) -> None:
    store = new_store()
    capture = writer(store)
    kept = capture.store_undecoded(ORDERS, b"ab", 1, as_file=True)
    capture.append(
        batch(10, quarantined=[ENTRY], undecoded=[replace(kept, checksum="0" * len(kept.checksum))])
    )
    with pytest.raises(IntegrityError, match="damaged"):
        first(store)
