"""A stream that makes trouble, as an operator meets it: what is in quarantine, recorded, decoded again."""

from __future__ import annotations

import signal

import psycopg
import pytest

from tests.tailrace.conftest import Project


@pytest.mark.slow
def test_a_table_is_set_aside_and_retried_and_a_recording_is_decoded_without_a_server(shop: Project) -> None:
    shop.ok("init")
    shop.ok("capture", "--until-idle")
    with psycopg.connect(shop.environment["SHOP_DSN"], autocommit=True) as connection:
        connection.execute("UPDATE orders SET amount = amount + 1 WHERE id <= 3")
    broken = {"TAILRACE_FAILPOINT": "table_decoded=shop.public.orders"}
    captured = shop.run("capture", "--until-idle", "--record", "trouble.rec", environment=broken)
    assert captured.code == 0
    assert "shop.public.orders is in quarantine, the others go on" in captured.err + captured.out
    (document,) = shop.ok("status", "--json").documents
    (aside,) = document["quarantine"]
    assert aside["topic"] == "shop.public.orders" and aside["undecoded"][0] == 3 and aside["frame"] is None
    assert "source retry shop.public.orders" in " ".join(shop.ok("status").out.split())

    assert shop.run("source", "retry", "shop.public.customers").code == 2
    capture = shop.start("capture")
    assert "shop.public.orders: decoded" in shop.ok("source", "retry", "shop").out
    assert "nothing is quarantined" in shop.ok("source", "retry").out
    shop.end(capture, signal.SIGTERM)

    again = shop.run("capture", "--record", "trouble.rec")
    assert again.code == 2 and "trouble.rec exists already" in again.err
    assert (
        "3 changes of 1 transaction in 1 topic"
        in shop.ok("source", "replay", "trouble.rec", "--into", "b").out
    )
    assert shop.run("source", "replay", "trouble.rec", "--into", "b").code == 2
    assert "shop.public.orders" in shop.ok("--config", "b/tailrace.toml", "topic", "list").out
