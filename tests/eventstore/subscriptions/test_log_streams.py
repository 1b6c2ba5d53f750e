"""Streams are read from the log as from the source, at any time; what was erased or is not there is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from pydantic import BaseModel

from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.log.sources import register_topic
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.schema import EVENT_SCHEMA
from tailrace.eventstore.store import Store
from tailrace.eventstore.streams import Stream, append, load, load_all, load_boundary, state_of
from tailrace.eventstore.streams.boundaries.query import Query
from tests.eventstore.shop import at, writer
from tests.eventstore.streams.bank import Account, Deposited, Withdrawn, account
from tests.eventstore.subscriptions.test_domain_events import ACCOUNT, events, with_erased
from tests.fixtures.stores import StoreFactory, one_catalog

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
NUMBER = Stream("account", "42")


def told(stream: str, *amounts: int, first: int = 1) -> pa.Table:
    """Events of a stream, a day apart."""
    models: list[BaseModel] = [
        Deposited(amount=Decimal(each)) if each > 0 else Withdrawn(amount=Decimal(-each)) for each in amounts
    ]
    rows = events(1, stream, *models).to_pylist()
    for number, (row, model) in enumerate(zip(rows, models, strict=True), first):
        row["after"] |= {
            "version": number,
            "type": "bank_deposited" if isinstance(model, Deposited) else "bank_withdrawn",
            "recorded_at": BEGAN + timedelta(days=number),
        }
    return pa.Table.from_pylist(rows, schema=events(1, stream, *models).schema)


def filled(store: Store, *tables: pa.Table) -> None:
    capture = writer(store)
    register_topic(store, ACCOUNT, EVENT_SCHEMA, reason="")
    for lsn, table in enumerate(tables, 1):
        rows = table.set_column(
            table.schema.get_field_index("_lsn"),
            table.schema.field("_lsn"),
            pa.array([lsn] * table.num_rows, pa.int64()),
        )
        capture.append(EpochBatch("shop", lsn, lsn + 1, lsn + 1, at(lsn), 1, [TopicRows(ACCOUNT, 1, rows)]))


@one_catalog
def test_a_stream_and_its_state_are_read_at_any_time(new_store: StoreFactory) -> None:
    store = new_store()
    filled(
        store, told("42", 5, -2), told("7", 100), told("42", 10, first=3), told("42", 5, -2)
    )  # and loaded again
    streams = store.streams("shop")
    assert [(each.version, each.data.amount) for each in load(streams, NUMBER)] == [(1, 5), (2, 2), (3, 10)]
    assert [each.version for each in load(streams, NUMBER, from_version=2)] == [2, 3]
    assert [each.version for each in load(streams, NUMBER, to_version=2)] == [1, 2]
    assert state_of(streams, account, "42").state == Account(13)
    assert state_of(streams, account, "42", version=1).state == Account(5)
    assert state_of(streams, account, "42", at=BEGAN + timedelta(days=2)).state == Account(3)
    assert state_of(streams, account, "nobody").version == 0


@one_catalog
def test_an_erased_event_is_not_passed_over(new_store: StoreFactory) -> None:
    store = new_store()
    filled(store, with_erased(told("42", 5, 7), [True, False]))
    streams = store.streams("shop")
    with pytest.raises(OperatorError, match="event 1 of account/42 was erased"):
        state_of(streams, account, "42")
    assert [each.data.amount for each in load(streams, NUMBER, from_version=2)] == [7]


@one_catalog
def test_what_the_log_cannot_do_is_refused(new_store: StoreFactory) -> None:
    store = new_store()
    filled(store, told("42", 5))
    streams = store.streams("shop")
    refused: Sequence[tuple[Callable[[], object], str]] = (
        (lambda: append(streams, NUMBER, [Deposited(amount=Decimal(1))]), "written by capture alone"),
        (lambda: list(load_all(streams, "account")), "in the order of its commits"),
        (lambda: load_boundary(streams, Query(course="c1")), "keeps no boundaries"),
        (lambda: load(streams, Stream("lunch", "1")), "shop.lunch"),
    )
    for ask, words in refused:
        with pytest.raises(UsageError, match=words):
            ask()
