"""What commands do and print, on real servers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import psycopg
import pytest

from tailrace.demo.events import OrderPaid
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tailrace.eventstore.streams import Stream, append
from tests.tailrace.conftest import Project, until

COMMANDS = [
    [], ["init"], ["doctor"], ["capture"], ["status"], ["plan"], ["run"], ["rebuild"], ["verify"], ["replay"], ["demo"],
    ["source"], ["source", "list"], ["topic"], ["topic", "list"], ["topic", "show"], ["topic", "retire"], ["log"],
    ["log", "tail"], ["log", "show"], ["log", "verify"], ["projection"], ["projection", "list"],
    ["projection", "check"], ["projection", "promote"], ["projection", "rollback"], ["projection", "gc"],
    ["group"], ["group", "list"],
    ["group", "show"], ["group", "reset"], ["group", "parked"], ["group", "replay"], ["group", "discard"],
    ["group", "delete"], ["store"], ["store", "info"], ["store", "seal"], ["store", "maintain"], ["store", "backup"],
    ["store", "hold"],
]  # fmt: skip
HEAVY = {"numba", "pandas", "pyarrow", "pyspark", "sqlalchemy"}


def test_every_command_has_help_and_help_imports_nothing_heavy() -> None:
    """One process for all: what one imports, the last line shows."""
    code = (
        "import sys, json\nfrom tailrace.cli.main import run\n"
        f"codes = [run([*command, '--help']) for command in {COMMANDS!r}]\n"
        f"print(json.dumps([codes, sorted({HEAVY!r} & set(sys.modules))]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    codes, heavy = json.loads(done.stdout.splitlines()[-1])
    assert set(codes) == {0}
    assert heavy == []
    for command in COMMANDS[1:]:
        assert f"tailrace {' '.join(command)}" in done.stdout


def test_the_version(project: Project) -> None:
    from tailrace import __version__

    assert project.ok("--version").out == f"tailrace {__version__}\n"


def test_a_starter_is_written_once_and_is_valid(project: Project) -> None:
    assert "[sources.shop]" in project.ok("init", "--example", "--dry-run").out
    assert not (project.folder / "tailrace.toml").exists()
    project.ok("init", "--example")
    again = project.run("init", "--example")
    assert again.code == 2
    assert "exists and is left as it is" in again.err
    environment = {"SHOP_DSN": "postgresql://127.0.0.1:1/x", "MART_DSN": "postgresql://127.0.0.1:1/x"}
    assert "there is no store here" in project.run("status", environment=environment).err


def test_a_dry_run_says_what_init_would_run_and_changes_nothing(shop: Project, database: str) -> None:
    dry = shop.ok("init", "--dry-run")
    assert 'would run  CREATE PUBLICATION "' in dry.out
    assert "would add topic  shop.public.orders" in dry.out
    assert not (shop.folder / ".tailrace").exists()
    with psycopg.connect(database) as connection:
        assert connection.execute(
            "SELECT count(*) FROM pg_publication WHERE pubname LIKE 't%'"
        ).fetchone() == (0,)
    (planned,) = shop.ok("init", "--dry-run", "--json").documents
    (done,) = shop.ok("init", "--json").documents
    assert planned["statements"] == done["statements"]
    assert planned["new_topics"] == done["new_topics"] == ["shop.public.customers", "shop.public.orders"]
    assert shop.run("init", "--detailed-exitcode").code == 3


def test_capture_until_idle_then_everything_is_in_the_log(shop: Project, database: str) -> None:
    assert "takes the first load" in shop.ok("init").out
    assert "waiting for first load" in shop.ok("status").out
    shop.ok("capture", "--until-idle")
    again = shop.ok("init").out
    assert "it is prepared already" in again and "takes the first load" not in again
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE orders SET amount = 0.5 WHERE id = 7")
        connection.execute("DELETE FROM orders WHERE id = 8")
    shop.ok("capture", "--once")
    changes = shop.ok("replay", "shop.public.orders", "--from", "2").documents
    assert [(c["op"], c["key"]) for c in sorted(changes, key=lambda c: int(c["ordinal"]))] == [
        ("u", {"id": 7}), ("d", {"id": 8}),
    ]  # fmt: skip
    assert len(shop.ok("replay", "shop.public.orders", "--from", "1", "--to", "1").documents) == 100
    assert shop.run("replay", "shop.public.orders", "--from", "2", "--to", "1").code == 2
    (status,) = shop.ok("status", "--json").documents
    assert status["head"]["epoch"] == 2
    assert status["sources"][0]["incomplete"] == 0
    tail = shop.ok("log", "tail", "-n", "2").out.splitlines()
    assert ["update" in tail[0], "delete" in tail[1]] == [True, True]


def test_capture_until_idle_does_not_wait_for_a_table_that_is_gone(shop: Project, database: str) -> None:
    shop.ok("init")
    shop.ok("capture", "--once")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP TABLE orders CASCADE")
        connection.execute("UPDATE customers SET name = 'Ada' WHERE id = 1")
    done = shop.ok("capture", "--once")
    assert "shop.public.orders cannot be loaded: its table is not there, or not published" in done.err
    shop.ok("init")
    shop.ok("capture", "--once")
    names = {
        change["after"]["name"]
        for change in shop.ok("replay", "shop.public.customers", "--from", "2").documents
    }
    assert names == {"Ada"}


def test_replay_between_lsns_splits_at_transactions(shop: Project, database: str) -> None:
    shop.ok("init")
    shop.ok("capture", "--once")
    with psycopg.connect(database, autocommit=True) as connection:
        for order in (1, 2, 3):
            connection.execute("UPDATE orders SET amount = 0 WHERE id = %s", [order])
    shop.ok("capture", "--once")
    changes = shop.ok("replay", "shop.public.orders", "--from", "2").documents
    by_lsn = sorted(changes, key=lambda change: int(change["lsn"].partition("/")[2], 16))
    assert [change["key"]["id"] for change in by_lsn] == [1, 2, 3]
    second = by_lsn[1]["lsn"]
    before = shop.ok("replay", "shop.public.orders", "--from", "2", "--to", second).documents
    after = shop.ok("replay", "shop.public.orders", "--from", second).documents
    assert [change["key"]["id"] for change in before] == [1]
    assert sorted(change["key"]["id"] for change in after) == [2, 3]


def test_what_replay_prints_is_json_for_every_language(shop: Project, database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE odd (id int PRIMARY KEY, f float8, r real[])")
        connection.execute("INSERT INTO odd VALUES (1, 'NaN', '{Infinity,1}'), (2, '-Infinity', NULL)")
    shop.ok("init")
    shop.ok("capture", "--once")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    lines = shop.ok("replay", "shop.public.odd").out.splitlines()
    rows = [json.loads(line, parse_constant=refuse)["after"] for line in lines]
    assert sorted((row["id"], row["f"], row["r"]) for row in rows) == [
        (1, "NaN", ["Infinity", 1.0]),
        (2, "-Infinity", None),
    ]


def test_why_a_row_changed_and_what_changed_with_an_event_are_shown_from_both_sides(
    shop: Project, database: str
) -> None:
    shop.ok("init", "--events")
    shop.ok("capture", "--once")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE orders SET amount = 1 WHERE id = 7")
        with connection.transaction():
            connection.execute("UPDATE orders SET amount = 2 WHERE id = 7")
            append(connection, Stream("order", "5"), [OrderPaid(method="cash")])
            append(connection, Stream("order", "7"), [OrderPaid(method="card")])
            connection.execute("UPDATE customers SET name = 'Ada' WHERE id = 1")
        with connection.transaction():
            connection.execute("UPDATE orders SET amount = 3 WHERE id = 6")
            append(connection, Stream("order", "6"), [OrderPaid(method="invoice")])
    shop.ok("capture", "--once")

    history = shop.ok("log", "show", "shop.public.orders", "7", "--json").documents
    events = [[json.loads(event["after"]["data"])["method"] for event in row["events"]] for row in history]
    assert [change["after"]["amount"] for change in history] == ["7.00", "1.00", "2.00"]
    assert events == [[], [], ["card", "cash"]]  # its own stream's first
    shown = shop.ok("log", "show", "shop.public.orders", "7").out
    before, _, last = shown.partition("amount: 1.00 → 2.00")
    assert 'order_paid on 7 v1: {"method": "card"}' in last and "and 1 more of the transaction" in last
    assert "order_paid" not in before and "cash" not in last

    related = shop.ok("log", "show", "shop.public.orders", "7", "--related").out
    assert "order_paid on 5" in related and "shop.public.customers: update id=1, name=Ada" in related
    assert "orders" not in related.replace("shop.public.orders", "")

    (paid,) = shop.ok("log", "show", "shop.order", "7", "--json").documents
    assert sorted((row["topic"], row["key"]["id"]) for row in paid["changes"]) == [
        ("shop.public.customers", 1), ("shop.public.orders", 7),
    ]  # fmt: skip
    (line,) = [row for row in shop.ok("log", "show", "shop.order", "6").out.splitlines() if "v1" in row]
    assert 'order_paid on 6 v1: {"method": "invoice"}' in line and "shop.public.orders: update id=6" in line

    with Store.open(StoreSettings(), root=shop.folder) as store:
        (found,) = store.tail(["shop.order"], start="earliest", keys=["7"], timeout=0)
        (event,) = found.events(OrderPaid)
        assert event.lsn is not None
        rows = {str(each.topic): each for each in store.transaction("shop", event.lsn)}
        (change,) = rows["shop.public.orders"].changes()
        assert set(rows) == {"shop.order", "shop.public.orders", "shop.public.customers"}
        assert change.key == {"id": 7} and change.lsn == event.lsn
        assert store.transaction("shop", event.lsn - 1) == []


def test_the_log_is_verified_against_its_source(shop: Project, database: str) -> None:
    shop.ok("init")
    with psycopg.connect(database, autocommit=True) as connection:
        (name,) = connection.execute("SELECT pubname FROM pg_publication").fetchone() or ("",)
        connection.execute(f"DROP PUBLICATION {name}".encode())
        connection.execute(f"CREATE PUBLICATION {name} FOR TABLES IN SCHEMA public".encode())
    capture = shop.start("capture")
    until(lambda: shop.ok("status", "--json").documents[0]["sources"][0]["state"] == "loaded")
    found = shop.ok("verify", "--source", "--json").documents
    assert {(each["topic"], each["equal"], each["source_rows"]) for each in found} == {
        ("shop.public.customers", True, 20), ("shop.public.orders", True, 100),
    }  # fmt: skip
    assert "equals its source at" in shop.ok("verify", "--source", "shop.public.orders").out
    assert shop.run("verify", "--source", "shop.public.ordes").code == 2
    # A change that capture cannot see: the table leaves the published schema for the time of one statement.
    with psycopg.connect(database) as connection:
        connection.execute("CREATE SCHEMA hidden")
        connection.execute("ALTER TABLE orders SET SCHEMA hidden")
        connection.execute("UPDATE hidden.orders SET amount = 0 WHERE id = 5")
        connection.execute("ALTER TABLE hidden.orders SET SCHEMA public")
    different = shop.run("verify", "--source", "--show-values")
    assert different.code == 4
    assert "shop.public.orders: DIFFERS from its source" in different.out
    assert "  different: 5" in different.out
    (hidden,) = (each for each in shop.run("verify", "--source", "--json").documents if not each["equal"])
    assert hidden["different_samples"] == [["<hidden: 1 character>"]]
    assert shop.end(capture, signal.SIGTERM).code == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_stopped_capture_ends_cleanly_and_leaves_the_slot_free(
    shop: Project, database: str, number: signal.Signals, code: int
) -> None:
    shop.ok("init")
    capture = shop.start("capture")
    until(lambda: shop.ok("status", "--json").documents[0]["sources"][0]["state"] == "loaded")
    assert Project.end(capture, number).code == code
    with psycopg.connect(database) as connection:
        query = "SELECT count(*) FROM pg_replication_slots WHERE active AND database = current_database()"
        until(lambda: connection.execute(query).fetchone() == (0,))
    shop.ok("capture", "--for", "0.1")


def test_a_reader_that_goes_away_is_no_failure(shop: Project) -> None:
    shop.ok("init")
    shop.ok("capture", "--once")
    replay = shop.start("replay", "shop.public.orders")
    assert replay.stdout is not None
    assert replay.stdout.readline()
    replay.stdout.close()
    assert replay.wait(60) == 0


def test_status_and_the_catalogs_verbs_start_no_spark(shop: Project) -> None:
    shop.ok("init")
    shop.environment["JAVA_HOME"] = str(shop.folder)  # a Java that cannot start
    for command in (
        ["status"],
        ["projection", "list"],
        ["projection", "gc"],
        ["store", "info"],
        ["store", "seal"],
        ["store", "maintain"],
    ):
        shop.ok(*command)


def test_doctor_says_what_to_do_for_everything_that_is_not_well(shop: Project, redis_url: str) -> None:
    text = (shop.folder / "tailrace.toml").read_text()
    (shop.folder / "file").write_text("")
    extra = f"""
        [sinks.cache]
        kind = "redis"
        url = "{redis_url}"
        [sinks.gone]
        kind = "redis"
        url = "redis://127.0.0.1:1/0"
        [sinks.search]
        kind = "search"
        path = "file/index"
    """
    shop.configure(text + extra)
    done = shop.run("doctor", "--json")
    (report,) = done.documents
    checks = {check["subject"]: check for check in report["checks"]}
    assert done.code == 7
    assert all(check["remedy"] for check in report["checks"] if check["verdict"] != "ok")
    assert {name for name, check in checks.items() if check["verdict"] == "fail"} == {
        "sink gone",
        "sink search",
    }
    assert checks["source shop"]["verdict"] == checks["sink mart"]["verdict"] == "ok"
    assert not (shop.folder / ".tailrace").exists()
    shop.configure(text)
    assert shop.run("doctor").code == 0


def test_doctor_refuses_a_redis_that_evicts(shop: Project, redis_server: object) -> None:
    server = redis_server(settings={"maxmemory-policy": "allkeys-lru"})  # type: ignore[operator]
    shop.configure(
        (shop.folder / "tailrace.toml").read_text() + f'\n[sinks.cache]\nkind = "redis"\nurl = "{server.url}"'
    )
    done = shop.run("doctor")
    assert done.code == 7
    assert "evicts any key (maxmemory-policy allkeys-lru)" in done.out
    assert "CONFIG SET maxmemory-policy noeviction" in done.out
