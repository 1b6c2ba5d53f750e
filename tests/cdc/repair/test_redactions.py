"""Redaction beside the source: a live capture goes on, ``verify --source`` and a repair know what was erased."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace.cdc.repair.report import TopicRepair
from tailrace.eventstore.maintenance.redaction.receipts import Receipt
from tailrace.eventstore.maintenance.redaction.redact import RedactionRequest, redact
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import UpkeepSettings
from tailrace.eventstore.state.state import state
from tailrace.eventstore.store import Store
from tailrace.eventstore.streams import Stream, append
from tests.cdc.repair.test_repair import Opened
from tests.support.background import in_background
from tests.support.capturing import SOURCE, RunningCapture, Site, execute, rows, table

PEOPLE = table("people")


@pytest.fixture
def site(database: str, store_dir: Path) -> Site:
    execute(
        database,
        "CREATE TABLE people (id int PRIMARY KEY, name text, city text)",
        "INSERT INTO people SELECT i, 'secret ' || i, 'Lund' FROM generate_series(1, 6) i",
    )
    at_once = UpkeepSettings(keep_seconds=0)
    made = Site.at(store_dir, database)
    made = replace(made, store_settings=made.store_settings.model_copy(update={"upkeep": at_once}))
    made.init()
    return made


def people(store: Store) -> dict[int, tuple[Any, Any, Any]]:
    """Of each living row name, city and what of it is erased."""
    found = [row for part in state(store, PEOPLE, store.cut()) for row in part.to_pylist()]
    return {row["id"]: (row["name"], row["city"], row["_erased"]) for row in found}


def erase(store: Store, key: int, *columns: str) -> Receipt:
    return redact(store, RedactionRequest(PEOPLE, [str(key)], columns or None))


def test_verify_leaves_erased_cells_out_and_says_where_the_source_still_has_them(site: Site) -> None:
    site.init(events=True)
    with RunningCapture(site) as capture:
        with psycopg.connect(site.dsn) as connection:
            append(connection, Stream("account", "ada"), [Opened(n=1), Opened(n=2)])
        execute(site.dsn, "UPDATE people SET name = NULL WHERE id = 2")
        capture.catch_up()
        erase(capture.store, 1, "name")
        erase(capture.store, 2, "name")
        account = TopicId.events(SOURCE, "account")
        redact(capture.store, RedactionRequest(account, ["ada"]))
        found = {each.topic: each for each in site.verify()}
        assert all(each.equal for each in found.values())
        assert (found[PEOPLE].erased, found[PEOPLE].erased_held) == (2, 1)
        assert (found[account].erased, found[account].erased_held) == (2, 2)
        execute(site.dsn, "UPDATE people SET city = 'Brno' WHERE id = 1")  # the whole row comes again
        capture.catch_up()
        (found_now,) = site.verify(PEOPLE)
        assert found_now.equal and (found_now.erased, found_now.erased_held) == (1, 0)


# While nobody listens: another cell of an erased row, a row that was erased and deleted and is there again, one that
# has had values since it was erased.
MEANWHILE = (
    "UPDATE people SET city = 'Brno' WHERE id = 2",
    "INSERT INTO people VALUES (3, 'secret 3', 'Lund')",
    "UPDATE people SET name = 'known again' WHERE id = 4",
    "DELETE FROM people WHERE id = 5",
)


def test_a_repair_brings_nothing_back_that_was_erased(site: Site) -> None:
    with RunningCapture(site) as capture:
        capture.catch_up()  # with the first load
        execute(site.dsn, "DELETE FROM people WHERE id = 3")
        capture.catch_up()
        for key in (1, 2, 4):
            erase(capture.store, key, "name")
        erase(capture.store, 3)
        execute(site.dsn, "UPDATE people SET name = 'known' WHERE id = 4")
        capture.catch_up()
    execute(site.dsn, "SELECT pg_drop_replication_slot('acme_shop')", *MEANWHILE)
    assert site.repair().topics == (TopicRepair(PEOPLE, rows=5, added=1, changed=2, deleted=1, erased=3),)
    with site.open() as store:
        kept: dict[int, tuple[Any, ...]] = {
            1: (None, "Lund", ["name"]), 2: (None, "Brno", ["name"]), 3: (None, None, ["name", "city"]),
            4: ("known again", "Lund", None), 6: ("secret 6", "Lund", None),
        }  # fmt: skip
        assert people(store) == kept
        gone = [row["after"] for row in rows(store, PEOPLE) if row["key"]["id"] in (1, 2, 3) and row["after"]]
        assert {after["name"] for after in gone} == {None}
        assert store.verify().findings == ()
    execute(
        site.dsn, "SELECT pg_drop_replication_slot('acme_shop')", "ALTER TABLE people ADD COLUMN born date"
    )
    (anew,) = site.repair().topics
    assert (anew.whole, anew.rows, anew.erased) == ("its columns or its key are others now", 5, 3)
    with RunningCapture(site) as capture:
        assert people(capture.store) == kept
        execute(site.dsn, "UPDATE people SET city = 'Graz' WHERE id = 3")
        capture.catch_up()
        assert people(capture.store)[3] == ("secret 3", "Graz", None)
        (found,) = site.verify(PEOPLE)
        assert found.equal and (found.erased, found.erased_held) == (2, 2)


@contextmanager
def changing(dsn: str, key: int) -> Iterator[None]:
    """The same row changes inside, one transaction after another."""

    def change(_: int, stop: threading.Event) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            number = 0
            while not stop.is_set():
                number += 1
                connection.execute("UPDATE people SET name = %s WHERE id = %s", (f"secret {number}", key))

    with in_background(change):
        yield


def test_beside_a_capture_nothing_of_before_the_receipt_is_left_and_changes_go_on(site: Site) -> None:
    with RunningCapture(site) as capture:
        store = capture.store

        receipts: list[Receipt] = []

        def streamed() -> bool:
            """Has the row changed since the last receipt?"""
            last = receipts[-1].epoch if receipts else 0
            return any(row["_epoch"] > last and row["_op"] == "u" for row in rows(store, PEOPLE))

        with changing(site.dsn, 1):
            for _ in range(2):
                capture.wait_until(streamed)
                receipts.append(erase(store, 1, "name"))
            capture.wait_until(streamed)
        capture.catch_up()
        assert all(each.rows > 0 for each in receipts)
        upto = receipts[-1].upto
        mine = [row for row in rows(store, PEOPLE) if row["key"]["id"] == 1]
        assert {row["after"]["name"] for row in mine if row["_epoch"] <= upto} == {None}
        assert all(row["after"]["name"] for row in mine if row["_epoch"] > upto) and mine[-1]["_epoch"] > upto
        store.maintain()
        for path in store.storage.list("log"):  # whatever lies there, named or not
            for row in pq.read_table(pa.BufferReader(store.storage.open(path))).to_pylist():
                assert row["key"] != {"id": 1} or row["_epoch"] > upto or row["after"]["name"] is None
        assert store.verify().findings == ()
        (found,) = site.verify(PEOPLE)
        assert found.equal and found.erased == 0
