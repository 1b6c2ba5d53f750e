"""Which projection is next, and several at once: a runner beside a rebuild, a bad projection beside a good one."""

from __future__ import annotations

import math
import secrets
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event

from tailrace.eventstore.errors import TransientError, UsageError
from tailrace.eventstore.metadata.generations import NewGeneration
from tailrace.eventstore.settings import Settings
from tailrace.eventstore.store import Store
from tailrace.projections import PostgresTable
from tailrace.projections.context import ProjectionContext
from tailrace.projections.generations.step_files import schema_bytes
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.collect import gc
from tailrace.projections.lifecycle.list import generations
from tailrace.projections.lifecycle.promote import promote, rollback
from tailrace.projections.lifecycle.verify import verify
from tailrace.projections.refresh.apply import apply
from tailrace.projections.refresh.refresh import RefreshOutcome
from tailrace.projections.refresh.step import take_step
from tailrace.projections.runner import LONGEST_WAIT, UNDECLARED_SECONDS, Growth, Schedule, SharedCut, run
from tailrace.projections.sinks.record import spec_to_text
from tests.projections.conftest import Deploy
from tests.projections.shoplog import NOON, ShopLog, settings_in
from tests.support.capturing import RunningCapture, Site

FRESHNESS = st.one_of(st.none(), st.floats(0.5, 3600))
DURATIONS = st.lists(st.floats(0.05, 20), min_size=1, max_size=120)
OWN_HEAD = """
    from pathlib import Path
    from pyspark.sql import functions as F
    from tailrace.projections import PostgresTable, State, projection
"""
TOTALS = f"""{OWN_HEAD}
    @projection(key="customer_id", sink=PostgresTable("mart", "totals"), orders=State("shop.public.orders"))
    def totals(orders):
        return orders.groupBy("customer_id").agg(F.sum("amount").alias("total"))
"""
BAD = """
    @projection(key="id", sink=PostgresTable("mart", "bad"), orders=State("shop.public.orders"))
    def bad(orders):
        with Path({file!r}).open("a") as tries:
            tries.write("once more\\n")
        raise ValueError("no such luck")
"""


class Log:
    """A log to which something is committed whenever somebody looks."""

    def __init__(self) -> None:
        self.committed = [0.0]

    @property
    def head(self) -> int:
        return len(self.committed)

    def age(self, now: float, epoch: int) -> float:
        """Seconds since the commit of the epoch after ``epoch``."""
        return now - self.committed[epoch]


@given(freshness=st.lists(FRESHNESS, min_size=1, max_size=6), durations=DURATIONS)
def test_the_furthest_behind_goes_first_and_none_starves(
    freshness: list[float | None], durations: list[float]
) -> None:
    declared = {f"p{number}": each for number, each in enumerate(freshness)}
    measure = {name: each or UNDECLARED_SECONDS for name, each in declared.items()}
    patience = {name: each / 2 if each else 0.0 for name, each in declared.items()}
    schedule, log, now = Schedule(declared, interval=1.0), Log(), 1.0
    lacks: dict[str, int] = {}
    longest, fewest = max(durations), min(measure.values())
    for duration in durations:
        log.committed.append(now)
        schedule.note_growth(log.head, lambda epoch, at=now: log.age(at, epoch), now)  # type: ignore[misc]
        chosen = schedule.next(now)
        if chosen is None:
            now += min(schedule.wait(now), 1.0) + 1e-6
            continue
        behind = {name: now - log.committed[epoch] for name, epoch in lacks.items() if epoch < log.head}
        due = {name: lag / measure[name] for name, lag in behind.items() if lag >= patience[name]}
        if len(lacks) < len(declared):
            assert chosen not in lacks, "each is looked at once before any is twice"
        elif due:
            assert due[chosen] == pytest.approx(max(due.values()))
            worst = measure[chosen] * len(declared) * longest / fewest
            assert behind[chosen] <= max(patience[chosen], worst) + (len(declared) + 1) * longest + 1
        lacks[chosen] = log.head
        now += duration
        schedule.note_refreshed(chosen, lacks[chosen], now)


def test_what_declares_its_freshness_waits_for_half_of_it_and_what_does_not_for_nothing() -> None:
    schedule = Schedule({"slow": 600.0, "quick": None}, interval=1.0)
    assert [schedule.next(0.0), schedule.next(0.0)] == ["slow", "slow"], "until it is said to be refreshed"
    for name in ("slow", "quick"):
        schedule.note_refreshed(name, 1, 0.0)
    assert schedule.next(0.5) is None and schedule.wait(0.5) == 0.5
    schedule.note_growth(2, lambda epoch: 0.0, 0.5)
    assert schedule.next(0.5) == "quick"
    schedule.note_refreshed("quick", 2, 0.6)
    assert schedule.next(0.7) is None
    assert schedule.next(300.4) == "quick", "looked at again: others roll back and mend"
    schedule.note_refreshed("quick", 2, 300.4)
    assert schedule.next(300.5) == "slow"


def test_one_that_declares_its_freshness_has_every_second_turn_beside_many_that_do_not_and_none_starves() -> (
    None
):
    names = {"asked": 2.0, **dict.fromkeys(("a", "b", "c", "d"))}
    schedule, log = Schedule(names, interval=1.0), Log()
    for name in names:
        schedule.note_refreshed(name, 1, 0.0)
    now, order = 1.0, list[str]()
    while now < 120:
        log.committed.append(now)
        schedule.note_growth(log.head, lambda epoch, at=now: log.age(at, epoch), now)  # type: ignore[misc]
        chosen = schedule.next(now)
        if chosen is not None:
            order.append(chosen)
            schedule.note_refreshed(chosen, log.head, now)
        now += 1.5
    counts = [order.count(name) for name in ("a", "b", "c", "d")]
    assert order.count("asked") >= 0.45 * len(order) and min(counts) >= max(counts) - 1 > 5


@given(
    st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=6, max_size=6),
    st.lists(FRESHNESS, min_size=6, max_size=6),
)
def test_what_reads_results_of_others_goes_after_those_that_lack_something(
    reads: list[list[int]], freshness: list[float | None]
) -> None:
    below = {f"p{at}": [f"p{each}" for each in mine if each < at] for at, mine in enumerate(reads)}
    declared = {f"p{at}": each for at, each in enumerate(freshness)}
    schedule, now = Schedule(declared, interval=1.0, reads=below), 0.0
    for name in declared:
        schedule.note_refreshed(name, 1, now)
    schedule.note_growth(2, lambda epoch: 0.0, now)
    level: set[str] = set()
    while len(level) < len(declared):
        chosen = schedule.next(now)
        if chosen is None:
            now += schedule.wait(now) + 1e-6
            continue
        assert set(below[chosen]) <= level, "its inputs first"
        level.add(chosen)
        schedule.note_refreshed(chosen, 2, now)


def test_one_that_failed_keeps_nobody_waiting_who_reads_it() -> None:
    schedule = Schedule({"child": 1.0, "parent": None}, interval=1.0, reads={"child": ["parent"]})
    for name in ("child", "parent"):
        schedule.note_refreshed(name, 1, 0.0)
    schedule.note_growth(2, lambda epoch: 0.0, 0.0)
    assert schedule.next(0.6) == "parent"
    schedule.note_failed("parent", 0.6)
    assert schedule.next(0.7) == "child"


def test_one_whose_refresh_is_under_way_is_not_chosen_and_keeps_nobody_waiting_who_reads_it() -> None:
    schedule = Schedule({"child": None, "parent": None}, interval=1.0, reads={"child": ["parent"]})
    for name in ("child", "parent"):
        schedule.note_refreshed(name, 1, 0.0)
    schedule.note_growth(2, lambda epoch: 0.0, 0.0)
    assert schedule.next(0.1) == "parent"
    schedule.note_begun("parent")
    assert schedule.next(0.1) == "child", "the step that it reads is committed"
    schedule.note_begun("child")
    assert schedule.next(0.1) is None and schedule.wait(0.1) == math.inf
    schedule.note_refreshed("parent", 2, 0.2)
    schedule.note_growth(3, lambda epoch: 0.0, 0.2)
    assert schedule.next(0.3) == "parent"


def test_what_was_committed_long_ago_is_due_at_once_after_a_start() -> None:
    schedule = Schedule({"slow": 600.0}, interval=1.0)
    schedule.note_refreshed("slow", 1, 0.0)
    schedule.note_growth(2, lambda epoch: 1000.0, 0.1)
    assert schedule.next(0.1) == "slow"


def test_what_fails_is_tried_ever_more_rarely_and_slows_nobody() -> None:
    schedule, log = Schedule({"bad": 1.0, "good": 3600.0}, interval=1.0), Log()
    schedule.note_refreshed("good", 1, 0.0)
    tries: list[float] = []
    now = 0.0
    while now < 200:
        log.committed.append(now)
        schedule.note_growth(log.head, lambda epoch: 0.0, now)
        if schedule.next(now) == "bad":
            tries.append(now)
            schedule.note_failed("bad", now)
        assert schedule.next(now) != "bad"
        now += 0.5
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert gaps[:4] == [2, 4, 8, 16] and set(gaps[4:]) == {LONGEST_WAIT}
    schedule.note_refreshed("bad", log.head, now)
    schedule.note_growth(log.head + 1, lambda epoch: 0.0, now)
    assert schedule.next(now + 0.5) == "bad", "mended: as any other"


@pytest.mark.slow
def test_a_runner_leaves_a_build_alone_until_it_is_ready(shop: ShopLog, deploy: Deploy) -> None:
    runner, builder = deploy(TOTALS), deploy(TOTALS)
    builder.projections = runner.projections
    refresh(runner)
    refreshed: list[str] = []

    def meanwhile(step: str, done: int, total: int | None, unit: str) -> None:
        """While the builder computes, the log grows and the runner refreshes."""
        if step.startswith("computing") and len(refreshed) < 5:
            shop.work()
            refreshed.extend(str(outcome.generation) for outcome in refresh(runner) if outcome.changed)

    builder.report = meanwhile
    built = rebuild(builder, "totals")
    assert built.promoted is not None and built.promoted.previous == 1
    assert set(refreshed) == {"1"}
    shop.commit({"orders": [("c", shop.order(900))]})
    (outcome,) = refresh(runner)
    assert (outcome.generation, outcome.status) == (2, "done")
    assert verify(runner, "totals").equal


@pytest.mark.slow
def test_a_bad_projection_does_not_slow_the_others(
    shop: ShopLog, deploy: Deploy, settings: Settings, tmp_path: Path
) -> None:
    tries = tmp_path / "tries"
    loaded = deploy(TOTALS + BAD.format(file=str(tries)))
    slow = settings.projections.model_copy(update={"poll_seconds": 5.0})
    ctx = ProjectionContext(
        loaded.store, settings.model_copy(update={"projections": slow}), loaded.projections
    )
    stop = threading.Event()
    done = 0

    def tell(outcome: Any) -> None:
        nonlocal done
        if outcome.projection == "totals":
            assert outcome.status == "done"
            done += 1
            if done == 5:
                stop.set()
            else:
                threading.Thread(target=shop.work).start()

    run(ctx, None, stop, tell)
    assert done == 5
    assert 1 <= len(tries.read_text().splitlines()) < done


OWN = """
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Unforeseen:
        def open_sink(self, settings):
            return {}["sink"]

        def open_reader(self, settings, store, projection):
            raise NotImplementedError

    @projection(key="id", sink=Unforeseen(), orders=State("shop.public.orders"))
    def another(orders):
        return orders
"""


def test_an_exception_that_nobody_foresaw_is_an_outcome_and_the_others_go_on(
    shop: ShopLog, deploy: Deploy
) -> None:
    ctx = deploy(OWN_HEAD + OWN + TOTALS.replace(OWN_HEAD, ""))
    stop, told, notes = threading.Event(), list[RefreshOutcome](), list[str]()
    file = Path(ctx.projections["totals"].file)

    def tell(outcome: RefreshOutcome) -> None:
        told.append(outcome)
        if outcome.status == "done":
            stop.set()
        else:
            file.write_text(f"{file.read_text()}# edited")

    run(ctx, None, stop, tell, note=notes.append)
    (note,) = notes
    assert f"{file} was edited; another, totals goes on as it was read at the start" in note
    assert [(outcome.projection, outcome.status) for outcome in told] == [
        ("another", "failed"),
        ("totals", "done"),
    ]
    assert "KeyError" in told[0].reason and ".py:" in told[0].reason and told[0].error is not None
    assert [outcome.status for outcome in refresh(ctx)] == ["failed", "nothing"]


def test_what_is_due_together_is_brought_to_one_position_and_what_asks_for_a_later_one_gets_it(
    shop: ShopLog,
) -> None:
    schedule = Schedule({"cache": None, "totals": None, "board": 2.0}, 1.0)
    now = 0.0
    shared = SharedCut(shop.store, schedule, lambda: now)
    first = shared.of("cache")
    shop.work()
    now = 1.0
    assert shared.of("totals") == first, "both are due"
    assert shared.of("board").epoch > first.epoch, "a quarter of its 2 s is over"
    schedule.note_refreshed("cache", first.epoch, now)
    shop.work()
    later = shared.of("totals")
    assert later.epoch == shared.of("cache").epoch > first.epoch
    schedule.note_refreshed("totals", later.epoch, now)
    shop.work()
    newest = shared.of("totals")
    assert newest.epoch > later.epoch, "it is there already"
    schedule.note_failed("totals", now)
    shop.work()
    assert shared.of("totals").epoch > newest.epoch, "it was refused there"


def test_the_logs_end_is_looked_at_once_for_all_that_are_due_and_before_none_is(
    shop: ShopLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, looks, head = [100.0], [0], Store.head

    def counted(store: Store) -> object:
        looks[0] += 1
        return head(store)

    monkeypatch.setattr(Store, "head", counted)
    schedule = Schedule(dict.fromkeys("abc"), 60.0)
    growth = Growth(shop.store, schedule, lambda: now[0])

    def refresh_due(count: int) -> None:
        for _ in range(count):
            name = growth.due()
            assert name is not None
            schedule.note_refreshed(name, growth.seen, now[0])

    refresh_due(3)
    assert looks == [1]
    assert growth.due() is None and looks == [2]
    shop.fill()
    now[0] += 0.01
    refresh_due(1)
    assert looks == [3], "the last look is not old, but nothing was due then"
    now[0] += 0.5
    refresh_due(1)
    assert looks == [4]
    refresh_due(1)
    assert looks == [4]


def test_what_is_refreshed_by_key_gets_newer_positions_and_leaves_the_others_theirs(shop: ShopLog) -> None:
    names = ("whole", "other", "quick", "next", "board")
    schedule = Schedule(dict.fromkeys(names), 1.0, {"board": ["quick"]})
    now = 0.0
    shared = SharedCut(shop.store, schedule, lambda: now)
    first = shared.of("whole")
    for name in ("quick", "next"):
        schedule.note_refreshed(name, first.epoch - 1, now, by_key=True)
    shop.work()
    now = 1.0
    later = shared.of("quick")
    assert later.epoch > first.epoch == shared.of("other").epoch
    now = 1.4
    assert shared.of("next") == later
    assert shared.of("board").epoch == later.epoch, "never before what it reads"


@pytest.mark.slow
def test_a_runner_with_nothing_to_do_asks_for_steps_that_are_not_on_record_once(
    shop: ShopLog, deploy: Deploy
) -> None:
    refresh(deploy(TOTALS))
    shop.work()
    refresh(deploy(TOTALS))
    (newest, *_) = shop.store.run_records.latest("totals")
    with shop.store.catalog.write() as connection:
        connection.exec_driver_sql(f"DELETE FROM runs WHERE to_epoch = {newest.to_epoch}")  # noqa: S608
    ctx, asked = deploy(TOTALS), list[str]()

    def listen(connection: object, cursor: object, text: str, *_: object) -> None:
        asked.extend([text] if "FROM runs" in text else [])

    event.listen(ctx.store.catalog.engine, "before_cursor_execute", listen)
    counts = []
    for _ in range(3):
        assert [outcome.status for outcome in refresh(ctx)] == ["nothing"]
        counts.append(len(asked))
    assert 0 < counts[0] == counts[1] == counts[2]
    (found, *_) = shop.store.run_records.latest("totals")
    assert (found.to_epoch, "cut off" in found.reason) == (newest.to_epoch, True), "an earlier process's"
    shop.work()
    (done,) = refresh(ctx)
    assert (done.status, shop.store.run_records.latest("totals")[0].to_epoch) == ("done", done.epoch)


REFRESH = "tailrace.projections.refresh.refresh"
BOTH = f"""{TOTALS}
    @projection(key="customer_id", sink=PostgresTable("mart", "counts"), orders=State("shop.public.orders"))
    def counts(orders):
        return orders.groupBy("customer_id").agg(F.count("*").alias("orders"))
"""


def test_the_next_step_is_computed_while_one_is_brought_to_its_sink(
    shop: ShopLog, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx, stop, two_taken = deploy(BOTH), threading.Event(), threading.Event()
    refresh(ctx)
    shop.work()
    taken, told = list[str](), list[RefreshOutcome]()

    def taken_step(step: Any, *more: Any) -> Any:
        found = take_step(step, *more)
        taken.append(step.projection.name)
        if len(taken) == 2:
            two_taken.set()
        return found

    def patient_apply(ctx: Any, generation: Any, since: Any = None, taken: Any = None) -> Any:
        assert since is None or two_taken.wait(60)
        return apply(ctx, generation, since, taken)

    def tell(outcome: RefreshOutcome) -> None:
        told.append(outcome)
        if len(told) == 2:
            stop.set()

    monkeypatch.setattr(f"{REFRESH}.take_step", taken_step)
    monkeypatch.setattr(f"{REFRESH}.apply", patient_apply)
    run(ctx, None, stop, tell)
    assert [(each.projection, each.status) for each in told] == [(name, "done") for name in taken]
    assert verify(ctx, "totals").equal and verify(ctx, "counts").equal


def test_what_a_sink_refuses_beside_the_next_computation_is_an_outcome_and_taken_up_again(
    shop: ShopLog, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx, stop = deploy(BOTH), threading.Event()
    told, failed = list[RefreshOutcome](), list[bool]()
    refresh(ctx)
    shop.work()

    def away(ctx: Any, generation: Any, since: Any = None, taken: Any = None) -> Any:
        if since is not None and generation.projection == "totals" and not failed:
            failed.append(True)
            raise TransientError("the sink is away", hint="wait")
        return apply(ctx, generation, since, taken)

    def tell(outcome: RefreshOutcome) -> None:
        told.append(outcome)
        if {each.projection for each in told if each.status == "done"} == {"totals", "counts"}:
            stop.set()

    monkeypatch.setattr(f"{REFRESH}.apply", away)
    run(ctx, None, stop, tell)
    assert {(each.projection, each.status) for each in told} == {
        ("totals", "failed"), ("totals", "done"), ("counts", "done"),
    }  # fmt: skip
    assert verify(ctx, "totals").equal and verify(ctx, "counts").equal


def test_a_catalog_out_of_reach_is_an_outcome(
    shop: ShopLog, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = deploy(TOTALS)
    refresh(ctx)

    def away(derived: object, name: str) -> None:
        raise TransientError("the catalog is away", hint="wait")

    monkeypatch.setattr(type(ctx.store.derived), "generations_and_live", away)
    (outcome,) = refresh(ctx, ["totals"])
    assert (outcome.status, outcome.reason) == ("failed", "the catalog is away")


def test_a_position_before_the_log_is_told(shop: ShopLog, deploy: Deploy) -> None:
    ctx = deploy(TOTALS)
    began = (shop.store.epochs(limit=1)[0].commit_ts or NOON).strftime("%Y-%m-%dT%H:%M:%S")
    said = f"1999-01-01T00:00:00Z is before the log begins, at {began}Z with epoch 1"
    with pytest.raises(UsageError, match=said):
        rebuild(ctx, "totals", as_of="1999-01-01")
    assert not ctx.generations("totals")


@pytest.mark.parametrize("verb", [promote, rollback, gc, generations])
def test_a_name_that_nobody_knows_is_no_success(store: Store, settings: Settings, verb: Any) -> None:
    ctx = ProjectionContext(store, settings, {})
    store.derived.create_generation(NewGeneration(
        "totals", fingerprint="", sink=spec_to_text(PostgresTable("mart", "totals")), key=["id"],
        schema=schema_bytes(pa.schema([("id", pa.int64())])), partitions=2, split=1,
    ))  # fmt: skip
    with pytest.raises(UsageError, match="there is no projection 'total'") as caught:
        verb(ctx, "total")
    assert caught.value.hint == "did you mean totals?"


FRESH = """
    from pyspark.sql import functions as F
    from tailrace.projections import PostgresTable, State, projection

    ORDERS = State("shop.public.orders", affects="customer_id")

    @projection(key="customer_id", sink=PostgresTable("mart", "slow"), orders=ORDERS, freshness="1h")
    def slow(orders):
        return orders.groupBy("customer_id").agg(F.sum("amount").alias("total"))

    @projection(key="customer_id", sink=PostgresTable("mart", "quick"), orders=ORDERS)
    def quick(orders):
        return orders.groupBy("customer_id").agg(F.count("*").alias("orders"))
"""


@pytest.mark.slow
def test_projections_beside_a_live_capture_are_refreshed_by_their_freshness(
    tmp_path: Path, database: str, redis_url: str, spark: object, define: Any
) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, customer_id int, amount numeric(12, 2))")
        connection.execute("INSERT INTO orders SELECT n, n % 5, n FROM generate_series(1, 50) n")
    site = Site.at(tmp_path, database, name=f"r{secrets.token_hex(4)}", tables=("public.orders",))
    site.init()
    settings = settings_in(tmp_path, dsn=database, redis_url=redis_url)
    minutes, told, stop = [0.0], [], threading.Event()

    def change() -> None:
        with psycopg.connect(database) as connection:
            connection.execute("UPDATE orders SET amount = amount + 1")
            connection.execute("INSERT INTO orders SELECT max(id) + 1, 3, 7 FROM orders")

    def tell(outcome: RefreshOutcome) -> None:
        told.append((outcome.projection, outcome.status))
        match len(told):
            case 2 | 3:  # both are built, or what has no freshness followed a change
                change()
            case 4:
                minutes[0] = 31.0

    def report(step: str, done: int, total: int | None, unit: str) -> None:
        if len(told) == 4 and step == "applying slow":
            stop.set()  # as SIGTERM does; the step under way is finished

    with RunningCapture(site) as capture:
        capture.catch_up()
        with ProjectionContext(capture.store, settings, define(FRESH), report=report) as ctx:
            run(ctx, None, stop, tell, clock=lambda: minutes[0] * 60)
            names = ["slow", "quick", "quick", "quick", "slow"]
            assert told == [(name, "done") for name in names]
            assert verify(ctx, "slow").equal and verify(ctx, "quick").equal
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT sum(total) FROM slow").fetchone() == (
            50 * 51 // 2 + 50 + 7 + 51 + 7,
        )
