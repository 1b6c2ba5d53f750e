"""What stands in the way of taking a source over is said, with what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tailrace.cdc.adoption.refusals import (
    publication_findings,
    server_findings,
    slot_findings,
    snapshot_findings,
)
from tailrace.cdc.postgres.check import Server
from tailrace.cdc.postgres.publication import Publication
from tailrace.cdc.postgres.slot import SlotInfo
from tailrace.cdc.setup.adopted import Adoption
from tailrace.eventstore.catalog.requests import Request, RequestState
from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.model.kafka import PartitionProgress, SnapshotPhase
from tailrace.eventstore.model.time import moment_of
from tailrace.eventstore.model.topic import TopicId

SLOT = SlotInfo("debezium", "pgoutput", "shop", False, None, 100, 90, "reserved", "")
SERVER = Server(
    version=180000, wal_level="logical", slots=10, slots_used=1, senders=10, senders_used=0, standby=False,
    may_create=True, may_replicate=True, user="u", sender_timeout="1min", database="shop", system_id="7",
    flush_lsn=500, timeline=1,
)  # fmt: skip
PROGRESS = PartitionProgress("shop.public.items", 0, "id", 9, 400, 450, SnapshotPhase.ENDED)
TABLES = Publication("p", True, frozenset({"insert", "update", "delete", "truncate"}), False, {})


def test_what_is_in_order_is_not_refused() -> None:
    assert slot_findings("debezium", SLOT, "shop") == []
    assert server_findings(SERVER, [PROGRESS], "7") == server_findings(SERVER, [], "") == []
    assert publication_findings("p", TABLES, [1]) == []
    assert snapshot_findings([PROGRESS], {PROGRESS.topic: 0}) == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"plugin": "wal2json"}, "its plugin is wal2json"),
        ({"plugin": "decoderbufs"}, "its plugin is decoderbufs"),
        ({"database": "other"}, "it is of database other, --dsn leads to shop"),
        ({"wal_status": "lost"}, "it is lost (WAL that it needs was removed)"),
        ({"invalidation": "idle_timeout"}, "it is lost (idle_timeout)"),
        ({"temporary": True}, "it is temporary"),
        ({"active_pid": 77}, "server process 77 uses it"),
    ],
)
def test_a_slot_that_cannot_be_taken_over(change: dict[str, Any], what: str) -> None:
    (found,) = slot_findings("debezium", replace(SLOT, **change), "shop")
    assert found.what.startswith(what) and found.hint


@pytest.mark.parametrize(
    ("change", "system", "what"),
    [
        (
            {"flush_lsn": 449},
            "",
            "Kafka has rows up to 0/1C2, and the WAL ends at 0/1C1: it is another system",
        ),
        ({}, "8", "it is system 7, and catalog_dsn leads to system 8"),
        ({"standby": True}, "", "it is a standby"),
        ({"wal_level": "replica"}, "", "wal_level is replica"),
        ({"may_replicate": False}, "", "user u may not replicate"),
    ],
)
def test_a_server_that_is_not_the_connectors(change: dict[str, Any], system: str, what: str) -> None:
    (found,) = server_findings(replace(SERVER, **change), [PROGRESS], system)
    assert found.what.startswith(what) and found.hint


def test_a_snapshot_that_runs_in_a_topic_that_is_read() -> None:
    running = replace(PROGRESS, snapshot=SnapshotPhase.RUNNING)
    assert [each.subject for each in snapshot_findings([running], {running.topic: 0})] == [running.topic]
    assert snapshot_findings([running], {}) == []


@pytest.mark.parametrize(
    "changes", [{"lsn": -1}, {"lsn": "7"}, {"slot": None}, {"slot": "s" * 300}, {"position": True}]
)
def test_a_request_that_somebody_else_wrote_is_not_believed(changes: dict[str, Any]) -> None:
    options = {"slot": "debezium", "publication": "p", "lsn": 5, "cluster": "c", "position": 3}
    moment = moment_of(0)

    def request(given: dict[str, Any]) -> Request:
        topic = TopicId.table("shop", "public", "items")
        return Request(4, "shop", "adopt", topic, given, RequestState.ASKED, "", moment, None)

    assert Adoption.of(request(options)) == Adoption("debezium", "p", 5, "c", 3, 4)
    with pytest.raises(IntegrityError, match="request 4"):
        Adoption.of(request(options | changes))
