"""A store with a row in every table that decides what a reader sees: whatever happens to a log has happened to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.maintenance.redaction.redact import RedactionRequest, redact
from tailrace.eventstore.maintenance.repartition import repartition
from tailrace.eventstore.metadata.generations import InputNeed, NewGeneration
from tailrace.eventstore.metadata.projection_steps import NewStep
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.kafka import ParkedRecord, PartitionProgress, RecordPlace, SnapshotPhase
from tailrace.eventstore.settings import StoreSettings, TopicSettings, UpkeepSettings
from tailrace.eventstore.store import Store
from tests.eventstore.shop import CUSTOMERS, ORDERS, WIDER, at, batch, rows, writer

LAST = 16
SETTINGS = StoreSettings(
    inline_bytes=3500,
    upkeep=UpkeepSettings(keep_epochs=4),
    topics={CUSTOMERS.text: TopicSettings.model_validate({"retention": "7s", "archive": "cold"})},
)
"""With chunks of two epochs (``seal``, ``fold``), and three files that are merged (``tiers``)."""


def fill_every_table(store: Store) -> None:
    """An epoch a second up to ``LAST``, where retention's clock stands; control epochs; then some that stay small."""
    capture = writer(store)
    for lsn in range(1, LAST + 1):
        _append(capture, lsn)
    capture.append(batch(LAST + 1, suspends=[(ORDERS, "repair")]))
    capture.append(batch(LAST + 2, completes=[ORDERS]))
    store.maintain()
    store.compact([ORDERS])
    redact(store, RedactionRequest(ORDERS, ["1"]))
    repartition(store, ORDERS, 2)
    for lsn in range(LAST + 3, LAST + 7):
        _append(capture, lsn)
    for label in (None, "look"):
        number = store.derived.create_generation(
            NewGeneration(
                "totals",
                "f",
                '{"kind": "own"}',
                ("id",),
                b"ipc",
                4,
                0,
                as_of=label,
                preview=label,
                inputs=[InputNeed(ORDERS.text, "state", 0)],
            )
        )
        for first, last in ((0, 5), (5, 9)):
            store.steps.commit(NewStep("totals", number, first, last, "full", [{"n": last}], 3, at(last)))
    store.derived.promote("totals", 1, None)


def _append(capture: SourceWriter, lsn: int) -> None:
    """Small and large epochs, a new version, a truncate, epochs without rows of a topic."""
    orders = [("u", key) for key in range(60 if lsn % 5 == 0 else lsn % 4)]
    customers = [("t", 0)] if lsn == 7 else [("u", lsn % 3)]
    more: dict[str, Any] = {"completes": [ORDERS, CUSTOMERS]} if lsn == 1 else {}
    given = batch(lsn, orders, customers, **more)
    if lsn >= 9:
        wide = [TopicRows(ORDERS, 2, rows(lsn, orders, schema=WIDER))] if orders else []
        kept = [one for one in given.rows if one.topic != ORDERS]
        new = [(ORDERS, WIDER)] if lsn == 9 else []
        given = EpochBatch("shop", lsn, lsn + 1, lsn + 1, given.commit_ts, 1, [*kept, *wide], new_schemas=new)
    capture.append(replace(given, **_read_of_kafka(lsn)))


def _read_of_kafka(lsn: int) -> dict[str, Any]:
    """Partitions that go on, a record parked with the third epoch and one more that comes back with the sixth."""
    read = PartitionProgress("p.public.t", lsn % 2, "abc", lsn, lsn, lsn, SnapshotPhase.ENDED)
    parked = [
        ParkedRecord(RecordPlace("p.public.t", 0, offset), "bad", 5, b"k", None if offset else b"v")
        for offset in range(2)
    ]
    more: dict[int, dict[str, Any]] = {3: {"parked": parked}, 6: {"unparked": [parked[1].place]}}
    return {"progress": [read], **more.get(lsn, {})}
