"""``tailrace source snapshot`` and ``source repair``, as an operator types them."""

from __future__ import annotations

import signal

import psycopg
import pytest

from tests.tailrace.conftest import Project, until


def streams(dsn: str) -> bool:
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "SELECT active FROM pg_replication_slots WHERE database = current_database()"
        ).fetchone()
    return bool(found and found[0])


@pytest.mark.slow
def test_tables_are_read_again_on_request_and_a_lost_slot_is_repaired(shop: Project) -> None:
    dsn = shop.environment["SHOP_DSN"]
    shop.ok("init")
    shop.ok("capture", "--until-idle")
    assert shop.run("source", "snapshot", "shop.public.order").code == 2
    left = shop.ok("source", "snapshot", "shop.public.orders", "--rows-per-second", "5000", "--no-wait")
    assert "asked" in left.out
    capture = shop.start("capture")
    until(lambda: streams(dsn))
    read = shop.ok("source", "snapshot", "shop.public.orders", "--json")
    (document,) = read.documents
    assert document["topic"] == "shop.public.orders" and document["state"] == "done"
    shop.end(capture, signal.SIGTERM)

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE database = current_database()"
        )
        connection.execute("UPDATE orders SET amount = 0 WHERE id = 7")
        connection.execute("DELETE FROM orders WHERE id = 8")
    refused = shop.run("capture")
    assert refused.code == 7 and "tailrace source repair" in refused.err
    repaired = shop.ok("source", "repair")
    assert "shop.public.customers: 20 rows, equal" in repaired.out
    assert "0 were missing in the log, 1 were different, 1 are gone from the source" in repaired.out
    assert "nothing to repair" in shop.ok("source", "repair").out
    shop.ok("capture", "--until-idle")
    capture = shop.start("capture")
    assert "DIFFERS" not in shop.ok("verify", "--source").out
    shop.end(capture, signal.SIGTERM)
