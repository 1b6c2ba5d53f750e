"""``tailrace group``, as an operator uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import create_engine, make_url

from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tailrace.eventstore.streams import (
    Due,
    ProcessManager,
    Recorded,
    Stream,
    Timer,
    event,
    event_type_of,
    react,
)
from tailrace.eventstore.streams.database.event_tables import install
from tailrace.eventstore.streams.reacting.react import fire_timer
from tailrace.eventstore.subscriptions.rows.changes import Change
from tests.eventstore.shop import ORDERS, batch, writer
from tests.tailrace.conftest import Project


@pytest.fixture
def store(project: Project) -> Iterator[Store]:
    """A store with 20 orders; a group that could not process one of them and has come to the end."""
    project.configure('[sources.shop]\ndsn = "postgresql://127.0.0.1:1/x"\n')
    with closing(Store.open(StoreSettings(), create=True, root=project.folder)) as store:
        capture = writer(store)
        for lsn in range(1, 5):
            capture.append(batch(lsn, orders=[("u", key) for key in range(5)]))
        with store.group("mail", ["shop.public.*"], start="earliest").join("pod-1") as member:
            member.process(handler, attempts=1, timeout=0)
        yield store


def handler(value: object) -> None:
    assert isinstance(value, Change) and value.key is not None
    if value.key["id"] == 3:
        raise ValueError("no address")


def test_lag_and_parked_events_are_shown(project: Project, store: Store) -> None:
    writer(store).append(batch(9, orders=[("u", 1), ("u", 2)]))
    (group,) = project.ok("group", "list", "--json").documents
    assert (group["group"], group["lag"], group["parked"], group["members"]) == ("mail", 2, 4, [])
    listed = project.ok("group", "list").out
    assert "mail" in listed and "shop.public.*" in listed
    shown = project.ok("group", "show", "mail")
    assert ORDERS.text in shown.out
    assert "4 events are parked: tailrace group parked mail" in shown.err
    (document,) = project.ok("group", "show", "mail", "--json").documents
    assert sum(each["lag"] for each in document["partitions"]) == 2
    parked = project.ok("group", "parked", "mail").out
    assert "ValueError: no address" in parked and '{"id": 3}' in parked
    assert len(project.ok("group", "parked", "mail", "--json").documents) == 4


def test_parked_events_are_replayed_or_discarded(project: Project, store: Store) -> None:
    assert "4 events will be given to mail again" in project.ok("group", "replay", "mail").out
    assert "will be replayed" in project.ok("group", "parked", "mail").out
    ids = [str(each["id"]) for each in project.ok("group", "parked", "mail", "--json").documents]
    assert "4 parked events of mail are gone" in project.ok("group", "discard", "mail", *ids).out
    assert "nothing is parked" in project.ok("group", "parked", "mail").err


def test_a_group_is_reset_and_deleted_unless_it_has_members(project: Project, store: Store) -> None:
    assert (
        "mail goes on from earliest: 20 events"
        in project.ok("group", "reset", "mail", "--to", "earliest").out
    )
    assert "mail goes on from 3: 5 events" in project.ok("group", "reset", "mail", "--to", "3").out
    with store.group("mail").join("pod-1"):
        refused = project.run("group", "reset", "mail", "--to", "latest")
        assert refused.code == 2
        assert "has members: pod-1" in refused.err
    wrong = project.run("group", "reset", "mail", "--to", "77")
    assert wrong.code == 2 and "epoch 77 is not in the log" in wrong.err
    project.ok("group", "delete", "mail")
    missing = project.run("group", "show", "mail")
    assert missing.code == 2 and "there is no group 'mail'" in missing.err
    assert "no groups yet" in project.ok("group", "list").err
    assert Path(project.folder / ".tailrace" / "catalog-groups.db").exists()


def test_what_a_group_holds_back_from_retention_is_said_and_passed_by_name_only(
    project: Project, store: Store
) -> None:
    source = '[sources.shop]\ndsn = "postgresql://127.0.0.1:1/x"\n'
    project.configure(source + '[topics."shop.public.*"]\nretention = "1d"\n')
    writer(store).append(batch(9, completes=[ORDERS]))
    held = project.ok("store", "maintain").out
    assert "shop.public.orders: group mail holds back 20 rows" in held and "is parked" in held
    assert "it holds back retention of shop.public.orders: 20 rows" in project.ok("group", "show", "mail").err
    (listed,) = [line for line in project.ok("group", "list").out.splitlines() if line.startswith("mail")]
    assert listed.endswith("shop.public.orders: 20 rows")
    unknown = project.run("store", "maintain", "--force-past", "mali")
    assert unknown.code == 2 and "no registered reader is called 'mali'" in unknown.err
    passed = project.ok("store", "maintain", "--force-past", "mail").out
    assert "shop.public.orders begins behind epoch 5, past group mail: removed 20 rows" in passed
    assert "5 that make its state stay" in passed
    assert project.ok("log", "tail").out == ""
    shown = project.run("log", "show", "shop.public.orders", "1")
    assert "retention removed rows of shop.public.orders up to" in shown.err


@event("group_asked")
@dataclass(frozen=True)
class Asked:
    key: str


def reaction(input: object, state: None) -> list[Timer]:
    if isinstance(input, Due) and input.key == "a":
        raise ValueError("nobody answers")
    return [Timer("ask", datetime(2026, 1, 1, tzinfo=UTC))] if isinstance(input, Asked) else []


@pytest.mark.slow
def test_timers_of_a_process_are_shown_retried_and_ended(project: Project, database: str) -> None:
    project.configure(f'[sources.shop]\ndsn = "{database}"\n')
    install(database)
    manager: ProcessManager[Asked, None] = ProcessManager("group_asking", None, reaction, key={Asked: "key"})
    engine = create_engine(make_url(database).set(drivername="postgresql+psycopg"))
    with closing(Store.open(StoreSettings(), create=True, root=project.folder)) as store:
        store.process(manager, engine, ["shop.question"])

    def asked(key: str) -> object:
        kind, now = event_type_of(Asked), datetime.now(UTC)
        return react(engine, manager, Recorded(Stream("q", key), 1, kind, Asked(key), {}, uuid4(), now))

    for key in "ab":
        asked(key)
    while fire_timer(engine, manager, attempts=1):
        pass
    shown = project.ok("group", "timers", "process-group_asking")
    assert "nobody answers" in shown.out and "--retry" in shown.out and "2026-01-01" in shown.out
    (document,) = project.ok("group", "timers", "process-group_asking", "--json").documents
    assert (document["instance"], document["tries"], document["parked"]) == ("a", 1, True)
    retried = project.ok("group", "timers", "process-group_asking", "--retry")
    assert "1 timer will be tried again" in retried.out
    assert fire_timer(engine, manager, attempts=1)
    end = ("group", "timers", "process-group_asking", "--end", "--instance")
    assert "a has ended" in project.ok(*end, "a").out
    assert "no timers are set" in project.ok("group", "timers", "process-group_asking").err
    assert asked("a") is None and asked("b") is not None
    assert "a had ended before" in project.ok(*end, "a").out
    for words, message in (
        (("process-group_asking", "--end"), "--end ends one instance"),
        (("process-group_asking", "--end", "--instance", "x"), "has no instance"),
        (("mail",), "is of no process"),
    ):
        done = project.run("group", "timers", *words)
        assert done.code == 2 and message in done.err
    with psycopg.connect(database) as connection:
        left = connection.execute("SELECT count(*) FROM tailrace.timers WHERE instance = 'a'").fetchone()
    assert left == (0,)
    engine.dispose()
