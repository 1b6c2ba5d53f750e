"""Parts of the demo; the whole of it is `make demo`, which checks itself."""

from __future__ import annotations

import io
import json
import signal
from pathlib import Path

import psycopg
import pytest

from tailrace.demo import story
from tailrace.demo.screen import Screen
from tailrace.demo.workload import Workload, seed, wait_for
from tailrace.demo.workspace import workspace
from tailrace.eventstore.errors import DifferenceFound
from tailrace.terminal import Output
from tests.tailrace.conftest import Project


@pytest.mark.slow
def test_the_shop_works_with_events_in_the_same_transactions_and_its_code_can_be_broken() -> None:
    with workspace() as place:
        assert seed(place.source) == 22_500
        place.run("init", "--events")
        (report,) = place.run("doctor")
        wired = {each["subject"] for each in report["checks"] if each["verdict"] == "ok"}
        assert {
            f"projection {name}" for name in ("customer_totals", "order_cache", "product_search")
        } <= wired
        assert story._GOOD_LINE in (place.folder / "shop" / "projections.py").read_text()
        workload = Workload(place.source)
        workload.start()
        assert wait_for(workload, 200, 60)
        workload.stop()
        assert workload.error is None
        with psycopg.connect(place.source) as connection:
            row = connection.execute("SELECT count(*), count(DISTINCT type) FROM tailrace.events").fetchone()
            # Each order of the workload has the event of the transaction that placed it.
            without = connection.execute(
                "SELECT count(*) FROM orders o WHERE id > 20000 AND NOT EXISTS ("
                "SELECT FROM tailrace.events WHERE category = 'order' AND stream = o.id::text AND version = 1)"
            ).fetchone()
        assert row is not None
        assert row[0] == sum(workload.committed[kind] for kind in ("place", "pay", "ship", "cancel"))
        assert row[1] >= 3
        assert without == (0,)
        folder = place.folder
    assert not folder.exists()


def test_a_failed_check_fails_the_demo() -> None:
    shown = io.StringIO()
    screen = Screen(Output(stdout=shown, stderr=shown))
    screen.step("A step", "why")
    screen.check(True, "one holds")
    screen.verdict()
    screen.check(False, "two does not")
    screen.line_of_result()
    with pytest.raises(DifferenceFound, match="1 of 2 checks of the demo failed: two does not"):
        screen.verdict()
    assert "FAIL two does not" in shown.getvalue()
    assert "2 checks, 1 FAILED" in shown.getvalue()


@pytest.mark.slow
def test_ctrl_c_stops_the_demo_and_leaves_nothing(project: Project, tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    project.forked = False
    project.environment["TMPDIR"] = str(made)
    demo = project.start("demo", "--json")
    assert demo.stdout is not None
    for line in demo.stdout:
        if json.loads(line).get("title") == "First load":
            break
    done = project.end(demo, signal.SIGINT)
    assert done.code == 130
    assert list(made.iterdir()) == []
