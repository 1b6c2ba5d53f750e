"""Names that hold terminal codes come out of no command as such: not as text, not as JSON, not in its errors."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from typer.main import get_command

from tailrace.cli.app import app
from tailrace.cli.main import run
from tests.tailrace.cli.test_secrets import commands_of

EVIL = "a\x1b[31mb\x07\x08\r\x9b2J\u202e\u2066\u200b\u2028\nerror: forged\t"
TOPIC = f'shop.public."{EVIL}"'
# What it takes for a command to end by itself.
ENDS = {"capture": ("--once",), "run": ("--once",), "source snapshot": ("--no-wait",)}
SHOP = "demo"  # starts servers; the names that it shows are its own


def assert_harmless(printed: str, what: object) -> None:
    found = {each for each in printed if unicodedata.category(each) in {"Cc", "Cf", "Cs", "Zl", "Zp"}} - {
        "\n"
    }
    assert not found, (what, found, printed)
    assert not any(line.startswith("error: forged") for line in printed.split("\n")), (what, printed)


@pytest.mark.slow
def test_terminal_codes_in_names_and_values_are_escaped_by_every_command(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        table = sql.Identifier(EVIL)
        connection.execute(sql.SQL("CREATE TABLE public.{} ({} text PRIMARY KEY)").format(table, table))
        connection.execute(sql.SQL("INSERT INTO public.{} VALUES ({})").format(table, sql.Literal(EVIL)))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tailrace.toml").write_text(f'[sources.shop]\ndsn = "{database}"\n')
    shown = ""
    for command in (("init",), ("capture", "--once"), ("log", "show", TOPIC, EVIL)):
        assert run(command) == 0, capfd.readouterr()
        printed = capfd.readouterr()
        shown += printed.out
        assert_harmless(printed.out + printed.err, command)
    assert "\\x1b[31m" in shown
    commands = list(commands_of(get_command(app)))
    assert len(commands) > 45
    for name, required in commands:
        tried = [[*name.split(), f"--{EVIL}"]]
        for argument, option in ((TOPIC, "--json"), (EVIL, "--show-values")):
            tried.append([*name.split(), *([argument] * len(required)), *ENDS.get(name, ()), option])
        for words in tried[:1] if name == SHOP else tried:
            run(words)  # whatever comes of it
            printed = capfd.readouterr()
            assert_harmless(printed.out + printed.err, words)
