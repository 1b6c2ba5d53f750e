"""A table that cannot be decoded, as an operator meets it: what ``status`` shows and what ``source retry`` does."""

from __future__ import annotations

import signal

import psycopg

from tests.cli.conftest import Project, until


def test_status_shows_what_is_set_aside_and_retry_decodes_it(shop: Project) -> None:
    shop.ok("init")
    shop.ok("capture", "--until-idle")
    with psycopg.connect(shop.environment["SHOP_DSN"], autocommit=True) as connection:
        connection.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
        connection.execute("UPDATE orders SET amount = 4711 WHERE id = 7")
    shop.environment["TAILRACE_FAILPOINT"] = "table_decoded=shop.public.orders"
    set_aside = shop.ok("capture", "--until-idle")
    del shop.environment["TAILRACE_FAILPOINT"]
    assert "shop.public.orders is set aside, the others go on" in set_aside.err + set_aside.out
    (document,) = shop.ok("status", "--json").documents
    (aside,) = document["set_aside"]
    assert aside["topic"] == "shop.public.orders" and aside["kept"][0] == 1 and aside["frame"] is None
    assert "source retry shop.public.orders" in " ".join(shop.ok("status", "--show-values").out.split())

    assert shop.run("source", "retry", "shop.public.customers").code == 2
    assert "asked" in shop.ok("source", "retry", "shop", "--no-wait").out
    capture = shop.start("capture")
    assert "shop.public.orders: decoded" in shop.ok("source", "retry").out
    assert "nothing is set aside" in shop.ok("source", "retry").out
    assert "DIFFERS" not in shop.ok("verify", "--source").out
    until(lambda: shop.ok("status", "--json").documents[0]["set_aside"] == [])
    shop.end(capture, signal.SIGTERM)
