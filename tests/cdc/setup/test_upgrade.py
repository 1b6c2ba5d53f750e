"""A server that pg_upgrade made of an older one: another system, refused by capture and mended by a repair."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tailrace.cdc.postgres.connect import Address, connect
from tailrace.cdc.postgres.ddl_trigger import Trigger, read_trigger
from tailrace.cdc.repair.report import TopicRepair
from tailrace.cdc.setup.continuity import Mismatch
from tailrace.embedded import PostgresServer
from tailrace.embedded.account import reachable_bin_folder
from tailrace.embedded.postgres import DEFAULT_SETTINGS
from tailrace.embedded.process import ServerProcess, tail_of
from tests.fixtures.servers import ServerFactory
from tests.support.capturing import (
    RunningCapture,
    Site,
    assert_equals_source,
    assert_sound,
    connected,
    execute,
    query,
    rows,
    table,
)
from tests.support.installed import system_programs, upgradable_programs

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

SCHEMA = (
    "CREATE TYPE public.mood AS ENUM ('sad', 'glad')",
    "CREATE TABLE public.items (id int PRIMARY KEY, n int, mood public.mood, note text)",
    "ALTER TABLE public.items DROP COLUMN n",
    "INSERT INTO public.items SELECT i, 'sad', repeat('x', 3000) FROM generate_series(1, 50) i",
)


def upgrade(old: PostgresServer, old_programs: Path, new: PostgresServer) -> None:
    """``pg_upgrade`` of a stopped server into another one, which has been started once and never used."""
    new.stop()
    bins = [
        reachable_bin_folder(folder, "postgres", "initdb")
        for folder in (old_programs, new.bin("postgres").parent)
    ]
    run(old, bins[0] / "pg_checksums", "--enable", "-D", old.data_dir)  # as version 18 has it by default
    settings = " ".join(f"-c {name}={value}" for name, value in options(DEFAULT_SETTINGS).items())
    run(
        new, bins[1] / "pg_upgrade", "-b", bins[0], "-B", bins[1], "-d", old.data_dir, "-D", new.data_dir,
        "-U", "postgres", "-o", settings, "-O", settings,
    )  # fmt: skip
    new.start()


def options(settings: Mapping[str, str]) -> dict[str, str]:
    wanted = ("wal_level", "max_replication_slots", "max_wal_senders")
    return {name: settings[name] for name in wanted}


def run(server: PostgresServer, *argv: str | Path) -> None:
    """As the server's own user: Postgres refuses to be run by root."""
    home = server.data_dir.parent
    status = server.data_dir.stat()
    process = ServerProcess(
        ["/bin/sh", "-c", f"cd {shlex.quote(str(home))} && exec {shlex.join(map(str, argv))}"],
        log=home / "run.log", owner=(status.st_uid, status.st_gid),
    )  # fmt: skip
    assert process.wait(120) == 0, tail_of(home / "run.log", lines=40)


@pytest.mark.parametrize(
    ("installed", "slots_survive"),
    [
        pytest.param(system_programs, False, id="the system's"),
        pytest.param(upgradable_programs, True, id="17"),
    ],
)
def test_an_upgrade_is_refused_then_repaired_and_nothing_is_lost_or_repeated(
    installed: Callable[[], Path], slots_survive: bool, postgres_server: ServerFactory, store_dir: Path
) -> None:
    old, new = postgres_server(bin_dir=installed()), postgres_server()
    execute(old.dsn(), *SCHEMA)
    site = Site.at(store_dir, old.dsn())
    site.init(ddl=True)
    with RunningCapture(site) as capture:
        connected(capture, site)
        execute(old.dsn(), "UPDATE public.items SET mood = 'glad' WHERE id <= 5")
        capture.catch_up()  # it streams
        execute(old.dsn(), "UPDATE public.items SET mood = 'glad' WHERE id BETWEEN 6 AND 10")
        old.stop()  # fast: capture takes what is left
        capture.forgive()
    upgrade(old, installed(), new)
    kept = query(new.dsn(), "SELECT slot_name FROM pg_replication_slots")
    assert kept == ([("acme_shop",)] if slots_survive else [])

    upgraded = Site.at(store_dir, new.dsn())
    error = upgraded.capture_error()
    assert isinstance(error, Mismatch) and "system" in error.message and "source repair" in error.hint
    execute(new.dsn(), "DELETE FROM public.items WHERE id = 50")
    repaired = upgraded.repair()
    assert repaired.incarnation == 2
    assert repaired.topics == (TopicRepair(table("items"), rows=49, deleted=1),)
    with RunningCapture(upgraded) as capture:
        capture.catch_up()
        execute(new.dsn(), "INSERT INTO public.items VALUES (51, 'glad', 'new')")
        capture.catch_up()
        assert_equals_source(upgraded)
        assert_sound(capture.store)
        operations = [row["_op"] for row in rows(capture.store, table("items"))]
    assert sorted(operations) == sorted(["r"] * 50 + ["u"] * 10 + ["d", "c"])
    address = Address.of(upgraded.settings)
    with connect(address) as connection:
        assert read_trigger(connection, address) is Trigger.ACTIVE
