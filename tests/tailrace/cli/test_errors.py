"""What a user can get wrong is said: what, where, what to do; the exit code tells a script; nothing is half-written."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from tailrace.cli import errors
from tailrace.cli.daily import run, verify
from tailrace.cli.invocation import Invocation
from tailrace.cli.projection.context import SelectedProjections
from tailrace.eventstore.errors import (
    DifferenceFound,
    Fenced,
    OperatorError,
    TailraceError,
    TransientError,
    UsageError,
)
from tailrace.projections.lifecycle import catch_up
from tailrace.projections.lifecycle import verify as sink_verify
from tailrace.projections.refresh.refresh import RefreshOutcome
from tailrace.terminal import Output
from tests.fixtures.servers import ServerFactory
from tests.support import REPOSITORY
from tests.tailrace.conftest import SCHEMA, Done, Project, streams, until

CLOSED = "postgresql://postgres@127.0.0.1:1/shop"


def says(done: Done, code: int, *parts: str) -> None:
    """One error with its hint, and this exit code."""
    assert done.code == code, done.err + done.out
    assert done.err.startswith("error: ") or "\nerror: " in done.err, done.err
    assert "\n hint: " in done.err, done.err
    for part in parts:
        assert part in done.err


def test_a_dsn_that_leads_nowhere(shop: Project) -> None:
    shop.environment["SHOP_DSN"] = CLOSED
    says(shop.run("init"), 6, "127.0.0.1:1", "refused")


def test_a_dsn_that_is_none(shop: Project) -> None:
    shop.environment["SHOP_DSN"] = "postgresql//what"
    says(shop.run("init"), 2, "dsn")


def test_a_database_that_does_not_exist(shop: Project) -> None:
    shop.environment["SHOP_DSN"] += "_not"
    says(shop.run("init"), 7, "does not exist")


def test_wal_level_is_not_logical(project: Project, postgres_server: ServerFactory) -> None:
    server = postgres_server(settings={"wal_level": "replica", "fsync": "off"})
    with psycopg.connect(server.dsn()) as connection:
        connection.execute(SCHEMA)
    project.configure(f'[sources.shop]\ndsn = "{server.dsn()}"')
    says(
        project.run("init"),
        7,
        "source shop",
        "wal_level is replica",
        "ALTER SYSTEM SET wal_level = 'logical'",
    )
    with psycopg.connect(server.dsn()) as connection:
        assert connection.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)
    assert project.run("doctor").code == 7


def test_a_user_who_may_not_replicate(shop: Project, database: str) -> None:
    role = "r" + database.rpartition("_")[2]
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN".encode())
    try:
        shop.environment["SHOP_DSN"] = database.replace("postgres@", f"{role}@")
        says(shop.run("init"), 7, f"user {role} may not replicate", f'ALTER ROLE "{role}" REPLICATION')
    finally:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(f"DROP ROLE {role}".encode())


def test_no_store_yet(shop: Project) -> None:
    for command in (["status"], ["capture"], ["topic", "list"], ["log", "tail"], ["store", "seal"]):
        says(shop.run(*command), 7, "there is no store here", "tailrace init")
    assert not (shop.folder / ".tailrace").exists()


@pytest.mark.slow
def test_a_second_capture_of_a_source(shop: Project) -> None:
    shop.ok("init")
    first = shop.start("capture")
    until(lambda: streams(shop))
    says(shop.run("capture"), 7, "slot", "in use by another process", "end the other capture")
    assert first.poll() is None
    assert shop.end(first, signal.SIGTERM).code == 0


def test_names_that_are_nearly_right(shop: Project) -> None:
    shop.ok("init")
    says(
        shop.run("topic", "show", "shop.public.order"),
        2,
        "shop.public.order",
        "did you mean shop.public.orders",
    )
    says(shop.run("capture", "shpo"), 2, "there is no source 'shpo'", "did you mean shop?")
    says(shop.run("topic", "show", "shop..x"), 2, "'shop..x' is not a topic name")
    says(shop.run("captrue"), 2, "captrue", "capture")
    says(shop.run("capture", "--until-idel"), 2, "--until-idel", "tailrace capture --help")
    says(shop.run("log", "show", "shop.public.orders"), 2, "key")
    says(shop.run("replay", "shop.public.orders", "--to", "tomorrow"), 2, "'tomorrow'", "ISO time")
    says(shop.run("replay", "shop.public.orders", "--to", "17"), 2, "epoch 17 is not in the log")


def test_a_projection_that_nobody_defined(shop: Project) -> None:
    shop.ok("init")
    says(shop.run("run", "--once"), 2, "names no projections", "[projections]")
    shop.configure((shop.folder / "tailrace.toml").read_text() + '\n[projections]\nmodules = ["nowhere"]')
    says(shop.run("run", "--once"), 2, "there is no module 'nowhere'", str(shop.folder))
    shop.module("nowhere", "import pyspark\nthis is no python\n")
    says(shop.run("rebuild", "totals"), 2, "nowhere.py:2", "SyntaxError")


@pytest.mark.parametrize("form", [["--json", "status"], ["status", "--json"]])
def test_with_json_an_error_is_a_document(project: Project, form: list[str]) -> None:
    done = project.run(*form)
    error = json.loads(done.err)["error"]
    assert done.code == error["exit_code"] == 2
    assert error["kind"] == "UsageError"
    assert "tailrace.toml" in error["message"]
    assert "init --example" in error["hint"]
    assert done.out == ""


def test_a_destructive_verb_in_a_protected_environment_wants_a_yes(shop: Project) -> None:
    shop.configure((shop.folder / "tailrace.toml").read_text() + "\n[env.prod]\nprotected = true\n")
    shop.ok("init")
    for verb in (["gc"], ["promote", "x"], ["rollback", "x"]):
        says(shop.run("projection", *verb, "--env", "prod"), 2, "environment 'prod' is protected", "--yes")
    assert "nothing to drop" in shop.ok("projection", "gc", "--env", "prod", "--yes").out
    assert "nothing to drop" in shop.ok("projection", "gc").out


@pytest.mark.slow
def test_an_unforeseen_exception_is_called_a_bug_and_shown_on_request(
    project: Project, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import tailrace.config.load\n"
        "def broken(*arguments):\n    raise ZeroDivisionError('on purpose')\n"
        "tailrace.config.load.load_configuration = broken\n"
    )
    house = str(REPOSITORY)
    broken = {"PYTHONPATH": f"{tmp_path}:{house}"}
    project.forked = False
    says(
        project.run("status", environment=broken),
        1,
        "ZeroDivisionError: <hidden: 10 characters> (sitecustomize.py:3)",
        "a bug in Tailrace",
        "--verbose",
        "--show-values",
    )
    shown = project.run("status", "--show-values", environment=broken)
    says(shown, 1, "ZeroDivisionError: on purpose (sitecustomize.py:3)")
    with pytest.raises(AssertionError, match="Traceback"):
        project.run("status", "--verbose", environment=broken)


HELD, AWAY = Fenced("held by another run"), TransientError("a sink is away")
BROKEN, FULL, DIFFERENT = UsageError("broken"), OperatorError("full"), DifferenceFound("another row")


@pytest.mark.parametrize(
    ("broken", "met", "code", "verified"),
    [
        ([], [], 0, 0),
        ([], [HELD], 5, 5),
        ([], [HELD, AWAY], 6, 6),
        ([BROKEN], [HELD], 2, 2),
        ([BROKEN], [AWAY, HELD], 2, 2),
        ([], [AWAY, DIFFERENT], 4, 4),
        ([BROKEN], [DIFFERENT], 2, 4),
        ([BROKEN], [AWAY, FULL], 7, 7),
        ([BROKEN], [FULL, DIFFERENT], 7, 4),
    ],
)
def test_of_several_failures_what_waiting_cannot_mend_is_told_by_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    broken: Sequence[UsageError],
    met: Sequence[TailraceError],
    code: int,
    verified: int,
) -> None:
    def meets(*_: object, **__: object) -> None:
        raise next(raised)

    raised, outcome = (
        iter(met),
        [RefreshOutcome("totals", 1, "failed", each.message, error=each) for each in met],
    )
    of_broken = [RefreshOutcome("other", None, "failed", each.message, error=each) for each in broken]
    found = SelectedProjections([str(each) for each in met], {str(each): each for each in broken})
    invocation, context = Invocation(Output(json=True)), nullcontext()
    monkeypatch.setattr(run, "print_outcome", lambda *_: None)
    monkeypatch.setattr(catch_up, "refresh", lambda *_: outcome)
    assert run._refresh_once(invocation, cast("Any", context), None, of_broken, detailed=True) == (code or 3)
    assert found.report(invocation) == (2 if broken else 0)

    monkeypatch.setattr(verify, "projection_context", lambda *_, **__: context)
    monkeypatch.setattr(verify, "select_projections", lambda *_: found)
    monkeypatch.setattr(sink_verify, "verify", meets)
    assert verify.verify_projections(invocation, None) == verified


def test_a_bug_is_told_before_all_other_failures() -> None:
    assert errors.worst_code([0, 7, errors.BUG, 2]) == errors.BUG
