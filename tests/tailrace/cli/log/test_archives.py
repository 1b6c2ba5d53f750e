"""Archives, as an operator sees them."""

from __future__ import annotations

import shutil
from contextlib import closing

import pyarrow.parquet as pq
from sqlalchemy import insert, select

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tests.eventstore.shop import CUSTOMERS, ORDERS, batch, writer
from tests.tailrace.conftest import Project

CONFIGURATION = """
[sources.shop]
dsn = "postgresql://127.0.0.1:1/x"
[topics."shop.public.*"]
retention = "1d"
archive = "cold"
"""


def test_what_was_archived_is_said_listed_and_verified(project: Project) -> None:
    project.configure(CONFIGURATION)
    with closing(Store.open(StoreSettings(), create=True, root=project.folder)) as store:
        capture = writer(store)
        for lsn in range(1, 5):
            capture.append(batch(lsn, orders=[("u", key) for key in range(5)]))
        capture.append(batch(9, completes=[ORDERS]))
    (project.folder / "cold").write_text("not mounted")
    refused = project.run("store", "maintain")
    assert refused.code == 7 and "nothing was removed from shop.public.orders" in refused.err
    (project.folder / "cold").unlink()
    assert (
        "removed 20 rows, 5 that make its state stay, archived in cold" in project.ok("store", "maintain").out
    )
    assert "archived in cold: 1 file" in project.ok("topic", "show", ORDERS.text).out
    (file,) = project.ok("topic", "files", ORDERS.text, "--archived").out.splitlines()
    assert pq.ParquetFile(file).metadata.num_rows == 20
    assert "they are archived in cold" in project.run("log", "show", ORDERS.text, "1").err
    project.ok("log", "verify", "--archives")


def test_an_archive_that_is_no_more_is_settled_by_name(project: Project) -> None:
    """Its files are known until somebody says so; one that has them still is not gone."""
    project.configure(CONFIGURATION)
    with closing(Store.open(StoreSettings(), create=True, root=project.folder)) as store:
        capture = writer(store)
        capture.append(batch(1, orders=[("u", key) for key in range(5)], completes=[ORDERS, CUSTOMERS]))
        capture.append(batch(2, orders=[("u", 1)]))
        capture.append(batch(3))
        assert project.ok("log", "archives").out == "nothing was archived\n"
        project.ok("store", "maintain")
        begun = {"place": "nas", "path": "shop/old.parquet", "source": "gone.parquet", "begun_at": 1}
        with (
            store.catalog.write() as connection
        ):  # by an upkeep that was killed, when settings named that archive
            topic_id = connection.execute(
                select(tables.topics.c.id).where(tables.topics.c.name == ORDERS.text)
            )
            connection.execute(insert(tables.archiving).values(topic_id=topic_id.scalar_one(), **begun))
        project.ok("log", "redact", ORDERS.text, "--key", "1", "--now")
        project.ok("store", "maintain")

        listed = [line.split() for line in project.ok("log", "archives", ORDERS.text).out.splitlines()]
        assert [line[0] for line in listed] == ["archive", "cold", "nas"]
        told = project.ok("log", "redactions").err
        assert "archive cold: 1 file\n" in told and "archive nas: 1 unfinished file\n" in told
        kept = project.run("log", "archives", "--gone", "cold")
        assert kept.code == 2 and "is not gone: it has 1 of its files" in kept.err
        unknown = project.run("log", "archives", "--gone", "nass")
        assert unknown.code == 2 and "the log knows of: cold, nas" in unknown.err

        assert (
            "forgot 0 files (0 rows) and 1 unfinished file in nas"
            in project.ok("log", "archives", "--gone", "nas").out
        )
        assert "nas" not in project.ok("log", "redactions").err

        shutil.rmtree(project.folder / "cold")
        capture.append(batch(11, orders=[("u", key) for key in range(9)]))
        capture.append(batch(12))
        hindered = project.run("store", "maintain")
        assert hindered.code == 7 and "does not hold what was archived there" in hindered.err
        project.ok("log", "archives", "--gone", "cold")
        assert "archived in cold" in project.ok("store", "maintain").out
        project.ok("log", "verify", "--archives")
