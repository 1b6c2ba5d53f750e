"""Projections in the catalog: every step is a compare-and-set, so of two processes one commits and one is refused."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest

from tailrace.eventstore.errors import Fenced, UsageError
from tailrace.eventstore.metadata.generations import DerivedCatalog, GenerationState, NewGeneration
from tailrace.eventstore.metadata.projection_steps import NewStep
from tests.fixtures.stores import StoreFactory

FILES = [{"path": "derived/totals/1/a.parquet", "rows": 3}]


def generation(catalog: DerivedCatalog, projection: str = "totals") -> int:
    return catalog.create_generation(
        NewGeneration(
            projection, fingerprint="f", sink="mart", key=["id"], schema=b"ipc", partitions=4, split=2
        )
    )


def test_generations_are_numbered_and_remembered(new_store: StoreFactory) -> None:
    catalog = new_store().derived
    assert [generation(catalog), generation(catalog), generation(catalog, "other")] == [1, 2, 1]
    catalog.set_state("totals", 1, "ready")
    catalog.set_frozen("totals", 2, 17)
    first, second = catalog.generations("totals")
    assert (first.state, first.key, first.schema, first.partitions, first.split) == (
        GenerationState.READY,
        ("id",),
        b"ipc",
        4,
        2,
    )
    assert (second.state, second.frozen_at, second.as_of) == (GenerationState.BUILDING, 17, None)
    assert first.created_at.tzinfo is UTC
    assert catalog.projections() == ["other", "totals"]
    with pytest.raises(UsageError, match="no generation 9"):
        catalog.set_state("totals", 9, GenerationState.LIVE)
    with pytest.raises(ValueError, match="sleeping"):
        catalog.set_state("totals", 1, "sleeping")


def test_generations_made_at_once_have_different_numbers(new_store: StoreFactory) -> None:
    stores = [new_store() for _ in range(4)]
    made: list[int] = []
    threads = [
        threading.Thread(target=lambda store=store: made.append(generation(store.derived)))
        for store in stores
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [1, 2, 3, 4]


def test_derived_steps_form_one_chain(new_store: StoreFactory) -> None:
    store = new_store()
    generation(store.derived)
    steps = store.steps
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    full = steps.commit(NewStep("totals", 1, 0, 10, "full", FILES, 3, moment))
    delta = steps.commit(NewStep("totals", 1, 10, 12, "delta", [], 0))
    assert steps.list("totals", 1) == [full, delta]
    assert (full.files[0]["rows"], full.commit_ts, full.rows) == (3, moment, 3)
    assert full.hash != delta.hash
    # The same step again, by a process that did not hear of its success: the stored one.
    assert steps.commit(NewStep("totals", 1, 0, 10, "full", FILES, 3, moment)) == full
    for wrong in ((0, 11), (5, 13), (10, 13), (13, 14)):
        with pytest.raises(Fenced):
            steps.commit(NewStep("totals", 1, *wrong, "delta", FILES, 3))
    with pytest.raises(Fenced):  # same step, other content
        steps.commit(NewStep("totals", 1, 0, 10, "full", [], 0))
    with pytest.raises(UsageError):
        steps.commit(NewStep("totals", 1, 12, 12, "delta", [], 0))
    assert steps.list("totals", 1) == [full, delta]


def test_of_steps_committed_at_once_one_stands(new_store: StoreFactory) -> None:
    stores = [new_store() for _ in range(4)]
    generation(stores[0].derived)
    outcome: list[str] = []

    def run(number: int) -> None:
        files = [{"path": f"{number}"}]
        try:
            stores[number].steps.commit(NewStep("totals", 1, 0, 10 + number, "full", files, 1))
            outcome.append("committed")
        except Fenced:
            outcome.append("fenced")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcome) == ["committed", "fenced", "fenced", "fenced"]
    assert len(stores[0].steps.list("totals", 1)) == 1


def test_promotion_is_compare_and_set(new_store: StoreFactory) -> None:
    catalog = new_store().derived
    for _ in range(3):
        generation(catalog)
    assert catalog.live("totals") is None
    catalog.promote("totals", 1, None)
    catalog.promote("totals", 1, None)  # again: nothing to do
    with pytest.raises(Fenced):
        catalog.promote("totals", 2, None)
    with pytest.raises(Fenced):
        catalog.promote("totals", 3, 2)
    catalog.promote("totals", 2, 1)
    assert (catalog.live("totals"), catalog.previous("totals")) == (2, 1)
    states = [found.state.value for found in catalog.generations("totals")]
    assert states == ["retired", "live", "building"]
    catalog.promote("totals", 1, 2)  # rollback
    assert [found.state.value for found in catalog.generations("totals")] == ["live", "retired", "building"]
    with pytest.raises(Fenced, match="is live"):
        catalog.drop_generation("totals", 1)
    catalog.drop_generation("totals", 2)
    assert [found.generation for found in catalog.generations("totals")] == [1, 3]
    with pytest.raises(Fenced, match="generation 2 was dropped meanwhile"):
        catalog.promote("totals", 2, 1)
    assert catalog.live("totals") == 1
    assert [found.state.value for found in catalog.generations("totals")] == ["live", "building"]
