"""Logical messages, which any role may emit, of any size: long ones pass by, and cost what libpq needs for one."""

from __future__ import annotations

import os
import subprocess
import sys

import psycopg
import psycopg.conninfo
import pytest

from benchmarks.memory import peak_kib
from tailrace.cdc.wire import pgoutput as pg
from tailrace.cdc.wire.replication import without_long_message
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import MESSAGE_BYTES_MIN
from tests.cdc.messages import encode
from tests.support import REPOSITORY
from tests.support.capturing import (
    SOURCE,
    Site,
    assert_equals_source,
    catch_up,
    execute,
    has_replied,
    init_and_capture,
    rows,
)

HEADER = b"w" + bytes(24)
LONG = MESSAGE_BYTES_MIN + 1


def emit(prefix: str, size: int, *, transactional: bool = True) -> str:
    return f"SELECT count(pg_logical_emit_message({transactional}, '{prefix}', repeat('y', {size})))"


def small_decoding_memory(site: Site, protocol: int) -> Site:
    """With protocol 2 the server then streams transactions before their commit."""
    database = psycopg.conninfo.conninfo_to_dict(site.dsn)["dbname"]
    execute(site.dsn, f"ALTER DATABASE \"{database}\" SET logical_decoding_work_mem = '64kB'")
    return site.with_settings(protocol=protocol)


def test_only_a_long_logical_message_is_replaced_by_an_empty_one() -> None:
    message = HEADER + encode(pg.Message(True, 7, "x", b"y" * 100))
    row = HEADER + encode(pg.Insert(1, (b"y" * 100,)))
    assert without_long_message(message, len(message)) is None
    assert without_long_message(row, 10) is None
    empty = without_long_message(memoryview(message), len(message) - 1)
    assert empty is not None and empty[: len(HEADER)] == HEADER
    parsed = pg.decode(empty[len(HEADER) : -4])
    assert parsed == pg.Message(False, 0, "", b"")


@pytest.mark.parametrize("protocol", [1, 2])
def test_a_long_message_of_anybody_is_skipped_and_counted(site: Site, protocol: int) -> None:
    site = small_decoding_memory(site, protocol)
    execute(site.dsn, "CREATE TABLE public.t (id int PRIMARY KEY, v text)")
    with init_and_capture(site) as capture, psycopg.connect(site.dsn) as connection:
        connection.execute("INSERT INTO t VALUES (1, 'before')")
        for prefix in ("note", "tailrace.ddl", "tailrace.chunk"):
            connection.execute(emit(prefix, LONG))
        connection.execute("INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(2, 200) g")
        connection.execute(emit("note", 5))
        connection.execute(emit("note", LONG, transactional=False))
        connection.commit()
        capture.catch_up()
        assert dict(capture.status.ignored)["logical message longer than message_bytes"] == 4
        messages = rows(capture.store, TopicId.messages(SOURCE))
        assert [row["after"]["content"] for row in messages] == [b"yyyyy"]
        assert_equals_source(site)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [1, 2])
def test_memory_for_long_messages_is_about_what_libpq_needs_for_one(site: Site, protocol: int) -> None:
    size = 64_000_000
    site = small_decoding_memory(site, protocol)
    execute(site.dsn, "CREATE TABLE public.t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    site.init()
    argv = [sys.executable, "-m", "tests.support.capture_process", site.to_json(), "capture"]
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    with subprocess.Popen(argv, cwd=REPOSITORY, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            with site.open() as store:

                def wait() -> None:
                    catch_up(
                        store,
                        site,
                        120,
                        streams=lambda: has_replied(site),
                        alive=lambda: process.poll() is None,
                    )

                wait()
                execute(site.dsn, "INSERT INTO t VALUES (2)")
                wait()
                before = peak_kib(process.pid)
                execute(
                    site.dsn,
                    emit("x", size),
                    emit("tailrace.ddl", size, transactional=False),
                    emit("x", size) + " FROM generate_series(1, 3)",
                    "INSERT INTO t VALUES (3)",
                )
                wait()
                taken = (peak_kib(process.pid) - before) * 1024
                assert taken < 3.5 * size, taken / size
        finally:
            process.terminate()
