"""Upkeep from the command line: on a schedule beside a capture, and by hand."""

from __future__ import annotations

import signal

import psycopg
import pytest

from tailrace.embedded.process import free_port
from tests.support.imports import imported_in_threads
from tests.tailrace.cli.daily.test_operating import scrape
from tests.tailrace.conftest import Project, until


@pytest.mark.slow
def test_a_running_capture_keeps_the_log_in_order_and_status_and_metrics_show_it(
    shop: Project, database: str
) -> None:
    text = (shop.folder / "tailrace.toml").read_text()
    shop.configure(text + "\n[store.upkeep]\nevery_seconds = 1\nseal_epochs = 2\nkeep_seconds = 0\n")
    shop.ok("init")
    port = free_port()
    capture = shop.start("capture", "--metrics-port", str(port))
    until(lambda: scrape(port).get(("tailrace_source_position_bytes", "durable"), 0) > 0)

    def a_round_has_sealed() -> bool:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("UPDATE orders SET amount = amount + 1 WHERE id = 1")
        (found,) = shop.ok("status", "--json").documents
        last = found["upkeep"]["last"]
        return last is not None and last["sealed_epochs"] > 0

    until(a_round_has_sealed)
    until(lambda: ("tailrace_upkeep_seconds", "") in scrape(port))
    metrics = scrape(port)
    assert metrics["tailrace_upkeep_finished_timestamp_seconds", ""] > 0
    assert metrics["tailrace_catalog_epoch_rows", ""] >= metrics["tailrace_unsealed_epochs", ""]
    assert metrics["tailrace_log_files", ""] >= 1
    shop.ok("verify", "--source")
    assert shop.end(capture, signal.SIGTERM).code == 0
    assert "last round" in shop.ok("status").out

    (by_hand,) = shop.ok("store", "maintain", "--json").documents
    assert by_hand["seconds"] > 0
    (found,) = shop.ok("status", "--json").documents
    assert found["upkeep"]["unsealed_epochs"] == 0 and found["upkeep"]["retired_files"] == 0
    assert shop.ok("store", "maintain").out == "nothing to do\n"


@pytest.mark.slow
def test_no_thread_of_a_capture_imports_modules_that_another_may_import_too(shop: Project) -> None:
    """The load, the stream and upkeep, in an interpreter that has imported nothing before."""
    text = (shop.folder / "tailrace.toml").read_text()
    shop.configure(text + "\n[store.upkeep]\nevery_seconds = 1\nseal_epochs = 1\n")
    shop.ok("init")
    assert imported_in_threads(shop, "capture", "--for", "3") == []


def test_a_round_that_fails_is_said_and_capture_goes_on(shop: Project, database: str) -> None:
    text = (shop.folder / "tailrace.toml").read_text()
    shop.configure(text + "\n[store.upkeep]\nevery_seconds = 1\nseal_epochs = 1\n")
    shop.environment["TAILRACE_FAILPOINT"] = "seal_written"  # only upkeep passes there
    shop.ok("init")
    capture = shop.start("capture", "--for", "300")
    until(lambda: shop.ok("status", "--json").documents[0]["sources"][0]["state"] == "loaded")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE orders SET amount = amount + 1 WHERE id = 1")
    assert capture.stderr is not None
    assert any("upkeep failed, capture goes on: ended by SIGKILL" in line for line in capture.stderr)
    shop.ok("verify", "--source")
    assert shop.end(capture, signal.SIGTERM).code == 0
    del shop.environment["TAILRACE_FAILPOINT"]
    assert shop.ok("store", "maintain", "--json").documents[0]["orphans"] > 0
