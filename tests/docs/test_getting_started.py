"""The page for newcomers is followed from its configuration to its reader, on a server of the session."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import psycopg
import pytest

from tests.support import REPOSITORY
from tests.tailrace.conftest import Project, project, until

__all__ = ["project"]  # a fixture

PAGE = (REPOSITORY / "docs" / "getting-started.md").read_text()
DSN = "postgresql://shop@localhost:5433/shop"


def block(language: str, begins: str) -> str:
    """The page's block of a language that begins with a text."""
    (found,) = re.findall(rf"```{language}\n({re.escape(begins)}.*?)```", PAGE, re.DOTALL)
    return str(found)


@pytest.mark.slow
def test_what_the_page_for_newcomers_says_happens(project: Project, database: str) -> None:
    name = database.rpartition("_")[2]  # slots belong to the server: one name per database
    configuration = block("toml", "[store]")
    assert configuration.count(DSN) == 2 and 'name = "acme"' in configuration
    project.configure(configuration.replace(DSN, database).replace('"acme"', f'"t{name}"'))
    project.module("views", block("python", "from pyspark.sql"))
    project.module("read", block("python", "from tailrace import open_reader"))
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(block("sql", "CREATE TABLE customers"))
        assert "add topic  shop.public.orders" in project.ok("init").out
        project.ok("capture", "--until-idle")
        checked, built = project.together(["projection", "check"], ["run", "--once"])
        assert [checked.code, built.code] == [0, 0], built.out
        for line in (
            "ok    customer_totals (views.py:5): incremental",
            "ok    order_lines (views.py:16): incremental, but full when customers changes (no affects=)",
            "ok    order_history (views.py:27): incremental",
        ):
            assert line in checked.out.splitlines() and line in PAGE.splitlines()
        assert built.out.count("3 upserts, 0 deletes, now at epoch 1") == 3
        connection.execute(block("sql", "INSERT INTO orders VALUES (4"))
        capture = project.start("capture")
        until(lambda: "paid" in project.ok("log", "show", "shop.public.orders", "2").out)
        assert "status: placed → paid" in project.ok("log", "show", "shop.public.orders", "2").out
        refreshed, proved = project.together(["run", "--once"], ["verify"])
        assert [refreshed.code, proved.code] == [0, 0], refreshed.out + proved.out
        assert refreshed.out.count("(incremental: shop.public.orders changed, which affects 3 keys)") == 3
        assert "customer_totals g1: equals the log at epoch 2, 3 rows" in proved.out
        assert "equals its source" in project.ok("verify", "--source").out
        assert project.end(capture, signal.SIGTERM).code == 0
    reading = subprocess.run(
        [sys.executable, "read.py"], cwd=project.folder, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert reading.stdout.strip() in PAGE.splitlines()
