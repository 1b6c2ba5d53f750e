"""Redaction, as whoever got an order to erase sees it: what would go, what went, where it may still be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tests.eventstore.shop import CUSTOMERS, ORDERS, batch, writer
from tests.tailrace.conftest import Project

CONFIGURATION = """
[sources.shop]
dsn = "postgresql://127.0.0.1:1/x"
[env.prod]
protected = true
"""
ERASE = ("log", "redact", ORDERS.text, "--key", "8")


@pytest.fixture
def store(project: Project) -> Iterator[Store]:
    """A log with five changes of order 8, the last of which only files hold."""
    project.configure(CONFIGURATION)
    with closing(Store.open(StoreSettings(inline_bytes=2000), create=True, root=project.folder)) as store:
        capture = writer(store)
        for lsn in range(1, 5):
            capture.append(batch(lsn, orders=[("u", 9), ("u", 8)]))
        everything = [("u", key) for key in range(60)]
        capture.append(batch(5, orders=everything, customers=[("c", 8)], completes=[ORDERS, CUSTOMERS]))
        yield store


def test_it_says_what_would_go_what_went_and_where_values_may_still_be(
    project: Project, store: Store
) -> None:
    planned = project.ok(*ERASE, "--dry-run").out
    assert planned.startswith(f"would erase 5 rows in 5 files: note of {ORDERS.text}, key 8\n")
    assert "2.1" in project.ok("log", "show", ORDERS.text, "8").out

    done = project.ok(*ERASE, "--now").out
    assert done.startswith(f"erased 5 rows: note of {ORDERS.text}, key 8\n")
    assert "epoch 6 tells readers that follow" in done and "rows of epochs after 5 stay as they are" in done
    for place in ("the catalog's database", "source shop", "copies"):
        assert f"\n  {place}: " in done
    assert "replaced file" not in done, "--now removed them"

    shown = project.ok("log", "show", ORDERS.text, "8").out
    assert "Erased" in shown and "2.1" not in shown
    listed = project.ok("log", "redactions").out.splitlines()
    assert [line.split()[0] for line in listed] == ["epoch", "6"] and "note" in listed[1]
    assert "8" in listed[1] and ORDERS.text in listed[1]
    assert project.ok(*ERASE).out.startswith("nothing is left to erase: note of")
    project.ok("log", "verify")


def test_a_script_reads_the_receipt(project: Project, store: Store) -> None:
    (planned,) = project.ok("--json", *ERASE, "--dry-run").documents
    assert (planned["dry_run"], planned["rows"], planned["epoch"]) == (True, 5, 0)
    (done,) = project.ok("--json", *ERASE, "--columns", "note").documents
    assert (done["dry_run"], done["rows"], done["upto"], done["epoch"]) == (False, 5, 5, 6)
    assert (done["topic"], done["keys"], done["columns"]) == (ORDERS.text, [["8"]], ["note"])
    assert done["files"] and {"place", "detail", "remedy"} == {*done["remnants"][0]}
    (kept,) = project.ok("--json", "log", "redactions").documents
    assert {name: kept[name] for name in ("rows", "keys", "files")} == {
        name: done[name] for name in ("rows", "keys", "files")
    }


def test_what_cannot_be_erased_is_said_and_a_protected_environment_asks_after_it_told(
    project: Project, store: Store
) -> None:
    for words, *arguments in (
        ("no topic shop.public.order in the log", "shop.public.order", "--key", "8"),
        ("has no column 'email'", ORDERS.text, "--key", "8", "--columns", "note,email"),
        ("--wait and --now exclude each other", ORDERS.text, "--key", "8", "--wait", "--now"),
    ):
        done = project.run("log", "redact", *arguments)
        assert done.code == 2 and words in done.err and " hint: " in done.err, done.err
    asked = project.run("--env", "prod", *ERASE)
    assert asked.code == 2 and "run it with --yes" in asked.err
    assert asked.out.startswith("would erase 5 rows")
    assert project.ok("log", "redactions").out == "nothing was erased\n"
    assert "erased 5 rows" in project.ok("--env", "prod", "--yes", *ERASE).out


def test_who_reads_a_table_again_is_told_first_that_erased_values_may_come_back_and_how_to_erase_them(
    project: Project, store: Store
) -> None:
    again = ("source", "snapshot", ORDERS.text, "--no-wait")
    assert "erased" not in project.ok(*again).err
    project.ok(*ERASE, "--columns", "note")
    asked = project.run("--env", "prod", *again)
    assert asked.code == 2 and "run it with --yes" in asked.err
    told = asked.err
    assert f"rows of {ORDERS.text} were erased (1 redaction)" in told
    assert told.index("were erased") < told.index("run it with --yes")
    assert f"  tailrace log redact {ORDERS.text} --key 8 --columns note\n" in told
    assert "were erased" in project.ok(*again).err
