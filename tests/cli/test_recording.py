"""``capture --record`` and ``source replay``, as an operator types them."""

from __future__ import annotations

import psycopg

from tests.cli.conftest import Project


def test_what_capture_records_is_decoded_again_without_a_server(shop: Project) -> None:
    shop.ok("init")
    shop.ok("capture", "--until-idle")
    with psycopg.connect(shop.environment["SHOP_DSN"], autocommit=True) as connection:
        connection.execute("UPDATE orders SET amount = amount + 1 WHERE id <= 3")
    shop.ok("capture", "--until-idle", "--record", "trouble.rec")
    again = shop.run("capture", "--until-idle", "--record", "trouble.rec")
    assert again.code == 2 and "trouble.rec exists already" in again.err

    shop.environment["SHOP_DSN"] = "postgresql://nobody@localhost:1/none"
    played = shop.ok("source", "replay", "trouble.rec", "--into", "replayed")
    assert "3 changes of 1 transaction in 1 topic" in played.out
    assert shop.run("source", "replay", "trouble.rec", "--into", "replayed").code == 2
    assert shop.run("source", "replay", "tailrace.toml", "--into", "other").code == 2
    assert not (shop.folder / "other").exists()
    listed = shop.ok("--config", "replayed/tailrace.toml", "topic", "list")
    assert "shop.public.orders" in listed.out
