"""The page on backing up (docs/operations/running.md), step by step, with the source moving on."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import psycopg
import pytest

from tests.support import REPOSITORY
from tests.support.capturing import wait_until
from tests.tailrace.conftest import Project, until

PAGE = (REPOSITORY / "docs" / "operations" / "running.md").read_text(encoding="utf-8")
PLACE = "/var/backups/tailrace"


def of_the_page(pattern: str, place: Path) -> str:
    found = re.search(pattern, PAGE, re.DOTALL)
    assert found is not None, pattern
    return found[1].replace(PLACE, str(place))


@pytest.mark.slow
def test_a_backup_beside_a_running_capture_is_restored_and_capture_goes_on(
    shop: Project, database: str
) -> None:
    copy = shop.folder / "backups"
    words = of_the_page(r"```sh\ntailrace (store backup .*?)\n```", copy).split()
    overlay = of_the_page(r"```toml\n(\[env\.backup.*?)```", copy)
    restore = of_the_page(r"`(mv \.tailrace .*?)`", copy)
    config = shop.folder / "tailrace.toml"
    config.write_text(config.read_text() + overlay, encoding="utf-8")
    shop.ok("init")
    capture = shop.start("capture")
    with psycopg.connect(database, autocommit=True) as connection:
        until(lambda: shop.ok("status", "--json").documents[0]["sources"][0]["incomplete"] == 0)
        connection.execute("UPDATE orders SET amount = 1 WHERE id <= 5")
        until(lambda: shop.ok("status", "--json").documents[0]["head"]["epoch"] >= 2)
        shop.ok(*words)
        (checked,) = shop.ok("--env", "backup", "log", "verify", "--json").documents
        assert checked["clean"] and checked["epoch"] >= 2
        with connection.transaction():
            connection.execute("UPDATE orders SET amount = 2 WHERE id <= 7")
            connection.execute("DELETE FROM orders WHERE id = 9")
        until(lambda: shop.ok("status", "--json").documents[0]["head"]["epoch"] > checked["epoch"])
        shop.end(capture, signal.SIGTERM)
        subprocess.run(["sh", "-ec", restore], cwd=shop.folder, check=True)
        (restored,) = shop.ok("log", "verify", "--json").documents
        assert (restored["clean"], restored["epoch"], restored["hash"]) == (
            True,
            checked["epoch"],
            checked["hash"],
        )
        refused = shop.run("capture", "--until-idle")
        assert refused.code == 7
        assert "the log reaches only" in refused.err
        assert "tailrace source repair shop" in refused.err
        shop.ok("source", "repair", "shop")
        connection.execute("INSERT INTO orders VALUES (1000, 1, 3)")
    capture = shop.start("capture")
    wait_until(lambda: shop.run("verify", "--source").code != 6)  # 6: it does not capture yet
    assert "DIFFERS" not in shop.ok("verify", "--source").out
    shop.end(capture, signal.SIGTERM)
    assert shop.ok("log", "verify").out.splitlines()[-1] == "the log is what was written"


def test_files_are_held_while_a_command_runs_whose_failure_is_said(shop: Project) -> None:
    shop.ok("init")
    leases = "connect('.tailrace/catalog.db').execute('select count(*) from leases').fetchone()"
    held = shop.ok("store", "hold", "--", "python3", "-c", f"from sqlite3 import connect; print({leases})")
    assert held.out == "(1,)\n"
    failed = shop.run("store", "hold", "--", "sh", "-c", "exit 3", "--json")
    assert failed.code == 7
    assert "sh ended with exit code 3" in failed.err
    assert shop.run("store", "hold", "--", "no-such-command").code == 2
