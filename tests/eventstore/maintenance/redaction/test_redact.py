"""Redaction: a key's values go from all that the log holds, and nothing else changes. Killed, it is old or new."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel
from sqlalchemy import update

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import leases, tables, terms
from tailrace.eventstore.catalog.leases import Busy
from tailrace.eventstore.errors import Fenced, UsageError
from tailrace.eventstore.maintenance.files import retired
from tailrace.eventstore.maintenance.redaction.erase_cells import erase_cells
from tailrace.eventstore.maintenance.redaction.receipts import receipts
from tailrace.eventstore.maintenance.redaction.redact import RedactionRequest, plan, redact
from tailrace.eventstore.maintenance.retention import plan as retention_plan
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.keys import hash_texts
from tailrace.eventstore.model.redacted import ERASED, Erased
from tailrace.eventstore.model.schema import EVENT_SCHEMA, Column, TopicSchema, change_schema
from tailrace.eventstore.model.time import to_micros
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import TopicSettings, UpkeepSettings
from tailrace.eventstore.state.state import state
from tailrace.eventstore.store import Store
from tailrace.eventstore.streams import event
from tailrace.eventstore.subscriptions.batch import Batch
from tailrace.eventstore.subscriptions.rows.changes import change, column_names
from tests.eventstore.shop import CUSTOMERS, ORDERS, at, batch, content, writer
from tests.fixtures.stores import StoreFactory, one_catalog
from tests.support import forking

AT_ONCE = UpkeepSettings(keep_seconds=0)
SEVEN = RedactionRequest(ORDERS, ["7"])


def fill(store: Store, first: int, last: int) -> None:
    """An epoch a second: orders 7 and 8 change in each, customer 7 too."""
    capture = store.take_over("shop") if store.source("shop") else writer(store)
    for lsn in range(first, last + 1):
        op = "c" if lsn == 1 else "u"
        more: dict[str, Any] = {"completes": [ORDERS, CUSTOMERS]} if lsn == 1 else {}
        capture.append(batch(lsn, [(op, 7), (op, 8)], [(op, 7)], **more))


def without(rows: list[dict[str, Any]], key: int, upto: int) -> list[dict[str, Any]]:
    """The same rows with the notes of a key's erased."""
    return [
        row | {"after": row["after"] | {"note": None}, "_raw": [(2, None)]}
        if row["key"]["id"] == key and row["_epoch"] <= upto
        else row
        for row in rows
    ]


def state_of(store: Store, epoch: int | None = None) -> dict[int, tuple[Any, Any]]:
    found = state(store, ORDERS, store.cut(epoch), on_unreadable="text")
    return {int(row["id"]): (row["note"], row["_erased"]) for table in found for row in table.to_pylist()}


def notes_in_files(store: Store, key: int) -> list[str]:
    """Of a key of the orders, in every file that lies there, whether the catalog names it or not."""
    found = []
    for path in store.storage.list("log/shop/1"):
        rows = pq.read_table(pa.BufferReader(store.storage.open(path))).to_pylist()
        found += [row["after"]["note"] for row in rows if row["key"] == {"id": key} and row["after"]["note"]]
    return found


@one_catalog
def test_what_is_in_blobs_and_files_reads_as_erased_and_all_else_as_before(new_store: StoreFactory) -> None:
    store = new_store(inline_bytes=3500, upkeep=AT_ONCE)
    fill(store, 1, 12)
    store.seal(6)
    store.merge()
    before, others = content(store), content(store, CUSTOMERS)
    head = store.verify()
    planned = plan(store, SEVEN)
    assert (planned.rows, planned.columns, planned.keys) == (12, ("note",), (("7",),))
    assert content(store) == before
    receipt = redact(store, SEVEN)
    assert (receipt.rows, receipt.upto, receipt.epoch) == (12, 12, 13)
    assert content(store) == without(before, 7, 12)
    assert content(store, CUSTOMERS) == others
    assert state_of(store) == {7: (None, ["note"]), 8: ("12.1", None)}
    fill(store, 13, 14)
    assert state_of(store, 13)[7] == (None, ["note"])
    assert state_of(store)[7] == ("raw", None)  # what the fixture has beside the note of every seventh
    found = store.verify()
    assert (found.findings, found.redactions) == ((), 1)
    assert found.hash != head.hash
    store.maintain()
    assert store.verify().findings == ()
    assert content(store)[: len(before)] == without(before, 7, 12)


@one_catalog
def test_doing_it_again_changes_nothing_and_erases_what_came_meanwhile(new_store: StoreFactory) -> None:
    store = new_store(upkeep=AT_ONCE)
    fill(store, 1, 3)
    first = redact(store, SEVEN)
    again = redact(store, SEVEN)
    assert (again.rows, again.files, again.epoch) == (0, (), 0)
    fill(store, 4, 5)
    later = redact(store, SEVEN)
    assert later.rows == 2
    assert [each.epoch for each in receipts(store, [ORDERS])] == [first.epoch, later.epoch]
    assert receipts(store)[0] == first
    assert receipts(store, [CUSTOMERS]) == []


@one_catalog
def test_what_comes_after_sealing_is_not_said_to_be_erased(new_store: StoreFactory) -> None:
    store = new_store()
    fill(store, 1, 3)

    def meanwhile(step: str) -> None:
        if step == "looking for its rows":
            fill(store, 4, 4)

    receipt = redact(store, SEVEN, report=meanwhile)
    assert (receipt.upto, receipt.rows, receipt.epoch) == (3, 3, 5)
    notes = [row["after"]["note"] for row in content(store) if row["key"]["id"] == 7]
    assert notes == [None, None, None, "4.0"]
    assert redact(store, SEVEN).upto == 5


@one_catalog
def test_the_state_run_of_retention_is_rewritten_too(
    new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {ORDERS.text: TopicSettings(retention="compact", compact_after="1s")}
    store = new_store(upkeep=AT_ONCE, topics=chosen)
    fill(store, 1, 10)
    monkeypatch.setattr(retention_plan, "now_micros", lambda: to_micros(at(8)))
    store.maintain()
    assert store.log_start(ORDERS).epoch
    before = content(store)
    receipt = redact(store, SEVEN)
    assert len(receipt.files) == 2
    assert content(store) == without(before, 7, 10)
    store.maintain()
    assert notes_in_files(store, 7) == []
    assert store.verify().findings == ()
    monkeypatch.setattr(retention_plan, "now_micros", lambda: to_micros(at(30)))
    store.maintain()
    assert state_of(store) == {7: (None, ["note"]), 8: ("10.1", None)}


@one_catalog
def test_replaced_files_go_when_no_reader_needs_them_or_at_once(new_store: StoreFactory) -> None:
    store = new_store(upkeep=AT_ONCE)
    fill(store, 1, 3)
    store.seal()
    with store.pinned("a long report"):
        redact(store, SEVEN)
        retired.collect_retired(store, 0)
        assert notes_in_files(store, 7) == ["1.0", "2.0", "3.0"]
        assert any("replaced" in each.place for each in plan(store, SEVEN).remnants)
        retired.remove(store, retired.retired_files(store, ORDERS))
        assert notes_in_files(store, 7) == []
        assert not any("replaced" in each.place for each in plan(store, SEVEN).remnants)
    assert notes_in_files(store, 8) == ["1.1", "2.1", "3.1"]


REDACTOR = """
import sys
from pathlib import Path
from tailrace.eventstore.store import Store
from tailrace.eventstore.maintenance.redaction.redact import RedactionRequest, redact
from tailrace.eventstore.settings import StoreSettings
from tests.eventstore.shop import ORDERS
with Store.open(StoreSettings(catalog=sys.argv[1], segments=Path("segments")), root=Path(sys.argv[2])) as store:
    redact(store, RedactionRequest(ORDERS, ["7"]))
"""


@one_catalog
@pytest.mark.parametrize(("place", "whole"), [("redact_written", False), ("redact_swapped", True)])
def test_killed_it_is_old_or_new_and_run_again_finishes(
    new_store: StoreFactory, catalog_url: str, store_dir: Path, place: str, whole: bool
) -> None:
    store = new_store(upkeep=AT_ONCE, inline_bytes=3500)
    fill(store, 1, 4)
    store.seal()
    fill(store, 5, 6)
    store.seal()
    before = content(store)
    died = forking.run(
        [sys.executable, "-c", REDACTOR, catalog_url, str(store_dir)],
        env={**os.environ, failpoints.VARIABLE: place}, timeout=60,
    )  # fmt: skip
    assert died.returncode == -9, died.stderr
    assert content(store) == (without(before, 7, 6) if whole else before)
    assert store.verify().findings == ()
    assert bool(redact(store, SEVEN).files) is not whole
    assert content(store) == without(before, 7, 6)
    store.maintain()
    assert notes_in_files(store, 7) == []
    assert store.verify().findings == ()


@one_catalog
def test_of_two_at_once_one_waits_and_one_that_was_overtaken_changes_nothing(
    new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store()
    fill(store, 1, 3)
    before = content(store)
    monkeypatch.setattr(leases, "_is_running", lambda holder, otherwise=None: True)
    with leases.maintainer_lease(store.catalog), pytest.raises(Busy, match="upkeep is under way"):
        redact(store, SEVEN, patience=0)
    passed = failpoints.hit

    def overtaken(name: str) -> None:
        if name == "redact_written":
            terms.begin(store.catalog, terms.REDACT)
        passed(name)

    monkeypatch.setattr(failpoints, "hit", overtaken)
    with pytest.raises(Fenced):
        redact(store, SEVEN)
    assert content(store) == before


@one_catalog
def test_a_reader_and_a_writer_in_the_middle_go_on(new_store: StoreFactory) -> None:
    store = new_store(upkeep=AT_ONCE)
    fill(store, 1, 4)
    capture = store.take_over("shop")
    before = content(store)
    reader = store.read(ORDERS)
    first = next(reader)
    redact(store, SEVEN)
    capture.append(batch(5, [("u", 7)]))
    rest = [row for found in reader for row in found.to_pylist()]
    seen = [*first.to_pylist(), *rest]
    places = [(row["_partition"], row["_offset"], row["_epoch"]) for row in seen]
    assert places == [(row["_partition"], row["_offset"], row["_epoch"]) for row in before]
    assert [row["after"]["note"] for row in content(store) if row["key"]["id"] == 7][-1] == "5.0"


@one_catalog
def test_what_cannot_be_erased_is_refused_before_anything_is_written(new_store: StoreFactory) -> None:
    store = new_store()
    fill(store, 1, 2)
    for request, message in (
        (
            RedactionRequest(TopicId.parse("shop.public.order"), ["7"]),
            "no topic shop.public.order in the log",
        ),
        (RedactionRequest(ORDERS, ["77"]), "has no row with key 77"),
        (RedactionRequest(ORDERS, ["seven"]), "has no row with key seven"),
        (RedactionRequest(ORDERS, ["7", "8"]), r"the key of shop.public.orders is \(id\), but 2 value"),
        (RedactionRequest(ORDERS, ["7"], ["email"]), "has no column 'email'"),
        (
            RedactionRequest(ORDERS, ["7"], ["note", "id"]),
            "column 'id' of shop.public.orders is part of the key",
        ),
    ):
        for function in (plan, redact):
            with pytest.raises(UsageError, match=message):
                function(store, request)
    assert receipts(store) == []
    assert store.verify().redactions == 0


def test_all_images_of_a_row_lose_the_cells_and_keep_the_key() -> None:
    columns = (
        Column(1, "id", 23, type_name="integer", key=True),
        Column(2, "name", 25, type_name="text"),
        Column(3, "born", 1082, type_name="date"),
        Column(4, "photo", 17, type_name="bytea"),
    )
    version = TopicSchema(1, columns)
    cells = {"id": 1, "name": "Ada", "born": None, "photo": None}
    old = {"id": 1, "name": None, "born": None, "photo": b"p"}
    names = change_schema(version).names

    def row(op: str, **values: Any) -> dict[str, Any]:
        fixed = {"_hash": 1, "_op": op, "_lsn": 1, "_txn": 1, "_ordinal": 1, "key": {"id": 1}}
        return dict.fromkeys(names) | fixed | values

    rows = [
        row(
            "u", after=cells, before=old, _before="full", _unchanged=[4], _raw=[(3, b"infinity"), (-2, b"x")]
        ),
        row("u", after=cells, before={"id": 1, "name": None, "born": None, "photo": None}, _before="key"),
        row("d", before=old, _before="full"),
        row("c", after=cells),
    ]
    table = pa.Table.from_pylist(rows, schema=change_schema(version))
    chosen = np.array([True, True, True, False])
    found = erase_cells(table, version, {2, 3, 4}, chosen)
    assert found.schema.equals(table.schema, check_metadata=True)
    bare, nothing = {"id": 1, "name": None, "born": None, "photo": None}, None
    first, second, third, other = found.to_pylist()
    assert (first["after"], first["before"]) == (bare, bare)
    assert first["_raw"] == [(-4, None), (-3, None), (-2, None), (2, None), (3, None)]
    assert first["_unchanged"] == [4]
    assert (second["after"], second["before"], second["_raw"]) == (
        bare,
        bare,
        [(2, None), (3, None), (4, None)],
    )
    assert (third["after"], third["before"]) == (nothing, bare)
    assert third["_raw"] == [(-4, None), (-3, None), (-2, None)]
    assert other == rows[3]
    assert erase_cells(found, version, {2, 3, 4}, chosen) is found
    some = erase_cells(table, version, {2}, chosen).to_pylist()
    assert some[0]["_raw"] == [(-2, None), (2, None), (3, b"infinity")]
    assert some[0]["before"]["photo"] == b"p"
    value = change(ORDERS, first | {"_partition": 0, "_offset": 0, "_epoch": 1}, column_names(table.schema))
    assert value.after == {"id": 1, "name": ERASED, "born": ERASED}
    assert value.before == {"id": 1, "name": ERASED, "born": ERASED, "photo": ERASED}
    assert value.raw == {}


@event("moved-in")
class MovedIn(BaseModel):
    address: str


@one_catalog
def test_of_domain_events_data_and_metadata_are_erased_and_consumers_see_which_they_were(
    new_store: StoreFactory,
) -> None:
    store = new_store()
    capture, people = writer(store), TopicId.events("shop", "person")
    for lsn, stream in enumerate(("ada", "bob", "ada"), start=1):
        new = [(people, EVENT_SCHEMA)] if lsn == 1 else []
        given = [TopicRows(people, 1, _moved_in(lsn, stream))]
        capture.append(EpochBatch("shop", lsn, lsn + 1, lsn + 1, at(lsn), 1, given, new_schemas=new))
    with pytest.raises(UsageError, match=r"column 'event_id' of shop.person says which"):
        redact(store, RedactionRequest(people, ["ada"], ["event_id"]))
    receipt = redact(store, RedactionRequest(people, ["ada"]))
    assert (receipt.rows, receipt.columns) == (2, ("data", "metadata"))
    tables_ = [pa.Table.from_batches([each]) for each in store.read(people)]
    batches = [
        Batch(topic=people, partition=0, first_offset=0, end_offset=0, last_epoch=0, rows=rows)
        for rows in tables_
    ]
    every = [found for each in batches for found in each.events()]
    assert sorted((found.stream.id, found.type.name, str(found.data)) for found in every) == [
        ("ada", "moved-in", "Erased"), ("ada", "moved-in", "Erased"), ("bob", "moved-in", "address='at 2'"),
    ]  # fmt: skip
    assert [found.data for each in batches for found in each.events(MovedIn)] == [MovedIn(address="at 2")]
    assert [found.version for each in batches for found in each.events(Erased)] == [1, 3]


def _moved_in(lsn: int, stream: str) -> pa.Table:
    cells = {
        "stream": stream, "version": lsn, "type": "moved-in", "schema_version": 1,
        "data": MovedIn(address=f"at {lsn}").model_dump_json(), "metadata": '{"by": "x"}',
        "event_id": str(uuid4()), "recorded_at": at(lsn),
    }  # fmt: skip
    row = {
        "_hash": hash_texts([stream]), "_op": "c", "_lsn": lsn, "_txn": lsn, "_ordinal": 1, "_commit_ts": at(lsn),
        "key": {"stream": stream}, "after": cells, "_before": "none",
    }  # fmt: skip
    return pa.Table.from_pylist([row], schema=change_schema(EVENT_SCHEMA))


@one_catalog
def test_a_receipt_that_was_changed_is_found(new_store: StoreFactory) -> None:
    store = new_store()
    fill(store, 1, 2)
    redact(store, SEVEN)
    with store.catalog.write() as connection:
        connection.execute(update(tables.redactions).values(receipt="{}"))
    (finding,) = store.verify().findings
    assert finding.place == "the redaction of epoch 3"
