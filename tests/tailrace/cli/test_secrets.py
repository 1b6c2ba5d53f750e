"""No secret gets out: into what a command prints, its log, a traceback, the catalog, a file, or a list of processes."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import text as sql_text
from typer.main import get_command

from tailrace.cli.app import app
from tailrace.cli.main import run
from tailrace.config.load import load_settings
from tailrace.doctor.doctor import check_sink
from tailrace.embedded import PostgresServer
from tailrace.eventstore.store import Store
from tailrace.metrics.capture import Collector, serve
from tests.fixtures.servers import FAST_SETTINGS
from tests.support.processes import watch_processes
from tests.tailrace.conftest import SCHEMA, files_with

WORD = secrets.token_hex(6)
SECRETS = {
    "password": f"p-{WORD}-ä/@ '\\x",  # all that has a meaning in a URL, in libpq's form and in TOML
    "wrong": f"w-{WORD}",
    "key": f"k-{WORD}-{secrets.token_hex(8)}",
    "cache": f"c-{WORD}",
}
HBA = """
local all postgres trust
host all postgres 127.0.0.1/32 trust
host all all 127.0.0.1/32 scram-sha-256
"""
CONFIG = """
store.name = "hush"
[sources.shop]
dsn = "${SHOP_DSN}"
hash_key = "${SHOP_KEY}"
[sources.shop.columns]
"public.customers.name" = "hash"
[sinks.mart]
kind = "postgres"
dsn = "${file:mart.dsn}"
[sinks.cache]
kind = "redis"
url = "${CACHE_URL}"
"""
CATALOG = 'catalog = "${SHOP_URL}"'


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that asks for a password, of ``agent``."""
    with PostgresServer(settings=FAST_SETTINGS, trust=True) as started:
        (started.data_dir / "pg_hba.conf").write_text(HBA)
        with psycopg.connect(started.dsn(), autocommit=True) as connection:
            password = sql.Literal(SECRETS["password"])
            connection.execute(sql.SQL("CREATE ROLE agent LOGIN SUPERUSER PASSWORD {}").format(password))
            connection.execute("SELECT pg_reload_conf()")
            connection.execute("CREATE DATABASE shop OWNER agent")
        with psycopg.connect(started.dsn("shop")) as connection:
            connection.execute("GRANT ALL ON SCHEMA public TO agent; SET ROLE agent;" + SCHEMA)
        yield started


def url(server: PostgresServer, password: str, host: str = "127.0.0.1", port: int | None = None) -> str:
    return f"postgresql://agent:{quote(password, safe='')}@{host}:{port or server.port}/shop"


def libpq(server: PostgresServer, password: str) -> str:
    return psycopg.conninfo.make_conninfo(
        "", host="127.0.0.1", port=server.port, dbname="shop", user="agent", password=password
    )


@dataclass
class Shell:
    """Commands in this process, as ``tailrace`` runs them; what they printed is looked through for secrets."""

    folder: Path
    capture: pytest.CaptureFixture[str]
    environment: pytest.MonkeyPatch

    def run(self, *arguments: str) -> int:
        code = run(arguments)
        self.check(self.capture.readouterr(), arguments)
        return code

    def check(self, printed: Sequence[str], what: object) -> None:
        for name, secret in SECRETS.items():
            for form in (secret, quote(secret), quote(secret, safe=""), WORD):
                assert form not in "".join(printed), f"{what}: the {name}: {''.join(printed)}"

    def both(self, *arguments: str) -> int:
        """For people and for programs; the code of the second."""
        self.run(*arguments, "--verbose", "--show-values")
        return self.run(*arguments, "--json")


@pytest.fixture
def shell(
    tmp_path: Path, server: PostgresServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Shell:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("TAILRACE_", "PG")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SHOP_DSN", libpq(server, SECRETS["password"]))
    monkeypatch.setenv("SHOP_URL", url(server, SECRETS["password"]))
    monkeypatch.setenv("SHOP_KEY", SECRETS["key"])
    monkeypatch.setenv("CACHE_URL", f"redis://:{SECRETS['cache']}@127.0.0.1:1/0")
    (tmp_path / "tailrace.toml").write_text(CONFIG)
    (tmp_path / "mart.dsn").write_text(url(server, SECRETS["password"]))
    with psycopg.connect(server.dsn("shop")) as connection:  # what the store of another test left
        connection.execute("DROP PUBLICATION IF EXISTS hush_shop")
        connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    return Shell(tmp_path, capfd, monkeypatch)


# Every command that opens the store or a server.
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("init", "--dry-run"),
    ("init",),
    ("capture", "--once"),
    ("doctor",),
    ("status",),
    ("source", "snapshot", "shop.public.orders", "--no-wait"),
    ("source", "repair"),
    ("topic", "list"),
    ("topic", "show", "shop.public.customers"),
    ("log", "tail"),
    ("log", "show", "shop.public.orders", "7"),
    ("replay", "shop.public.orders"),
    ("store", "info"),
    ("store", "seal"),
    ("store", "maintain"),
    ("store", "collect"),
    ("source", "list"),
    ("projection", "list"),
    ("projection", "gc"),
)


@pytest.mark.slow
def test_commands_that_succeed_let_no_secret_out(shell: Shell, server: PostgresServer) -> None:
    """With both catalogs; afterwards it is in no table and no file either, and never was in a list of processes."""
    with watch_processes() as watch:
        for command in COMMANDS:
            assert shell.both(*command) in ({0, 7} if command[0] == "doctor" else {0}), command
        for name, arguments in commands_of(get_command(app)):
            if name not in ELSEWHERE and not any(" ".join(each).startswith(name) for each in COMMANDS):
                shell.run(*name.split(), *arguments, "--json")  # whatever comes of it
        settings = load_settings()
        with Store.open(settings.store) as store:
            collector = Collector(store, list(settings.sources.items()), list)
            port, end = serve(collector, 0, "127.0.0.1")
            try:
                with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                    shell.check([answer.read().decode()], "metrics")
            finally:
                end()
        shell.environment.setenv("TAILRACE_ENV", "server")
        toml = (shell.folder / "tailrace.toml").read_text()
        (shell.folder / "tailrace.toml").write_text(
            f'{toml}\n[env.server.store]\nname = "hushed"\nsegments = "other"\n{CATALOG}\n'
        )
        for command in (("init",), ("status",), ("doctor",)):
            shell.both(*command)
        with Store.open(load_settings().store) as store, store.catalog.read() as connection:
            assert store.catalog.kind == "postgres"
            names = connection.execute(
                sql_text("SELECT tablename FROM pg_tables WHERE schemaname = 'hushed_log'")
            )
            for (name,) in names.fetchall() or pytest.fail("no table"):
                found = connection.execute(sql_text(f'SELECT t::text FROM hushed_log."{name}" t'))  # noqa: S608
                shell.check([row for (row,) in found], f"table {name}")
    (shell.folder / "mart.dsn").unlink()
    assert files_with(shell.folder, WORD) == []
    assert watch.commands
    shell.check(sorted(watch.commands), "command lines")


# Commands that start Spark or servers, or wait for a capture: projection/test_projections.py and test_commands.py.
ELSEWHERE = {
    "demo",
    "run",
    "rebuild",
    "verify",
    "projection check",
    "projection promote",
    "projection rollback",
}


def commands_of(group: Any, prefix: str = "") -> Iterator[tuple[str, list[str]]]:
    """Every command with as many arguments as it must have."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, f"{prefix}{name} ")
        else:
            required = [
                each for each in command.params if each.param_type_name == "argument" and each.required
            ]
            yield prefix + name, ["shop.public.orders"] * len(required)


CONNECTING = (
    ("init",),
    ("doctor",),
    ("capture", "--once"),
    ("status",),
    ("verify", "--source"),
    ("source", "repair"),
    ("source", "list"),
)


def test_commands_that_fail_let_no_secret_out(shell: Shell, server: PostgresServer) -> None:
    """Whatever is wrong with an address, with a password in it or as part of what is wrong."""
    password, wrong = SECRETS["password"], SECRETS["wrong"]
    nowhere = url(server, password, host="no-such-host.invalid")
    addresses = {
        "a wrong password": url(server, wrong),
        "libpq's form": libpq(server, wrong),
        "nobody there": url(server, password, port=1),
        "no such host": nowhere,
        "an @ in the password": f"postgresql://agent:{wrong}@{WORD}@127.0.0.1:{server.port}/shop",
        "a / in the password": f"postgresql://agent:{wrong}/{WORD}@127.0.0.1:{server.port}/shop",
        "only a / in it": f"postgresql://agent:/{WORD}@127.0.0.1:{server.port}/shop",
        "a # in the password": f"postgresql://agent:{wrong}#{WORD}@127.0.0.1:1/shop",
        "a % in the password": f"postgresql://agent:{wrong}%zz@127.0.0.1:{server.port}/shop",
        "a blank in the password": f"postgresql://agent:{wrong} {WORD}@127.0.0.1:{server.port}/shop",
        "a blank in libpq's form": f"host=127.0.0.1 port=1 user=agent password={wrong} {WORD} dbname=shop",
        "an open quote": f"host=127.0.0.1 port=1 user=agent password='{wrong} dbname=shop",
        "an unknown option": f"host=127.0.0.1 pasword={wrong}",
        "no scheme": f"agent:{wrong}@127.0.0.1/shop",
        "a wrong scheme": f"postgrsql://agent:{wrong}@127.0.0.1/shop",
        "no host": f"postgresql://agent:{wrong}/shop",
        "a key for a dsn": SECRETS["key"],
    }
    with watch_processes() as watch:
        shell.environment.setenv("SHOP_DSN", libpq(server, password))
        assert shell.run("init") == 0
        for name, address in addresses.items():
            shell.environment.setenv("SHOP_DSN", address)
            shell.environment.setenv("SHOP_URL", address)
            shell.environment.setenv("CACHE_URL", address.replace("postgresql://", "redis://"))
            (shell.folder / "mart.dsn").write_text(address)
            settings = load_settings()
            sinks = [check for sink in settings.sinks for check in check_sink(sink, settings.sinks[sink])]
            assert {check.verdict for check in sinks} - {"warn"} == {"fail"}
            shell.check([f"{check.found} {check.remedy}" for check in sinks], f"{name}: sinks")
            for command in CONNECTING if name in ("a wrong password", "nobody there") else CONNECTING[:1]:
                code = shell.run(*command, "--json", "--verbose", "--show-values")
                assert code in {2, 6, 7} or command in (("status",), ("source", "list")), (
                    f"{name}: {command}: {code}"
                )
        shell.environment.setenv("SHOP_DSN", url(server, ""))
        shell.environment.setenv("PGPASSWORD", wrong)
        assert shell.run("doctor") == 7
        (shell.folder / "passwords").write_text(f"*:*:*:*:{wrong}\n")
        (shell.folder / "passwords").chmod(0o644)  # libpq complains of it on standard error
        shell.environment.setenv("PGPASSFILE", str(shell.folder / "passwords"))
        assert shell.run("doctor") == 7
    shell.check(sorted(watch.commands), "command lines")


@pytest.mark.parametrize(
    "catalog", ["postgresql://a:{}@127.0.0.1:1/x", "postgresql://a:{}@{}@h/x", "mysql://a:{}@h/x"]
)
def test_a_catalog_that_cannot_be_opened_does_not_tell_its_password(shell: Shell, catalog: str) -> None:
    shell.environment.setenv("SHOP_URL", catalog.format(SECRETS["wrong"], WORD))
    text = (shell.folder / "tailrace.toml").read_text()
    (shell.folder / "tailrace.toml").write_text(
        f"{text}\n[store]\n{CATALOG}\n".replace('store.name = "hush"', "")
    )
    for command in (("init",), ("status",), ("doctor",), ("store", "info")):
        assert shell.run(*command, "--verbose") in {2, 6, 7}


def test_a_broken_file_and_a_wrong_command_line_do_not_tell_what_stands_there(shell: Shell) -> None:
    wrong = SECRETS["wrong"]
    text = (shell.folder / "tailrace.toml").read_text()
    for broken in (
        f'dsn = "{wrong}',
        f"dsn = {wrong}",
        f'password = "{wrong}"',
        f'sources.other = "{wrong}"',
        f'[sources.other]\ndsn = ["{wrong}"]',
        f'[sources.other]\ndsn = "x"\npassword = "{wrong}"',
        f'[sources.other]\ndsn = "postgresql://agent:{wrong}@127.0.0.1:1/x"\nload_workers = 0',
        f'[sources.other]\ndsn = "x"\nhash_key = "{wrong}"',
        f'[sinks.other]\nkind = "redis"\ndsn = "{wrong}"',
        f'[env.prod]\nprotected = true\n[env.prod.sources.shop]\ndsn = "postgresql://a:{wrong}@h/x"',
    ):
        (shell.folder / "tailrace.toml").write_text(f"{text}\n{broken}\n")
        assert shell.run("status", "--verbose") == 2 or "env.prod" in broken, broken
        assert shell.run("status", "--env", "prod", "--verbose") == 2
    (shell.folder / "tailrace.toml").write_text(f'{text}\ndsn = "{wrong}')
    assert shell.run("doctor", "--verbose") == 7
