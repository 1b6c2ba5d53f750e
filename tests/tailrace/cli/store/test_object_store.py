"""Segments in an object store from the command line: what is wrong with it is said, and a store moves there."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import psycopg
import pytest

from tailrace.embedded.process import free_port
from tests.support.capturing import wait_until
from tests.support.object_store import ENVIRONMENT, S3Server
from tests.tailrace.conftest import Project, streams, until

STEPS = (
    "move_claimed", "move_closed", "move_file_copied", "move_rows_copied", "move_arrived",
    "move_marked",
)  # fmt: skip


@pytest.fixture
def objects(shop: Project, s3: S3Server, bucket: str) -> Iterator[Project]:
    """A project whose new store is to have its segments in a bucket."""
    set_store(shop, f'store.segments = "s3://{bucket}/shop"', f'store.s3.endpoint = "{s3.endpoint}"')
    yield shop
    s3.demand_users(False)


def set_store(shop: Project, *lines: str) -> None:
    """More keys of ``[store]``, instead of those of before."""
    text = (shop.folder / "tailrace.toml").read_text().splitlines()
    kept = [line for line in text if not line.startswith("store.") or line.startswith("store.name")]
    shop.configure("\n".join([*lines, *kept]))


@pytest.mark.slow
def test_what_is_wrong_with_an_object_store_is_said_before_anything_is_made(
    objects: Project, s3: S3Server, bucket: str
) -> None:
    config = (objects.folder / "tailrace.toml").read_text()

    def refused(code: int, *words: str) -> None:
        done = objects.run("init")
        assert done.code == code and all(word in done.err for word in words), done.err
        assert ENVIRONMENT["AWS_SECRET_ACCESS_KEY"] not in done.err
        assert not (objects.folder / ".tailrace").exists()
        assert words[0] in objects.run("doctor").out

    objects.configure(config.replace(bucket, "no-such-bucket"))
    refused(7, "s3://no-such-bucket/shop/probe/", "bucket does not exist", "Tailrace makes none")
    objects.configure(config.replace(str(s3.port), str(free_port())))
    refused(6, "out of reach", "check store.s3.endpoint")
    objects.configure(config)
    s3.demand_users(True)
    refused(7, "was refused", "AWS_ACCESS_KEY_ID")
    s3.demand_users(False)
    objects.configure(config.replace(f"s3://{bucket}", f"s3://key:a-secret@{bucket}"))
    done = objects.run("init")
    assert done.code == 2 and "must be s3://BUCKET" in done.err and "a-secret" not in done.err
    objects.configure(config)
    objects.ok("init")
    assert "an object was written, read, listed and removed" in objects.run("doctor").out


@pytest.mark.slow
def test_a_move_that_is_killed_at_any_step_goes_on_and_capture_goes_on_in_the_new_place(
    shop: Project, database: str, s3: S3Server, bucket: str
) -> None:
    shop.environment["CATALOG_URL"] = shop.environment["SHOP_DSN"]
    set_store(shop, "store.inline_bytes = 0")
    shop.ok("init")
    capture = shop.start("capture")
    until(lambda: streams(shop))
    place = f"s3://{bucket}/shop"
    move = ("store", "move", "--catalog", "${CATALOG_URL}", "--segments", place, "--endpoint", s3.endpoint,
            "--encryption", "AES256")  # fmt: skip
    refused = shop.run(*move)
    assert refused.code == 7 and "a capture of source shop is running (slot t" in refused.err
    assert shop.end(capture, signal.SIGTERM).code == 0
    before = shop.ok("log", "tail", "--json").out

    for step in STEPS:
        done = shop.run(*move, environment={"TAILRACE_FAILPOINT": step})
        assert done.code == -signal.SIGKILL, f"{step}: {done.err}"
        if step != "move_claimed":
            done = shop.run("status")
            assert done.code == 7 and "moved to catalog on Postgres" in done.err and place in done.err
    done = shop.ok(*move)
    for line in ('catalog = "${CATALOG_URL}"', f'segments = "{place}"', f'endpoint = "{s3.endpoint}"',
                 'encryption = "AES256"'):  # fmt: skip
        assert line in done.out
    assert "all compared" in done.out
    done = shop.run("capture", "--once")
    assert done.code == 7 and "this store was moved to" in done.err and place in done.err

    set_store(
        shop,
        'store.catalog = "${CATALOG_URL}"',
        f'store.segments = "{place}"',
        f'store.s3.endpoint = "{s3.endpoint}"',
        'store.s3.encryption = "AES256"',
    )
    assert shop.ok("log", "tail", "--json").out == before
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE orders SET amount = amount + 1 WHERE id = 1")
    capture = shop.start("capture")
    wait_until(lambda: shop.run("verify", "--source").code != 6)  # 6: it does not capture yet
    shop.ok("verify", "--source")
    shop.ok("store", "maintain")
    shop.ok("verify", "--source")
    assert shop.end(capture, signal.SIGTERM).code == 0
