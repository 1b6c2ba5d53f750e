"""What a topic is, its schema versions and its incomplete intervals are what the log declared: readers refuse any
other, and ``verify`` finds it, also where every sum up to the epoch's hash was made to fit."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping

import pytest
from sqlalchemy import select, text

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.integrity.findings import Finding
from tailrace.eventstore.log.sources import register_topic
from tailrace.eventstore.maintenance.repartition import repartition
from tailrace.eventstore.metadata import declared
from tailrace.eventstore.metadata.generations import NewGeneration
from tailrace.eventstore.metadata.projection_steps import NewStep
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.store import Store
from tailrace.migrations.run import Tables, downgrade, upgrade
from tests.eventstore.shop import CUSTOMERS, ORDERS, SCHEMA, WIDER, at, batch, content, writer
from tests.fixtures.stores import StoreFactory, one_catalog

LATER = TopicId.table("shop", "public", "later")


@pytest.fixture
def store(new_store: StoreFactory) -> Store:
    """A version more, intervals that ended and one that is open, partitions that were added, a topic behind all."""
    store = new_store()
    capture = writer(store)
    capture.append(batch(1, [("c", 1)], [("c", 1)], completes=[ORDERS, CUSTOMERS]))
    capture.append(batch(2, [("c", 2)], new_schemas=[(ORDERS, WIDER)]))
    capture.append(batch(3, [("u", 2)], suspends=[(ORDERS, "repair")]))
    repartition(store, ORDERS, 2)
    capture.append(batch(4, [("u", 1)], completes=[ORDERS]))
    capture.append(batch(5, [("u", 1)], suspends=[(CUSTOMERS, "repair")]))
    register_topic(store, LATER, SCHEMA)
    assert findings(store) == {}
    return store


def findings(store: Store) -> Mapping[str, Finding]:
    return {found.place: found for found in store.verify(quick=True).findings}


def change(store: Store, statement: str) -> None:
    with store.catalog.write() as connection:
        connection.exec_driver_sql(statement)


def forged(old: str, new: str) -> str:
    """A statement that changes the text of each schema version."""
    return f"UPDATE topic_schemas SET definition = replace(definition, '{old}', '{new}') WHERE topic_id = 1"  # noqa: S608


def use(store: Store) -> None:
    """What readers ask for."""
    store.topic(ORDERS), store.topics(), store.schemas(ORDERS), content(store)
    store.require_complete(ORDERS, store.cut(2))


CHANGES = {
    "a column has another name": forged('"name":"note"', '"name":"memo"'),
    "a column has another type": forged('"type_oid":25', '"type_oid":1043'),
    "a version holds from an epoch before": "UPDATE topic_schemas SET epoch = 1 WHERE topic_id = 1 AND version = 2",
    "a version is gone": "DELETE FROM topic_schemas WHERE topic_id = 1 AND version = 2",
    "an interval begins later": "UPDATE incomplete SET from_epoch = 4 WHERE topic_id = 1 AND from_epoch = 3",
    "an interval ends earlier": "UPDATE incomplete SET to_epoch = 4 WHERE topic_id = 1 AND from_epoch = 3",
    "an interval has another reason": "UPDATE incomplete SET reason = 'x' WHERE topic_id = 1 AND from_epoch = 3",
    "an interval is gone": "DELETE FROM incomplete WHERE topic_id = 1 AND from_epoch = 3",
    "an interval is new": "INSERT INTO incomplete VALUES (1, 2, 3, 'x')",
    "the topic is of another kind": "UPDATE topics SET kind = 'events' WHERE id = 1",
    "it is complete since another epoch": "UPDATE topics SET complete_since = 4 WHERE id = 1",
    "two topics have each other's names": "UPDATE topics SET name = CASE id"
    " WHEN 1 THEN 'shop.public.customers' WHEN 2 THEN 'shop.public.orders' ELSE name END",
    "what it should be was taken away": "UPDATE topics SET declared = '' WHERE id = 1",
}


@one_catalog
@pytest.mark.parametrize("statement", CHANGES.values(), ids=CHANGES.keys())
def test_a_topic_that_is_not_what_was_declared_is_refused_and_found(store: Store, statement: str) -> None:
    if "CASE id" in statement:  # names are unique at each moment
        change(store, "UPDATE topics SET name = 'shop.public.x' WHERE id = 2")
        change(store, "UPDATE topics SET name = 'shop.public.customers' WHERE id = 1")
        change(store, "UPDATE topics SET name = 'shop.public.orders' WHERE id = 2")
    else:
        change(store, statement)
    with pytest.raises(IntegrityError, match=r"topics: id \d: its row, those in topic_schemas or those in"):
        use(store)
    assert "topics: id 1" in findings(store)


@one_catalog
def test_each_single_reader_compares(store: Store) -> None:
    change(store, CHANGES["an interval begins later"])
    cut = store.cut()
    for read in (
        lambda: store.topic(ORDERS),
        lambda: store.topics("shop"),
        lambda: store.schemas(ORDERS),
        lambda: store.schemas_at(ORDERS, cut),
        lambda: store.require_complete(ORDERS, cut),
        lambda: content(store),
        lambda: repartition(store, ORDERS, 8),
    ):
        with pytest.raises(IntegrityError, match="topics: id 1"):
            read()
    assert content(store, CUSTOMERS)


def redeclare(store: Store, *, head: bool = False, epoch: bool = False) -> None:
    """As somebody does who knows how it is made, up to the topic's sum, the head's, or the last epoch's."""
    with store.catalog.write() as connection:
        rows = [
            connection.execute(select(table)).all()
            for table in (tables.topics, tables.topic_schemas, tables.incomplete)
        ]
        sums = {topic.row.id: topic.total for topic in declared.of_rows(*rows)}
        for number, total in sums.items():
            connection.execute(
                text("UPDATE topics SET declared = :declared WHERE id = :id"),
                {"declared": declared.sum_text(total), "id": number},
            )
        if head:
            said = declared.of_sums(sums, max(sums)).text
            connection.execute(text("UPDATE log_head SET declared = :said"), {"said": said})
        if epoch:
            said = declared.of_sums(sums, 2).text
            last = "UPDATE epochs SET declared = :said WHERE epoch = (SELECT max(epoch) FROM epochs)"
            connection.execute(text(last), {"said": said})


@one_catalog
def test_sums_that_were_made_to_fit_end_at_the_chain_of_epochs(store: Store) -> None:
    change(store, CHANGES["a column has another name"])
    redeclare(store)
    use(store)  # they compare a topic with its own row
    assert list(findings(store)) == ["log_head: id 1", "epochs: epoch 6"]
    redeclare(store, head=True)
    assert list(findings(store)) == ["epochs: epoch 6"]
    redeclare(store, head=True, epoch=True)
    assert findings(store)["epoch 6"].detail == "its hash does not match its catalog row and the epoch before"


@one_catalog
@pytest.mark.parametrize("wrong", ["", "x", f"2:{'0' * 64}", f"03:{'0' * 64}"])
def test_nothing_is_appended_where_the_heads_sum_is_none(store: Store, wrong: str) -> None:
    change(store, f"UPDATE log_head SET declared = '{wrong}'")  # noqa: S608
    assert "log_head: id 1" in findings(store)
    if wrong.startswith("2:"):
        return  # a sum, and a wrong one: the next epoch has it, and is found as well
    with pytest.raises(IntegrityError, match="log_head: id 1: its sum over the topics cannot be read"):
        store.take_over("shop").append(batch(9, [("c", 9)]))
    with pytest.raises(IntegrityError, match="log_head: id 1"):
        register_topic(store, TopicId.table("shop", "public", "another"), SCHEMA)


def test_topics_that_come_beside_a_writer_are_in_one_order_with_its_epochs(new_store: StoreFactory) -> None:
    store, other = new_store(), new_store()
    capture = writer(store)
    failed: list[BaseException] = []

    def register_many() -> None:
        try:
            for number in range(10):
                register_topic(other, TopicId.table("shop", "public", f"t{number}"), SCHEMA)
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    thread = threading.Thread(target=register_many)
    thread.start()
    for lsn in range(1, 20, 2):
        capture.append(batch(lsn, [("c", lsn)], suspends=[(CUSTOMERS, f"at {lsn}")]))
        capture.append(batch(lsn + 1, [("c", lsn)], completes=[CUSTOMERS]))
    thread.join()
    assert not failed and len(store.topics()) == 12
    assert findings(store) == {}


def test_a_store_of_a_format_before_is_declared_when_it_is_upgraded(new_store: StoreFactory) -> None:
    store = new_store()
    capture = writer(store)
    capture.append(batch(1, [("c", 1)], completes=[ORDERS]))
    capture.append(batch(2, [("c", 2)], new_schemas=[(ORDERS, WIDER)], suspends=[(ORDERS, "Käse")]))
    for key in ("id", "größe"):
        store.derived.create_generation(NewGeneration("totals", "f", "{}", (key,), b"\x00\xff", 4, 0))
    for first, last in ((0, 1), (1, 2)):
        store.steps.commit(NewStep("totals", 2, first, last, "full", [{"path": "größe"}], 1, at(last)))
    before = sums(store)
    with store.catalog.write() as connection:
        downgrade(Tables.CATALOG, connection, tables.metadata, tables.FIRST)
    with store.catalog.write() as connection:
        upgrade(Tables.CATALOG, connection, tables.metadata)
    assert sums(store) == before
    again = new_store()
    again.take_over("shop").append(batch(3, [("c", 3)], completes=[ORDERS]))
    assert again.topic(ORDERS).complete_since == 3
    assert len(again.derived.generations("totals")) == len(again.steps.list("totals", 2)) == 2


def sums(store: Store) -> object:
    with store.catalog.read() as connection:
        topics = connection.execute(select(tables.topics.c.id, tables.topics.c.declared)).all()
        generations = connection.scalars(select(tables.generations.c.digest)).all()
        steps = connection.scalars(select(tables.derived.c.hash)).all()
        return (
            sorted(topics),
            sorted(generations),
            sorted(steps),
            connection.scalar(select(tables.log_head.c.declared)),
        )


def test_the_digest_of_a_row_is_of_all_that_decides() -> None:
    """Each column alone, and which table and topic it is of: values do not run into one another."""
    base = {
        "id": 1,
        "name": "a",
        "source": "b",
        "kind": "c",
        "partitioning": "",
        "complete_since": None,
        "reason": "",
    }
    others = [{**base, name: other} for name in base for other in (7, "x")]
    schema = {"topic_id": 1, "version": 1, "epoch": 0, "definition": json.dumps({})}
    swapped = {**base, "name": "", "source": "ab"}
    found = [declared.digest(tables.topics, each) for each in (base, swapped, *others)]
    found += [declared.digest(tables.topic_schemas, {**schema, "topic_id": each}) for each in (1, 2)]
    assert len(set(found)) == len(found)
    assert declared.digest(tables.topics, {**base, "published": "anything"}) == found[0]
