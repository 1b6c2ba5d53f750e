"""A table that cannot be decoded goes into quarantine: the others go on, its frames are kept and decoded later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.cdc.columnar import undecoded
from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog.requests import RequestState
from tailrace.eventstore.errors import IncompleteTopic
from tailrace.eventstore.metadata.quarantine import first_frames, quarantined_topics
from tailrace.eventstore.state.state import state
from tests.support.capturing import (
    CaptureProcess,
    RunningCapture,
    Site,
    assert_equals_source,
    assert_sound,
    execute,
    init_and_load,
    rows,
    table,
    wait_until,
)
from tests.support.plaintext import places_of

KILLED = -9
ORDERS, PEOPLE = table("orders"), table("people")
BROKEN = "table_decoded=shop.public.orders"
TABLES = """
CREATE TABLE public.people (id int PRIMARY KEY, name text);
CREATE TABLE public.orders (id int PRIMARY KEY, person int, note text);
INSERT INTO people SELECT i, 'name ' || i FROM generate_series(1, 20) i;
INSERT INTO orders SELECT i, i, 'note ' || i FROM generate_series(1, 20) i;
"""


@pytest.fixture
def site(database: str, store_dir: Path) -> Site:
    execute(database, TABLES)
    return Site.at(store_dir, database, epoch_bytes=16384, linger_ms=20)


def change(site: Site, begin: int, count: int = 10) -> None:
    """Transactions that change both tables: rows of every kind, and keys that move."""
    for number in range(begin, begin + count):
        execute(
            site.dsn,
            f"INSERT INTO orders VALUES ({number}, 1, 'new'); UPDATE people SET name = 'n{number}' WHERE id = 1;"  # noqa: S608
            f" UPDATE orders SET note = 'changed' WHERE id = {number - 1};"
            f" UPDATE orders SET id = -id WHERE id = {number - 2}; DELETE FROM orders WHERE id = {2 - number};"
            f" INSERT INTO people VALUES ({number}, 'later') ON CONFLICT DO NOTHING",
        )


@pytest.fixture
def break_orders(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Whether orders can be decoded by captures of this process."""
    return lambda yes: monkeypatch.setattr(failpoints, "_armed", failpoints.parse(BROKEN if yes else ""))


def retry(site: Site) -> None:
    """Ask, and capture until it is done."""
    with site.open() as store:
        requests = store.requests.ask("retry", [ORDERS])
        with RunningCapture(site) as capture:
            wait_until(lambda: store.requests.get([requests[0].id])[0].ended_at is not None, 60)
            answered = store.requests.get([requests[0].id])[0]
            assert answered.state is RequestState.DONE, answered.detail
            capture.catch_up()
            assert_equals_source(site, [("public", "people"), ("public", "orders")])


def test_the_others_go_on_and_frames_in_quarantine_are_decoded_in_order(
    site: Site, break_orders: Callable[[bool], None]
) -> None:
    site.init()
    break_orders(True)
    with RunningCapture(site) as capture:
        capture.catch_up()
        change(site, 100)
        capture.catch_up()
        execute(site.dsn, "ALTER TABLE orders RENAME COLUMN person TO buyer", "TRUNCATE orders")
        change(site, 200)
        execute(  # larger than an epoch: it comes in parts
            site.dsn,
            "INSERT INTO orders SELECT i, 1, repeat('x', 100) FROM generate_series(1000, 2000) i;"
            " UPDATE people SET name = 'in the middle'; UPDATE orders SET note = note || 'y' WHERE id > 1500",
        )
        capture.catch_up()
        store = capture.store
        assert any("shop.public.orders is in quarantine" in text for text in capture.status.messages)
        assert capture.is_complete(PEOPLE)
        [entry] = quarantined_topics(store.catalog, "shop")
        assert (entry.topic, entry.keeps) == (ORDERS, True)
        assert entry.frames > 1500
        assert entry.error == "its rows could not be built (Refused)"
        with pytest.raises(IncompleteTopic, match="in quarantine since"):
            next(iter(state(store, ORDERS, store.cut())), None)
        assert [each.equal for each in site.verify(PEOPLE)] == [True]
    break_orders(False)
    retry(site)
    with site.open() as store:
        assert_sound(store)
        assert quarantined_topics(store.catalog) == []
        assert [path for path in store.storage.list() if path.endswith(".frames")] == []
        assert sum(row["_op"] == "t" for row in rows(store, ORDERS)) > 0


KILLS = [
    (f"{BROKEN},frames_kept:1", "frames_retried:1"),
    (f"{BROKEN},inside_commit:2", "inside_commit:1"),
]


@pytest.mark.parametrize(("keeping", "decoding"), KILLS)
def test_kill_while_frames_go_into_quarantine_or_are_decoded_loses_and_doubles_nothing(
    site: Site, break_orders: Callable[[bool], None], keeping: str, decoding: str
) -> None:
    init_and_load(site)
    change(site, 100)
    execute(
        site.dsn,
        "INSERT INTO orders SELECT i, 1, repeat('x', 100) FROM generate_series(1000, 1400) i; "
        "UPDATE people SET name = 'in the middle'",
    )
    with CaptureProcess(site, failpoint=keeping) as process:
        change(site, 200)
        assert process.wait(60) == KILLED, process.output
    break_orders(True)
    with RunningCapture(site) as capture:
        capture.catch_up()
        assert [each.topic for each in quarantined_topics(capture.store.catalog)] == [ORDERS]
    with site.open() as store:
        store.requests.ask("retry", [ORDERS])
    with CaptureProcess(site, failpoint=decoding) as process:
        assert process.wait(60) == KILLED, process.output
    break_orders(False)
    retry(site)
    with site.open() as store:
        assert_sound(store)


def test_a_table_without_columns_is_in_quarantine_until_it_is_read_again(site: Site) -> None:
    """A cause of which no newer version makes rows: the other remedy."""
    execute(site.dsn, "CREATE TABLE public.bare (n int)", "ALTER TABLE bare REPLICA IDENTITY FULL")
    site.init()
    bare = table("bare")
    with RunningCapture(site) as capture:
        capture.catch_up()
        execute(site.dsn, "INSERT INTO bare VALUES (1)")
        capture.catch_up()
        execute(site.dsn, "ALTER TABLE bare DROP COLUMN n", "INSERT INTO bare DEFAULT VALUES")
        change(site, 100, 3)
        capture.wait_until(lambda: len(quarantined_topics(capture.store.catalog)) == 1)
        [entry] = quarantined_topics(capture.store.catalog)
        assert entry.topic == bare
        assert "has no columns" in entry.error
        [request] = capture.store.requests.ask("retry", [bare])
        failed = lambda: capture.store.requests.get([request.id])[0].state is RequestState.FAILED  # noqa: E731
        capture.wait_until(failed)
        assert "has no columns" in capture.store.requests.get([request.id])[0].detail
        execute(site.dsn, "ALTER TABLE bare ADD COLUMN m int", "INSERT INTO bare VALUES (5)")
        capture.store.requests.ask("snapshot", [bare])
        capture.wait_until_complete(bare)
        capture.catch_up()
        assert quarantined_topics(capture.store.catalog) == []
        assert_equals_source(site)
        assert_sound(capture.store)


def test_protected_columns_are_protected_in_quarantine(
    site: Site, break_orders: Callable[[bool], None]
) -> None:
    secret = "Zq7x-nobody-may-read-this"
    policies = {
        "public.orders.note": "hash",
        "public.orders.person": "drop",
        "public.orders.address": "truncate:2",
    }
    execute(
        site.dsn, "ALTER TABLE orders ADD COLUMN address text", "ALTER TABLE orders REPLICA IDENTITY FULL"
    )
    guarded = site.with_settings(columns=policies, hash_key="only the environment knows this key")
    guarded.init()
    break_orders(True)
    with RunningCapture(guarded) as capture:
        capture.catch_up()
        execute(
            site.dsn,
            f"INSERT INTO orders SELECT i, 7654321, '{secret}', '{secret}' FROM generate_series(30, 50) i",  # noqa: S608
            f"UPDATE orders SET note = note || '{secret}' WHERE id > 40; UPDATE orders SET id = id + 100 WHERE id < 35",  # noqa: S608
        )
        capture.catch_up()
    with guarded.open() as store:
        [entry] = quarantined_topics(store.catalog)
        assert entry.keeps
        found = first_frames(store.catalog, store.storage, ORDERS)
        assert found is not None
        plain = undecoded.unpack(found[1]).data
        assert secret.encode() not in plain
        assert b"7654321" not in plain
        assert b"Zq" in plain
    break_orders(False)
    retry(guarded)
    with guarded.open() as store:
        assert_sound(store)
        assert places_of(store, guarded.root, secret, "7654321") == []


@pytest.mark.slow  # tests/cdc/columnar/test_protect.py has the rule
def test_no_exchange_of_names_shows_a_protected_column_in_quarantine(
    site: Site, break_orders: Callable[[bool], None]
) -> None:
    secret = "Zq7x-nobody-may-read-this"
    execute(site.dsn, "ALTER TABLE orders ADD COLUMN address text")
    guarded = site.with_settings(columns={"public.orders.address": "drop"})
    guarded.init(ddl=False)
    break_orders(True)
    with RunningCapture(guarded) as capture:
        capture.catch_up()
        execute(
            site.dsn,
            "INSERT INTO orders (id, note) VALUES (30, 'is found')",
        )
        capture.wait_until(lambda: bool(quarantined_topics(capture.store.catalog)))
        capture.catch_up()
        execute(
            site.dsn,
            "ALTER TABLE orders DROP COLUMN note",
            "ALTER TABLE orders RENAME COLUMN address TO note",
            "ALTER TABLE orders ADD COLUMN address text",
            f"INSERT INTO orders (id, note) VALUES (31, '{secret}')",  # noqa: S608
        )
        capture.catch_up()
    with guarded.open() as store:
        assert [entry.keeps for entry in quarantined_topics(store.catalog)] == [False]
        found = first_frames(store.catalog, store.storage, ORDERS)
        assert found is None or secret.encode() not in undecoded.unpack(found[1]).data
