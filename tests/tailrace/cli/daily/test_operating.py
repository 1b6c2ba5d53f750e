"""Operating a capture: how far it is can be seen from anywhere, and what will bite is found beforehand."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tailrace.embedded import PostgresServer
from tailrace.eventstore.model.position import parse_lsn
from tests.tailrace.conftest import Project, until

RUNGS = ("head", "sent", "received", "durable")
Samples = dict[tuple[str, str], float]


def scrape(port: int) -> Samples:
    """(name, rung or "") -> value, of the source and of the log; empty while nobody listens."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
    except URLError:
        return {}
    return {
        (sample.name, sample.labels.get("rung", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("source", "shop") == "shop"
    }


def served_port(capture: subprocess.Popen[str]) -> int:
    """Where a capture that was started says that its metrics are."""
    assert capture.stderr is not None
    for line in capture.stderr:
        if found := re.search(r"metrics at http://127\.0\.0\.1:(\d+)/metrics", line):
            return int(found[1])
    pytest.fail("it ended without metrics")


def scraped(port: int, wanted: Callable[[Samples], bool]) -> Samples:
    """The first scrape that has all rungs and for which ``wanted`` holds. A server under load may not answer a scrape
    in time, which then has no rungs; the next one is another moment."""
    found: Samples = {}

    def has_all() -> bool:
        found.clear()
        found.update(scrape(port))
        return all(("tailrace_source_position_bytes", rung) in found for rung in RUNGS) and wanted(found)

    until(has_all)
    return found


def told_by_status(project: Project) -> dict[str, Any]:
    """The source in ``status --json``, as soon as the server has answered it in time."""
    found: list[dict[str, Any]] = []

    def answered() -> bool:
        (status,) = project.ok("status", "--json").documents
        found[:] = status["sources"]
        return found[0]["ladder"] is not None

    until(answered)
    return found[0]


def assert_descending(positions: list[float]) -> None:
    assert positions == sorted(positions, reverse=True) and positions[-1] > 0


@pytest.mark.slow
@pytest.mark.versions
def test_status_and_metrics_show_how_far_a_capture_in_another_process_is(
    shop: Project, database: str, postgres: PostgresServer
) -> None:
    shop.ok("init")
    taken = shop.run("capture", "--metrics-port", str(postgres.port))
    assert taken.code == 7 and f"metrics cannot be served on 127.0.0.1:{postgres.port}" in taken.err
    shop.configure((shop.folder / "tailrace.toml").read_text() + "\n[metrics]\nport = 0\n")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            f"ALTER DATABASE {connection.info.dbname} SET logical_decoding_work_mem = '64kB'".encode()
        )
    capture = shop.start("capture")
    port = served_port(capture)
    position = ("tailrace_source_position_bytes", "durable")
    before = scraped(port, lambda found: found[position] > 0)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE orders SET amount = amount + 1")
        connection.execute("SELECT pg_logical_emit_message(true, 'bulk', repeat('x', 100000))")
        row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    reached = parse_lsn(row[0])
    after = scraped(
        port,
        lambda found: (
            found[position] >= reached
            and found["tailrace_capture_transactions_total", ""] >= 1
            and found["tailrace_slot_spilled_transactions_total", ""] >= 1
        ),
    )
    assert before["tailrace_slot_spilled_transactions_total", ""] == 0
    assert after["tailrace_slot_spilled_bytes_total", ""] >= 100_000

    for found in (before, after):
        assert_descending([found["tailrace_source_position_bytes", rung] for rung in RUNGS])
        lags = [found["tailrace_source_lag_bytes", rung] for rung in RUNGS[1:]]
        assert lags == sorted(lags) and lags[0] >= 0
        assert found["tailrace_source_up", ""] == 1
        assert found["tailrace_slot_retained_bytes", ""] > 0
        assert ("tailrace_slot_remaining_bytes", "") not in found, "this server sets no limit"
    for name in ("tailrace_capture_epochs_total", "tailrace_capture_changes_total"):
        assert after[name, ""] > before.get((name, ""), 0)
    assert after[position] > before[position]

    source = told_by_status(shop)
    assert_descending([source["ladder"][rung] for rung in RUNGS])
    assert source["slow"] == "" and source["slot_lost_in_seconds"] is None
    assert shop.end(capture, signal.SIGTERM).code == 0

    with psycopg.connect(database, autocommit=True) as connection:  # a little WAL that reaches far
        for _ in range(2):
            connection.execute("UPDATE orders SET amount = amount + 1 WHERE id = 1")
            connection.execute("SELECT pg_switch_wal()")
        connection.execute("UPDATE orders SET amount = amount + 1 WHERE id = 1")
    source = told_by_status(shop)
    assert source["ladder"]["sent"] is source["ladder"]["received"] is None
    assert source["slow"] == "no capture is connected"
    assert source["ladder"]["retained_bytes"] >= source["behind_bytes"] > 16 << 20
    shown = shop.ok("status").out
    assert "slot lost in" in shown and "no limit" in shown


@pytest.fixture
def keep_size(postgres: PostgresServer) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A session that may set ``max_slot_wal_keep_size`` of the server, which is reset afterwards."""
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        try:
            yield connection
        finally:
            connection.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
            connection.execute("SELECT pg_reload_conf()")


def set_keep_size(connection: psycopg.Connection[tuple[object, ...]], megabytes: int) -> None:
    connection.execute(f"ALTER SYSTEM SET max_slot_wal_keep_size = '{megabytes}MB'".encode())
    connection.execute("SELECT pg_reload_conf()")
    setting = "SELECT setting::int FROM pg_settings WHERE name = 'max_slot_wal_keep_size'"
    until(lambda: connection.execute(setting.encode()).fetchone() == (megabytes,))


def findings(project: Project, code: int) -> dict[str, dict[str, str]]:
    """What doctor does not find well of the source, by subject."""
    done = project.run("doctor", "--json")
    (report,) = done.documents
    assert done.code == code, report
    return {
        check["subject"].removeprefix("source shop "): check
        for check in report["checks"]
        if check["subject"].startswith("source shop") and check["verdict"] != "ok"
    }


@pytest.mark.versions
def test_doctor_finds_what_will_bite_a_captured_source_and_nothing_on_a_healthy_one(
    shop: Project, database: str, keep_size: psycopg.Connection[tuple[object, ...]]
) -> None:
    store = "t" + database.rpartition("_")[2]
    set_keep_size(keep_size, 4096)
    shop.ok("init")
    shop.ok("capture", "--once")
    assert findings(shop, 0) == {}

    set_keep_size(keep_size, 100)
    with psycopg.connect(database, autocommit=True) as connection:
        for statement in (
            f"ALTER DATABASE {connection.info.dbname} SET wal_sender_timeout = 0",
            f"ALTER PUBLICATION {store}_shop DROP TABLE orders",
            "CREATE TABLE keyless (a int)",
            "CREATE UNLOGGED TABLE fleeting (id int PRIMARY KEY)",
            f"SELECT pg_create_logical_replication_slot('{store}_former', 'pgoutput')",
            f"SELECT pg_drop_replication_slot('{store}_shop')",
        ):
            connection.execute(statement.encode())
    found = findings(shop, 7)
    wanted = {
        "slot": ("fail", f"{store}_shop is missing", "tailrace source repair"),
        "slots": ("warn", f"{store}_former belongs to no", f"pg_drop_replication_slot('{store}_former')"),
        "max_slot_wal_keep_size": ("warn", "100 MB", "ALTER SYSTEM SET max_slot_wal_keep_size"),
        "wal_sender_timeout": ("warn", "0: a capture", "ALTER SYSTEM SET wal_sender_timeout"),
        "public.orders": ("warn", "it left the publication", "init"),
        "public.keyless": ("warn", "so changed rows cannot be identified", "REPLICA IDENTITY FULL"),
        "public.fleeting": ("warn", "an unlogged table has no WAL", "SET LOGGED"),
    }
    assert found.keys() == wanted.keys()
    for subject, (verdict, what, remedy) in wanted.items():
        assert found[subject]["verdict"] == verdict
        assert what in found[subject]["found"] and remedy in found[subject]["remedy"], found[subject]
