"""Archives, as an operator sees them."""

from __future__ import annotations

from contextlib import closing

import pyarrow.parquet as pq

from eventstore.log import Store
from eventstore.settings import StoreSettings
from tests.cli.conftest import Project
from tests.eventstore.shop import ORDERS, batch, writer

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
