"""``tailrace status`` beyond positions."""

from __future__ import annotations

import signal
from contextlib import closing

import psycopg
import pytest

from tailrace.eventstore.metadata import refused_messages
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tests.eventstore.shop import register
from tests.tailrace.conftest import Project, streams, until


def test_messages_that_were_not_believed_are_counted_for_good(project: Project) -> None:
    project.configure('[sources.shop]\ndsn = "postgresql://127.0.0.1:1/x"\n')
    with closing(Store.open(StoreSettings(), create=True, root=project.folder)) as store:
        register(store)
        assert "not believed" not in project.ok("status").out
        for counts in ({"forged": 2, "marks": 1}, {"forged": 3}):
            refused_messages.add(store.catalog, "shop", counts)
    shown = project.ok("status").out
    assert "not believed, without effect" in shown and "forged" in shown
    (document,) = project.ok("status", "--json").documents
    (source,) = document["sources"]
    assert [(each["kind"], each["number"]) for each in source["refused"]] == [("forged", 5), ("marks", 1)]


@pytest.mark.slow
def test_who_captures_is_said_and_a_topic_without_a_table_is_named_until_it_is_retired(
    shop: Project, database: str
) -> None:
    shop.ok("init", "--no-ddl")
    assert "shop: no capture runs: tailrace capture shop" in shop.ok("status").out
    capture = shop.start("capture")
    until(lambda: streams(shop))
    assert f":{capture.pid} since 20" in shop.ok("status").out
    (source,) = shop.ok("status", "--json").documents[0]["sources"]
    assert source["capture"]["process"].endswith(f":{capture.pid}") and source["capture"]["problem"] == ""
    assert source["unknown"] == []
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP TABLE orders")
    until(lambda: bool(shop.ok("status", "--json").documents[0]["sources"][0]["unknown"]))
    named = "shop.public.orders  its table was dropped  tailrace topic retire shop.public.orders"
    assert named in shop.ok("status").out
    assert shop.run("verify", "--source").code == 6
    assert "is retired since epoch" in shop.ok("topic", "retire", "shop.public.orders").out
    assert "retired already" in shop.ok("topic", "retire", "shop.public.orders").out
    assert "orders" not in shop.ok("status").out
    assert "equals its source" in shop.ok("verify", "--source").out
    assert shop.run("topic", "retire", "shop.public.customers").code == 2
    shop.end(capture, signal.SIGTERM)
    assert "shop: no capture runs" in shop.ok("status").out
    alone = shop.run("verify", "--source")
    assert alone.code == 6 and "no capture runs" in alone.err
