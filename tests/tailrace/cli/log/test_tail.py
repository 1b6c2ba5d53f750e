"""``tailrace log tail``, as an operator uses it."""

from __future__ import annotations

import csv
import json
import signal
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pytest

from tailrace.eventstore.log.sources import register_topic
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.keys import hash_texts
from tailrace.eventstore.model.schema import Column, TopicSchema, change_schema
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tests.eventstore.shop import at, batch, rows, writer
from tests.tailrace.conftest import Project

PLACES = TopicId.table("shop", "public", "places")
TWO = TopicSchema(1, (Column(1, "id", 23, type_name="integer", key=True), Column(2, "note", 25, key=True)))


@pytest.fixture
def store(project: Project) -> Iterator[Store]:
    """Thirty epochs: orders 1 to 3 each, a customer in every third, one truncate."""
    project.configure('[sources.shop]\ndsn = "postgresql://127.0.0.1:1/x"\n')
    with closing(Store.open(StoreSettings(), create=True, root=project.folder)) as store:
        capture = writer(store)
        for lsn in range(1, 31):
            customers = [("t", 0)] if lsn == 9 else [("c", lsn)] if lsn % 3 == 0 else []
            capture.append(batch(lsn, orders=[("u", key) for key in (1, 2, 3)], customers=customers))
        yield store


def told(project: Project, *arguments: str) -> list[tuple[int, str, int | None]]:
    """(epoch, operation, key) of the rows printed."""
    documents = project.ok("log", "tail", "--json", *arguments).documents
    return [(each["epoch"], each["op"], each["key"] and each["key"]["id"]) for each in documents]


def test_the_newest_rows_are_printed_or_those_from_a_position_on(project: Project, store: Store) -> None:
    assert told(project, "shop.public.orders", "-n", "4") == [
        (29, "u", 3),
        (30, "u", 1),
        (30, "u", 2),
        (30, "u", 3),
    ]
    assert told(project, "--from", "29", "--to", "29") == [(29, "u", 1), (29, "u", 2), (29, "u", 3)]
    assert told(project, "--from", "earliest", "--limit", "2") == [(1, "u", 1), (1, "u", 2)]
    assert told(project, "*.customers", "--from", at(26).isoformat()) == [(27, "c", 27), (30, "c", 30)]
    assert len(told(project, "shop.public.orders", "--from", "0:0,1:0,2:0,3:0")) == 90
    assert told(project, "--to", "2", "-n", "1") == [(2, "u", 3)]


def test_patterns_keys_and_operations_choose(project: Project, store: Store) -> None:
    assert {op for _, op, _ in told(project, "!*.orders", "--from", "earliest")} == {"c", "t"}
    assert told(project, "--key", "2", "-n", "2") == [(29, "u", 2), (30, "u", 2)]
    assert told(project, "--op", "truncate", "--from", "earliest") == [
        (9, "t", None)
    ]  # once, not per partition
    assert told(project, "--op", "create", "--key", "12", "--key", "15") == [(12, "c", 12), (15, "c", 15)]
    register_topic(store, PLACES, TWO)
    keyed = [
        {**row, "key": row["after"], "_hash": hash_texts(["7", "40.0"])}
        for row in rows(40, [("c", 7)], schema=TWO).to_pylist()
    ]
    found = pa.Table.from_pylist(keyed, schema=change_schema(TWO))
    batch_of_places = [TopicRows(PLACES, 1, found)]
    writer(store).append(EpochBatch("shop", 40, 41, 41, at(40), transactions=1, rows=batch_of_places))
    for command in (("tail", PLACES.text, "--key"), ("show", PLACES.text), ("redact", PLACES.text, "--key")):
        wrong = project.run("log", *command, "7")
        assert wrong.code == 2 and "id,note" in wrong.err.lower(), (
            "a key of several columns is written one way"
        )
    assert [
        each["epoch"] for each in project.ok("log", "show", PLACES.text, "7,40.0", "--json").documents
    ] == [31]
    assert told(project, PLACES.text, "--key", "7,40.0") == [(31, "c", 7)]


def test_a_time_without_a_zone_is_said_to_be_utc(project: Project, store: Store) -> None:
    moment = at(26).strftime("%Y-%m-%d %H:%M:%S")
    shown = project.ok("log", "tail", "*.customers", "--from", moment)
    assert f"--from {moment} is taken as {at(26):%Y-%m-%dT%H:%M:%S}Z (UTC)" in shown.err
    assert "taken as" not in project.ok("log", "tail", "--from", "29").err
    later = project.ok("log", "tail", "--from", "2d ago")
    assert later.out == "" and "--from 2d ago is taken as 20" in later.err


def test_what_cannot_be_asked_is_said_with_what_can(project: Project, store: Store) -> None:
    for arguments, said in (
        (("shop.public.order",), "did you mean shop.public.orders"),
        (("shop.sales.*",), "no topic matches shop.sales.*"),
        (("--op", "upsert"), "u or update"),
        (("--from", "0:1"), "2 topics match"),
        (("--follow", "--to", "3"), "leave one of them out"),
    ):
        refused = project.run("log", "tail", *arguments)
        assert refused.code == 2 and said in refused.err, (arguments, refused.err)


def test_rows_are_lines_or_csv(project: Project, store: Store) -> None:
    (line,) = project.ok("log", "tail", "-n", "1").out.splitlines()
    assert line.split()[:2] == ["30", "0/1E"] and "update   shop.public.orders  id=3, note=30.2" in line
    text = project.ok("log", "tail", "--format", "csv", "--from", "30", "--op", "c").out
    (row,) = csv.DictReader(text.splitlines())
    assert (row["topic"], row["op"], json.loads(row["after"])) == (
        "shop.public.customers", "c", {"id": 30, "note": "30.0"},
    )  # fmt: skip


def test_following_prints_what_comes(project: Project, store: Store) -> None:
    following = project.start("log", "tail", "shop.public.*", "-f", "-n", "1")
    assert following.stdout is not None
    assert "id=3, note=30.2" in following.stdout.readline()
    writer(store).append(batch(50, orders=[("c", 77)]))
    assert "id=77" in following.stdout.readline()
    assert project.end(following, signal.SIGINT).code == 130
    limited = project.start("log", "tail", "--from", "30", "-f", "--limit", "6")
    writer(store).append(batch(60, orders=[("c", 78)]))
    out, _ = limited.communicate(timeout=60)
    assert len(out.splitlines()) == 6
