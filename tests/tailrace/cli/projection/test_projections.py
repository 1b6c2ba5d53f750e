"""Projections on the command line: one Spark session for all that can go wrong in a refresh, one for the proof."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import psycopg
import pytest

from examples import sqlite_sink
from tests.support.processes import watch_processes
from tests.tailrace.conftest import PASSWORD, Project

MODULE = """
from pyspark.sql import functions as F
from tailrace import PostgresTable, RedisCache, State, projection

ORDERS = State("shop.public.orders")


@projection(key="customer_id", sink=PostgresTable("mart", "totals", schema="mart"), orders=ORDERS)
def totals(orders):
    return orders.groupBy("customer_id").agg(F.sum("amount").alias("total"))


@projection(key="customer_id", sink=PostgresTable("mart", "raising", schema="mart"), orders=ORDERS)
def raising(orders):
    raise ValueError("no such luck")


@projection(key="customer_id", sink=PostgresTable("mart", "keyless", schema="mart"), orders=ORDERS)
def keyless(orders):
    return orders.groupBy("customer_id").agg(F.sum("amount").alias("total")).drop("customer_id")


@projection(key="id", sink=RedisCache("gone"), orders=ORDERS)
def cached(orders):
    return orders.select("id", "amount")


@projection(key="id", sink=PostgresTable("mart", "lost", schema="mart"), orders=State("shop.public.ordes"))
def lost(orders):
    return orders
"""
HEAD, TOTALS, _, _, CACHED, _ = MODULE.split("\n\n\n")


@pytest.fixture
def projecting(shop: Project, database: str) -> Project:
    """A loaded log and a module with one good projection and four bad ones."""
    with psycopg.connect(database) as connection:
        connection.execute("CREATE SCHEMA mart")
    shop.module("views", MODULE)
    text = (shop.folder / "tailrace.toml").read_text()
    gone = '[sinks.gone]\nkind = "redis"\nurl = "redis://127.0.0.1:1/0"'
    shop.configure(f'{text}\n{gone}\n[projections]\nmodules = ["views"]\n[spark]\nmaster = "local[2]"')
    shop.ok("init")
    shop.ok("capture", "--once")
    return shop


@pytest.mark.slow
def test_one_bad_projection_does_not_stop_the_others_and_each_says_what_is_wrong(
    projecting: Project, database: str
) -> None:
    projecting.forked = False  # a list of processes shows its arguments
    with watch_processes() as watched:
        done = projecting.run("run", "--once")
    projecting.forked = True
    assert done.code == 7
    assert len(watched.spark) > 1, "the JVM and its workers"
    assert PASSWORD not in "".join(watched.commands | watched.spark)
    lines = {line.split(":")[0].split(" ")[0]: line for line in done.out.splitlines()}
    assert "totals g1: 20 upserts" in done.out
    planned = projecting.ok("plan", "totals", "cached").out.splitlines()
    assert planned[0] == "totals g1: nothing: it is at epoch 1, the end of the log"
    assert planned[1] == "cached: full, epoch 0 to 1 into gone: it was never built"
    unknown = "keys unknown (it has no result yet); rows to write unknown (it has no result yet)"
    assert planned[2] == f"  100 changed rows; {unknown}"
    for part in ("failed", "views.py:15", "ValueError: <hidden: 12 characters>"):
        assert part in lines["raising"]
    for part in ("failed", "views.py:", "lacks its key", "customer_id"):
        assert part in lines["keyless"]
    assert "127.0.0.1:1" in lines["cached"]
    assert "shop.public.ordes" in lines["lost"]
    assert "did you mean shop.public.orders" in done.out
    failed = projecting.ok("projection", "runs", "raising").out.splitlines()
    assert (
        len(failed) == 2
        and "FAILED: projection 'raising'" in failed[1]
        and "<hidden: 12 characters>" in failed[1]
    )
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT count(*), sum(total) FROM mart.totals").fetchone() == (20, 5050)
        made = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'mart'::regnamespace"
        ).fetchall()
        assert not [name for (name,) in made if "keyless" in name or "raising" in name]
    (status,) = [line for line in projecting.ok("status").out.splitlines() if line.startswith("totals ")]
    assert status.split() == ["totals", "live", "1", "1", "0", "mart", "1", "0", "-"]
    listed = projecting.ok("projection", "list").out
    assert listed.splitlines()[1].split()[:5] == ["totals", "g1", "live", "1", "20"]
    assert projecting.run("verify", "totals", "--seed", "3").code == 2


@pytest.mark.slow
def test_progress_is_buckets_on_a_terminal_and_json_lines_elsewhere_and_a_proof_shows_what_differs(
    projecting: Project, database: str
) -> None:
    err = projecting.ok("rebuild", "totals", "--yes").err
    told = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    fields = {"activity", "text", "step", "done", "total", "unit", "per_second", "seconds_left"}
    assert told and all(set(line) == fields for line in told)
    last = told[-1]
    assert (last["activity"], last["step"], last["unit"]) == ("rebuild totals", "applying totals", "buckets")
    assert last["done"] == last["total"] > 0

    with psycopg.connect(database) as connection:
        # Somebody else writes to the sink: a plain view takes updates.
        connection.execute("UPDATE mart.totals SET total = 1 WHERE customer_id = 3")
    proof = projecting.on_terminal("verify", "totals", "--show-values")
    assert proof.code == 4, proof.err
    assert re.search(r"verify: computing totals (\d+) of \1 buckets", proof.err), proof.err
    assert "{" not in proof.err
    assert "totals g1: DIFFERS from the log at epoch 1: 1 row with other values" in proof.out
    assert '{"customer_id": 3}' in proof.out
    assert "\n    expected: total=" in proof.out and "\n    actual:   total=1" in proof.out


@pytest.mark.slow
def test_plan_tells_of_a_step_that_the_sink_lacks(projecting: Project, database: str) -> None:
    projecting.ok("rebuild", "totals")
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE orders SET amount = amount + 1 WHERE id = 1")
    projecting.ok("capture", "--once")
    cut_off = projecting.run(
        "run", "--once", "totals", environment={"TAILRACE_FAILPOINT": "derived_committed"}
    )
    assert cut_off.code == -9, cut_off.err
    planned = projecting.ok("plan", "totals").out.splitlines()
    assert planned[0].startswith("totals g1: nothing: it is at epoch ")
    assert planned[1] == "  1 computed step not in mart yet: applied first"
    assert json.loads(projecting.ok("plan", "totals", "--json").out)["steps_not_in_sink"] == 1
    assert "totals g1" in projecting.ok("run", "--once", "totals").out
    assert projecting.ok("plan", "totals").out.count("\n") == 1


def test_the_wrong_java_is_named(projecting: Project, tmp_path: Path) -> None:
    home = tmp_path / "java-8"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(
        f"#!/bin/sh\necho '    java.home = {home}' >&2\necho '    java.specification.version = 1.8' >&2\n"
    )
    java.chmod(0o755)
    old = {"JAVA_HOME": str(home), "PATH": os.environ["PATH"]}
    done = projecting.run("rebuild", "totals", environment=old)
    assert done.code == 7
    assert f"JAVA_HOME is {home}, a Java 8; Spark needs Java 17 or later" in done.err
    assert " hint: set JAVA_HOME" in done.err
    assert "fail  java" in projecting.run("doctor", environment=old).out


def test_names_are_checked_where_spark_does_not_start_and_that_is_said(projecting: Project) -> None:
    nowhere = {"JAVA_HOME": str(projecting.folder)}
    done = projecting.run("projection", "check", environment=nowhere)
    assert done.code == 7
    assert "fail  totals (views.py:" in done.out and "JAVA_HOME" in done.out
    assert "fail  lost (views.py:" in done.out
    assert projecting.run("projection", "check", "lost", environment=nowhere).code == 2
    wrong = projecting.run("rebuild", "total", environment=nowhere)
    assert wrong.code == 2
    assert "did you mean totals?" in wrong.err


MISTYPED = (
    HEAD
    + """


@projection(key="id", sink=RedisCache("gone", ttl_seconds="60"), orders=ORDERS)
def mistyped(orders):
    return orders


@projection(key="id", sink=PostgresTable("mart", "lost", schema="mart"), orders=State("shop.public.ordes"))
def lost(orders):
    return orders
"""
)


def test_a_mistake_in_one_definition_does_not_stop_the_others(projecting: Project) -> None:
    projecting.module("views", MISTYPED)
    done = projecting.run("run", "--once")
    assert done.code == 2
    assert "mistyped" in done.out and "views.py:8:23): ttl_seconds of RedisCache is '60' (str)" in done.out
    assert "no topic shop.public.ordes" in done.out
    named = projecting.run("run", "mistyped", "lost", "--once")
    assert named.code == 2 and "ttl_seconds" in named.out and "shop.public.ordes" in named.out
    assert "mistyped" not in projecting.run("run", "lost", "--once").out
    alone = projecting.run("run", "mistyped")
    assert alone.code == 2 and "ttl_seconds of RedisCache" in alone.err
    nowhere = {"JAVA_HOME": str(projecting.folder)}
    checked = projecting.run("projection", "check", environment=nowhere)
    assert "fail  mistyped (views.py:" in checked.out and "ttl_seconds of RedisCache" in checked.out
    assert "fail  lost (views.py:" in checked.out
    one = projecting.run("projection", "check", "lost", environment=nowhere)
    assert "mistyped" not in one.out and "fail  lost (views.py:" in one.out
    assert "also broken: mistyped (tailrace projection check)" in one.err


READING = """
from tailrace.projections import PostgresTable, Result, State, projection

@projection(key="customer_id", sink=PostgresTable("mart", "of_totals", schema="mart"), totals=Result("totals"))
def of_totals(totals):
    return totals
"""
BROKEN = "\n\n\n".join([HEAD, TOTALS.replace('key="customer_id"', "key=()"), CACHED])


@pytest.mark.slow
def test_a_broken_definition_or_module_stops_no_command_that_was_asked_for_others(
    projecting: Project,
) -> None:
    projecting.module("reading", READING)
    text = (projecting.folder / "tailrace.toml").read_text()
    projecting.configure(text.replace('["views"]', '["views", "reading", "unfinished"]'))
    projecting.module("unfinished", "def")
    asked = [("rebuild", "totals"), ("verify", "totals"), ("plan", "totals")]
    *good, unknown, planned, proved, examined = projecting.together(
        *asked, ("rebuild", "unfinishd_one"), ("plan",), ("verify",), ("doctor",)
    )
    for arguments, done in zip(asked, good, strict=True):
        assert done.code == 0, (arguments, done.err)
        assert "totals g1" in done.out
        assert "also broken: unfinished (tailrace projection check)" in done.err
    assert unknown.code == 2 and "module 'unfinished' does not import" in unknown.err
    for done in (planned, proved):
        assert done.code
        assert "module 'unfinished' does not import (unfinished.py:1): SyntaxError" in done.err
        assert "totals g1" in done.out, done.out
    assert "fail  projections" in examined.out and "module 'unfinished' does not import" in examined.out
    assert "ok    projection totals" in examined.out

    projecting.module("views", MISTYPED)
    named = projecting.run("plan", "totals", "mistyped")
    assert named.code == 2 and "there is no projection 'totals'" in named.err

    projecting.module("views", BROKEN)
    place = "views.py:"
    for verb in ("rebuild", "verify", "plan"):
        done = projecting.run(verb, "totals")
        assert done.code == 2, (verb, done.out)
        assert f"error: projection 'totals' ({place}" in done.err and "it has no key" in done.err
        assert " hint: name the columns that tell its rows apart" in done.err
    reading = projecting.run("rebuild", "of_totals")
    assert reading.code == 2 and "projection 'totals' (" in reading.err, "what it reads is broken"
    beside = projecting.run("plan", "of_totals", "cached")
    assert beside.code == 2 and "cached: full" in beside.out and "projection 'totals' (" in beside.err

    listed = projecting.ok("projection", "list")
    (line,) = [line for line in listed.err.splitlines() if line.startswith("totals g1")]
    assert line == (
        f"totals g1 is frozen: its definition cannot be loaded: projection 'totals' ({place}8): it has no key"
    )
    projecting.module("views", BROKEN.removesuffix(CACHED))  # nothing is left to compute
    once = projecting.run("run", "--once")
    assert once.code and "unfinished: failed: module 'unfinished' does not import" in once.out
    (frozen,) = [line for line in once.out.splitlines() if line.startswith("totals g1: frozen: ")]
    assert "its definition cannot be loaded: projection 'totals'" in frozen
    (status,) = [line for line in projecting.ok("status").out.splitlines() if line.startswith("totals ")]
    assert "no running definition matches it (why: tailrace projection list)" in status
    projecting.module("views", "def")
    listed = projecting.ok("projection", "list")
    (line,) = [line for line in listed.err.splitlines() if line.startswith("totals g1 is frozen: ")]
    assert "no module that loads defines it; module 'views' does not import (views.py:1)" in line
    assert "; module 'unfinished' does not import (unfinished.py:1)" in line


OWN = """
from shelf import SqliteFile
from tailrace import State, projection

@projection(key="id", sink=SqliteFile("{file}"), orders=State("shop.public.orders"))
def kept(orders):
    return orders.select("id", "amount")
"""


@pytest.mark.slow
def test_status_reads_a_sink_of_ones_own_beside_the_configuration_from_any_folder(
    projecting: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As the installed command does it, whose folder Python does not import from."""
    projecting.module("shelf", Path(sqlite_sink.__file__).read_text())
    projecting.module("views", OWN.format(file=projecting.folder / "own.db"))
    elsewhere = Project(tmp_path_factory.mktemp("elsewhere"), projecting.environment)
    config = ("--config", str(projecting.folder / "tailrace.toml"))
    elsewhere.ok(*config, "rebuild", "kept")

    def status() -> dict[str, object]:
        (kept,) = elsewhere.ok(*config, "--json", "status").documents[0]["projections"]
        return dict(kept)

    assert "of the class shelf:SqliteFile, which no loaded definition uses" in str(status()["sink_problem"])
    text = (projecting.folder / "tailrace.toml").read_text()
    projecting.configure(text.replace('modules = ["views"]', 'modules = ["views"]\nsink_modules = ["shelf"]'))
    kept = status()
    assert (kept["sink_problem"], kept["sink"], kept["sink_epoch"]) == ("", "own", 1)

    projecting.module("shelf", "def")
    assert "shelf:SqliteFile, whose module does not import: SyntaxError" in str(status()["sink_problem"])
    (projecting.folder / "shelf.py").unlink()
    assert "does not import: ModuleNotFoundError: No module named 'shelf'" in str(status()["sink_problem"])


TWO = (
    HEAD
    + "\n\n\n"
    + TOTALS
    + """


@projection(
    key="customer_id",
    sink=PostgresTable("mart", "doubled", schema="mart"),
    totals=Result("totals"),
)
def doubled(totals):
    return totals.selectExpr("customer_id", "total * 2 AS total")
"""
)


@pytest.mark.slow
def test_several_are_rebuilt_with_one_start_those_that_are_read_first(
    projecting: Project, database: str
) -> None:
    projecting.module("views", TWO.replace("RedisCache, State", "RedisCache, Result, State"))
    built = projecting.ok("rebuild", "doubled", "totals").out.splitlines()
    assert built_of(built) == ["totals g1", "doubled g1"]
    assert "nothing is frozen" in projecting.ok("rebuild", "--frozen").err

    projecting.module(
        "views", TWO.replace("RedisCache, State", "RedisCache, Result, State").replace("* 2", "* 3")
    )
    changed = projecting.ok("rebuild", "--frozen").out.splitlines()
    assert built_of(changed) == ["doubled g2"]
    with psycopg.connect(database) as connection:
        tripled = connection.execute(
            "SELECT bool_and(d.total = 3 * t.total) FROM mart.totals t JOIN mart.doubled d USING (customer_id)"
        ).fetchone()
    assert tripled == (True,)
    for words in ((), ("totals", "--frozen")):
        done = projecting.run("rebuild", *words)
        assert done.code == 2 and "name the projections to build" in done.err


def built_of(lines: list[str]) -> list[str]:
    """The generations that a rebuild tells of, in order."""
    return [line.split(":")[0] for line in lines if re.match(r"\w+ g\d+: ", line)]
