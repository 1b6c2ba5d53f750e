"""kill -9 right after each step of a refresh and of a promotion: the next start finishes it, nothing twice or half."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread

import psycopg
import pytest
import redis as redis_client
from pydantic import SecretStr

from tailrace.cli import main
from tailrace.cli.projection.status import projection_statuses
from tailrace.embedded import PostgresServer, RedisServer
from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import Fenced, OperatorError, TransientError
from tailrace.eventstore.metadata.generations import GenerationState
from tailrace.eventstore.settings import Settings
from tailrace.eventstore.store import Store
from tailrace.projections import load_projections
from tailrace.projections.compute.bucket import RECEIPT
from tailrace.projections.context import ProjectionContext
from tailrace.projections.generations.generation import files_of
from tailrace.projections.generations.step_files import folder_of
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.collect import gc
from tailrace.projections.lifecycle.progress import SinkInspector, last_failure, measure_progress
from tailrace.projections.lifecycle.promote import Promotion, promote, reconcile, rollback
from tailrace.projections.lifecycle.verify import verify
from tailrace.projections.refresh.apply import apply
from tailrace.projections.refresh.lock import build_lease
from tailrace.projections.refresh.plan import Incremental, Nothing
from tailrace.projections.refresh.plan_all import plans
from tailrace.projections.refresh.refresh import RefreshOutcome
from tailrace.projections.runner import run
from tests.fixtures.scale import Scale
from tests.fixtures.servers import RedisFactory, ServerFactory
from tests.projections.conftest import Deploy, commit_step
from tests.projections.lifecycle.test_lifecycle import BAD_TOTALS, TOTALS, rows_of
from tests.projections.shoplog import ShopLog, settings_in
from tests.support import REPOSITORY, forking

NAMES = ("customer_totals", "order_cache", "product_search")


def settings_file(settings: Settings, folder: Path, modules: list[str]) -> Path:
    """The configuration of a scheduler's job."""
    store, sinks = settings.store, settings.sinks
    dsn, url = sinks["mart"].dsn, sinks["cache"].url
    assert dsn is not None and url is not None
    path = folder / "tailrace.toml"
    path.write_text(
        textwrap.dedent(f"""
        [store]
        name = "{store.name}"
        catalog = "{store.catalog}"
        segments = "{store.segments}"
        partitions = {store.partitions}
        [sinks.mart]
        kind = "postgres"
        dsn = "{dsn.get_secret_value()}"
        [sinks.cache]
        kind = "redis"
        url = "${{SHOP_CACHE}}"
        [sinks.search]
        kind = "search"
        path = "{sinks["search"].path}"
        [projections]
        modules = {modules!r}
        [spark]
        master = "local[2]"
        shuffle_partitions = 4
    """)
    )
    os.environ["SHOP_CACHE"] = url.get_secret_value()
    return path


def run_python(arguments: list[str], failpoint: str | None) -> subprocess.CompletedProcess[str]:
    """A process of its own, killed at ``failpoint``."""
    environment = dict(os.environ)
    environment.pop("TAILRACE_FAILPOINT", None)
    if failpoint:
        environment["TAILRACE_FAILPOINT"] = failpoint
    return forking.run([sys.executable, *arguments], cwd=REPOSITORY, env=environment, timeout=200)


def job(
    settings: Path, verb: str, *names: str, failpoint: str | None = None
) -> subprocess.CompletedProcess[str]:
    words = ["run", "--once", "--detailed-exitcode"] if verb == "refresh" else [verb]
    return run_python(["-m", "tailrace", "--config", str(settings), *words, *names], failpoint)


def at_least(name: str) -> list[object]:
    """A projection into each sink, all but ``name`` in the slow tail: the sinks' contract kills each of them, too."""
    return [each if each == name else pytest.param(each, marks=pytest.mark.slow) for each in NAMES]


def killed(done: subprocess.CompletedProcess[str]) -> bool:
    return done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("name", at_least("customer_totals"))
def test_a_driver_killed_while_applying_is_finished_by_the_next_which_needs_no_spark(
    shop: ShopLog, deploy: Deploy, settings: Settings, tmp_path: Path, name: str
) -> None:
    ctx = deploy()
    refresh(ctx, [name])
    file = settings_file(settings, tmp_path, ["tailrace.demo.shop.projections"])
    generation = ctx.generation(name, 1)
    before = ctx.fence(generation)
    cut = ctx.store.cut(shop.work())
    commit_step(ctx, ctx.projection(name), generation, cut)

    assert killed(job(file, "refresh", name, failpoint="bucket_applied"))
    assert ctx.fence(generation) == before, "the fence comes last"
    assert killed(job(file, "refresh", name, failpoint="sink_fenced"))
    after = ctx.fence(generation)
    assert after is not None and after.epoch == cut.epoch
    done = job(file, "refresh", name)

    assert done.returncode == 3, done.stderr
    assert rows_of(ctx, name) == shop.expected(name)
    assert verify(ctx, name).equal
    (applied, _) = ctx.store.run_records.latest(name, kinds=["full", "incremental"])
    assert (applied.to_epoch, applied.reason.rpartition(", ")[2]) == (cut.epoch, "applied")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_two_appliers_at_once_leave_what_one_would_have_left(
    shop: ShopLog, deploy: Deploy, settings: Settings, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """One is in the middle of a step while the other brings that step and the next."""
    ctx = deploy()
    refresh(ctx, [name])
    generation = ctx.generation(name, 1)
    for _ in range(2):
        commit_step(ctx, ctx.projection(name), generation, ctx.store.cut(shop.work()))
    mine, hit = threading.current_thread(), failpoints.hit
    others: list[Thread] = []

    def overtake() -> None:
        with Store.open(settings.store) as store, suppress(Fenced, TransientError):
            apply(ProjectionContext(store, settings, ctx.projections), generation)

    def meanwhile(at: str) -> None:
        if at == "bucket_applied" and threading.current_thread() is mine and not others:
            others.append(Thread(target=overtake))
            others[0].start()
            others[0].join(2.0)  # a sink of transactions has it wait for us
        hit(at)

    monkeypatch.setattr(failpoints, "hit", meanwhile)
    with suppress(Fenced, TransientError):
        apply(ctx, generation)
    others[0].join()
    apply(ctx, generation)

    assert rows_of(ctx, name) == shop.expected(name)
    assert verify(ctx, name).equal
    fence, last = ctx.fence(generation), ctx.store.steps.last(name, 1)
    assert fence is not None and last is not None and fence.epoch == last.to_epoch


@pytest.mark.slow
def test_a_task_that_is_killed_as_it_writes_leaves_a_build_that_the_next_run_finishes(
    shop: ShopLog, deploy: Deploy, settings: Settings, tmp_path: Path
) -> None:
    """A worker process, as a system out of memory kills it: with one driver and no cluster nobody tries again."""
    ctx = deploy()
    file = settings_file(settings, tmp_path, ["tailrace.demo.shop.projections"])

    cut_off = job(file, "rebuild", "customer_totals", failpoint="derived_written")
    assert cut_off.returncode == 6, cut_off.stderr
    assert "a worker process of Spark's ended" in cut_off.stderr and "Traceback" not in cut_off.stderr
    assert ctx.generation("customer_totals", 1).state is GenerationState.BUILDING
    files = list(ctx.store.storage.list(folder_of("customer_totals")))
    finished = [path for path in files if path.endswith(RECEIPT)]
    assert finished and len(files) >= 2 * len(finished), (
        "whole buckets, and what the other worker may still write"
    )
    built = rebuild(ctx, "customer_totals")

    assert built.resumed and built.promoted is not None
    (record,) = ctx.store.run_records.latest("customer_totals", kinds=["full"], but=["failed"])
    assert f"; {len(finished)} of 2 buckets were finished before" in record.reason
    assert [generation.number for generation in ctx.generations("customer_totals")] == [1]
    assert rows_of(ctx, "customer_totals") == shop.expected("customer_totals")
    gc(ctx, "customer_totals")
    (step,) = ctx.store.steps.list("customer_totals", 1)
    assert set(ctx.store.storage.list(folder_of("customer_totals"))) == files_of(step).paths()


@pytest.mark.slow
def test_a_driver_killed_while_planning_or_after_its_commit_is_resumed(
    shop: ShopLog, deploy: Deploy, settings: Settings, tmp_path: Path
) -> None:
    ctx = deploy()
    rebuild(ctx, "customer_totals")
    generation = ctx.generation("customer_totals", 1)
    file = settings_file(settings, tmp_path, ["tailrace.demo.shop.projections"])
    epoch = shop.work()
    (planned,) = plans(ctx, ["customer_totals"])
    assert isinstance(planned.plan, Incremental)
    steps = ctx.store.steps.list("customer_totals", 1)

    assert killed(job(file, "refresh", "customer_totals", failpoint="refresh_planned"))
    assert ctx.store.steps.list("customer_totals", 1) == steps
    assert killed(job(file, "refresh", "customer_totals", failpoint="derived_committed"))
    last = ctx.store.steps.last("customer_totals", 1)
    assert last is not None and last.to_epoch == epoch
    assert rows_of(ctx, "customer_totals") != shop.expected("customer_totals")
    (planned,) = plans(ctx, ["customer_totals"])
    assert isinstance(planned.plan, Nothing) and (planned.waiting, planned.problem) == (1, "")
    (unknown,) = plans(_with_mart_at_closed_port(ctx), ["customer_totals"])
    assert isinstance(unknown.plan, Nothing) and unknown.waiting == 0 and "127.0.0.1:1" in unknown.problem
    done = job(file, "refresh", "customer_totals")

    assert done.returncode == 0, done.stderr
    assert ctx.store.steps.last("customer_totals", 1) == last
    assert rows_of(ctx, "customer_totals") == shop.expected("customer_totals")
    fence = ctx.fence(generation)
    assert fence is not None and fence.epoch == epoch
    step, built = ctx.store.run_records.latest("customer_totals")
    assert (built.kind, step.kind, step.status, step.seconds) == ("full", "incremental", "done", None)
    assert (step.from_epoch, step.to_epoch) == (last.from_epoch, last.to_epoch)
    assert (step.rows_upserted, step.rows_deleted) == (files_of(last).upserts, files_of(last).deletes)
    assert step.keys and step.bytes == sum(file.bytes for file in files_of(last).deltas) > 0
    assert step.reason.endswith("; computed by an earlier run that was cut off, applied now")


def _with_mart_at_closed_port(ctx: ProjectionContext) -> ProjectionContext:
    dsn = SecretStr("host=127.0.0.1 port=1 dbname=mart user=mart password=none")
    mart = ctx.settings.sinks["mart"].model_copy(update={"dsn": dsn})
    settings = ctx.settings.model_copy(update={"sinks": ctx.settings.sinks | {"mart": mart}})
    return ProjectionContext(ctx.store, settings, ctx.projections)


def test_a_build_into_a_server_without_room_is_on_record_as_it_went_and_goes_on_when_there_is_some(
    shop: ShopLog, deploy: Deploy, redis_server: RedisFactory
) -> None:
    server = redis_server()
    made = deploy()
    cache = made.settings.sinks["cache"].model_copy(update={"url": SecretStr(server.url)})
    settings = made.settings.model_copy(update={"sinks": made.settings.sinks | {"cache": cache}})
    ctx = ProjectionContext(made.store, settings, made.projections)
    with redis_client.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", "1")
        with pytest.raises(OperatorError, match="maxmemory is used up") as caught:
            rebuild(ctx, "order_cache")
        assert "hidden" not in str(caught.value) and "raise maxmemory" in caught.value.hint
        (failed,) = ctx.store.run_records.latest("order_cache")
        assert (failed.kind, failed.status) == ("build", "failed") and "maxmemory" in failed.reason
        client.config_set("maxmemory", "0")
    built = rebuild(ctx, "order_cache")

    assert built.resumed and rows_of(ctx, "order_cache") == shop.expected("order_cache")
    done, failed = ctx.store.run_records.latest("order_cache")
    assert (done.kind, done.status, done.generation, done.to_epoch) == ("full", "done", 1, built.epoch)
    assert done.rows_upserted == built.upserts > 0 and done.reason.endswith("applied now")
    assert failed.status == "failed" and last_failure(ctx.store, "order_cache") is None


@pytest.mark.slow
def test_a_second_run_or_rebuild_is_told_who_is_at_work_and_the_first_goes_on(
    shop: ShopLog, deploy: Deploy, settings: Settings, tmp_path: Path
) -> None:
    ctx = deploy()
    refresh(ctx, ["order_cache"])
    file = settings_file(settings, tmp_path, ["tailrace.demo.shop.projections"])
    me, told = f"by {socket.gethostname()}:{os.getpid()}", dict[str, str]()

    def second(verb: str) -> None:
        done = job(file, verb, "order_cache")
        assert done.returncode == 5, done.stderr
        told[verb] = done.stdout + done.stderr

    ctx.report = lambda step, *_: None if told or not step.startswith("computing") else second("refresh")
    epoch = shop.work()
    (outcome,) = refresh(ctx, ["order_cache"])
    assert (outcome.status, outcome.epoch) == ("done", epoch)
    assert f"projection 'order_cache' is being refreshed already: run {me}, since 20" in told["refresh"]
    with build_lease(ctx, "order_cache", None, None):
        second("rebuild")
    assert f"projection 'order_cache' is being built already: rebuild {me}, since 20" in told["rebuild"]
    assert [each.number for each in ctx.generations("order_cache")] == [1], "nothing was begun"
    assert rows_of(ctx, "order_cache") == shop.expected("order_cache")


@pytest.mark.slow
def test_a_killed_rebuild_is_finished_under_its_number(
    shop: ShopLog, deploy: Deploy, settings: Settings, tmp_path: Path
) -> None:
    ctx = deploy()
    file = settings_file(settings, tmp_path, ["tailrace.demo.shop.projections"])

    assert killed(job(file, "rebuild", "order_cache", failpoint="bucket_applied:2"))
    assert [generation.state for generation in ctx.generations("order_cache")] == [GenerationState.BUILDING]
    shop.work()
    built = rebuild(ctx, "order_cache")

    assert built.resumed and built.generation == 1 and built.promoted is not None
    assert rows_of(ctx, "order_cache") == shop.expected("order_cache")
    assert verify(ctx, "order_cache").equal


PROMOTE = """
import sys
from pathlib import Path
from tailrace.eventstore.store import Store
from tailrace.projections.context import ProjectionContext
from tailrace.projections.lifecycle.promote import promote, rollback
from tailrace.config.load import load_settings

settings = load_settings(Path(sys.argv[1]))
with Store.open(settings.store) as store:
    ctx = ProjectionContext(store, settings, {})
    promote(ctx, sys.argv[2], 2) if sys.argv[3] == "promote" else rollback(ctx, sys.argv[2])
    assert "pyspark" not in sys.modules
"""


@pytest.mark.parametrize("name", at_least("product_search"))
def test_a_promotion_killed_in_the_middle_is_old_or_new_and_then_finished(
    shop: ShopLog, deploy: Deploy, settings: Settings, tmp_path: Path, name: str
) -> None:
    ctx = deploy()
    rebuild(ctx, name)
    rebuild(ctx, name, promote=False)
    file = settings_file(settings, tmp_path, [])
    sink = ctx.sink(ctx.generation(name, 1))

    assert killed(run_python(["-c", PROMOTE, str(file), name, "promote"], "generation_promoted"))
    assert (ctx.store.derived.live(name), sink.live("acme", name)) == (2, 1), "decided, not shown yet"
    assert reconcile(ctx, name)
    assert (ctx.store.derived.live(name), sink.live("acme", name)) == (2, 2)
    assert killed(run_python(["-c", PROMOTE, str(file), name, "rollback"], "generation_promoted:2"))
    assert (ctx.store.derived.live(name), sink.live("acme", name)) == (1, 1)
    assert not reconcile(ctx, name)

    assert promote(ctx, name, 2) == Promotion(name, 2, 1, promote(ctx, name, 2).fence)
    assert rollback(ctx, name).generation == 1
    assert rows_of(ctx, name) == shop.expected(name)


STEPS = ("refresh_planned", "derived_committed", "bucket_applied", "sink_fenced")
EACH_KILLED = [(step, name) for step in STEPS for name in ("customer_totals", "order_cache")]
SOME_KILLED = [EACH_KILLED[4], EACH_KILLED[3]]


@pytest.mark.slow
def test_a_sink_server_that_is_killed_at_any_step_full_or_down_for_a_minute_is_caught_up_with(
    tmp_path: Path,
    spark: object,
    postgres_server: ServerFactory,
    redis_server: RedisFactory,
    monkeypatch: pytest.MonkeyPatch,
    scale: Scale,
) -> None:
    table, cache = postgres_server(), redis_server(settings={"appendonly": "yes", "appendfsync": "always"})
    settings = settings_in(tmp_path, dsn=table.dsn(), redis_url=cache.url)
    killing: list[tuple[str, PostgresServer | RedisServer]] = []

    def hit(name: str, times: int = 1) -> None:
        if killing and killing[0][0] == name:
            killing.pop()[1].kill()

    monkeypatch.setattr(failpoints, "hit", hit)
    with Store.open(settings.store, create=True) as store:
        shop = ShopLog.start(store)
        kills = scale.pick(smoke=SOME_KILLED, full=13 * EACH_KILLED)
        shop.fill(customers=12 + len(kills), orders=80)
        ctx = ProjectionContext(store, settings, load_projections(["tailrace.demo.shop.projections"]))
        servers: dict[str, PostgresServer | RedisServer] = {"customer_totals": table, "order_cache": cache}
        refresh(ctx, list(servers))
        for number, (step, name) in enumerate(kills):
            where = f"kill {number}: {name} at {step}"
            epoch = shop.work()
            killing.append((step, servers[name]))
            (outcome,) = refresh(ctx, [name])
            assert not killing, where
            if step == "sink_fenced":
                assert outcome.status == "done", where
            else:
                assert isinstance(outcome.error, TransientError), where
            servers[name].start()
            refresh(ctx, [name])
            fence = ctx.fence(ctx.generation(name, 1))
            assert fence is not None and fence.epoch == epoch, where
            assert rows_of(ctx, name) == shop.expected(name), where
        with redis_client.Redis.from_url(cache.url) as client:
            client.config_set("maxmemory", "1")
            shop.work()
            (outcome,) = refresh(ctx, ["order_cache"])
            assert isinstance(outcome.error, OperatorError) and "maxmemory" in outcome.error.message
            client.config_set("maxmemory", "0")
        refresh(ctx, list(servers))
        for name, server in servers.items():
            shop.work()
            runs_on_while_a_sink_is_down_for_a_minute(ctx, name, server, scale)
        refresh(ctx, list(servers))
        for name in servers:
            assert rows_of(ctx, name) == shop.expected(name)
            assert verify(ctx, name).equal


def runs_on_while_a_sink_is_down_for_a_minute(
    ctx: ProjectionContext, name: str, server: PostgresServer | RedisServer, scale: Scale
) -> None:
    """A minute of the runner's clock: at smoke scale a second passes whenever it is asked."""
    quick = ctx.settings.projections.model_copy(update={"poll_seconds": scale.pick(smoke=0.1, full=1.0)})
    ctx = ProjectionContext(
        ctx.store, ctx.settings.model_copy(update={"projections": quick}), ctx.projections
    )
    clock: Callable[[], float] = scale.pick(smoke=itertools.count().__next__, full=time.monotonic)
    told: list[tuple[str, str]] = []
    tries: list[float] = []
    stop, began = threading.Event(), clock()

    def count(outcome: RefreshOutcome) -> None:
        if outcome.status == "done":
            stop.set()
            return
        assert isinstance(outcome.error, TransientError)
        tries.append(clock())
        if len(tries) == 3:
            (seen,) = [each for each in projection_statuses(ctx.store, ctx.settings) if each.name == name]
            assert seen.sink_epoch is None and seen.behind_epochs and f":{server.port}" in seen.sink_problem
            assert seen.failing is not None and seen.failing.tries >= 2
            (standing,) = [
                each
                for each in measure_progress(ctx, datetime.now(UTC), SinkInspector(60))
                if each.projection == name
            ]
            assert standing.problem and len(standing.rungs) == 1
        if tries[-1] - began > 60 and not server.running:
            server.start()

    server.kill()
    run(ctx, [name], stop, lambda each: told.append((each.status, each.reason)), count, clock)
    assert [status for status, _ in told] == ["failed", "done"], told
    assert told[0][1].endswith("; it is tried again until it works")
    assert 5 <= len(tries) <= 12, "ever more rarely"
    assert tries[-1] - tries[-2] > tries[1] - tries[0]


@pytest.mark.parametrize("name", ["customer_totals", pytest.param("order_cache", marks=pytest.mark.slow)])
def test_a_sink_server_that_is_killed_in_a_first_load_or_a_promotion_is_gone_on_with(
    tmp_path: Path,
    spark: object,
    postgres_server: ServerFactory,
    redis_server: RedisFactory,
    redis_url: str,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    server: PostgresServer | RedisServer
    if name == "customer_totals":
        server = table = postgres_server()
        settings = settings_in(tmp_path, dsn=table.dsn(), redis_url=redis_url)
    else:
        server = cache = redis_server(settings={"appendonly": "yes", "appendfsync": "always"})
        settings = settings_in(tmp_path, dsn=database, redis_url=cache.url)
    coming: list[str] = []

    def hit(step: str, times: int = 1) -> None:
        if coming and coming[0] == step:
            coming.pop()
            if not coming:
                server.kill()

    monkeypatch.setattr(failpoints, "hit", hit)
    with Store.open(settings.store, create=True) as store:
        ShopLog.start(store).fill()
        ctx = ProjectionContext(store, settings, load_projections(["tailrace.demo.shop.projections"]))

        coming[:] = 2 * ["bucket_applied"]
        with pytest.raises(TransientError):
            rebuild(ctx, name)
        assert not coming and store.derived.live(name) is None
        server.start()
        built = rebuild(ctx, name)
        assert built.resumed and (built.generation, len(ctx.generations(name))) == (1, 1)
        assert verify(ctx, name).equal

        sink = ctx.sink(ctx.generation(name, 1))
        coming[:] = ["generation_promoted"]
        with pytest.raises(TransientError):
            rebuild(ctx, name)
        server.start()
        assert not coming and (store.derived.live(name), sink.live("acme", name)) == (2, 1), (
            "decided, not shown"
        )
        assert reconcile(ctx, name) and sink.live("acme", name) == 2
        assert verify(ctx, name).equal

        coming[:] = 2 * ["generation_promoted"]
        with suppress(TransientError):
            rebuild(ctx, name)
        server.start()
        assert not coming and (store.derived.live(name), sink.live("acme", name)) == (3, 3), "shown for good"
        assert not reconcile(ctx, name)
        assert verify(ctx, name).equal


@pytest.mark.slow
def test_a_job_tells_schedulers_by_exit_codes(
    shop: ShopLog, settings: Settings, spark: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job_totals.py").write_text(textwrap.dedent(TOTALS))
    (tmp_path / "job_bad.py").write_text(textwrap.dedent(BAD_TOTALS.replace("customer_id", "customer")))
    file = settings_file(settings, tmp_path, ["job_totals"])

    def job(*arguments: str) -> tuple[int, str]:
        before = signal.getsignal(signal.SIGTERM)
        try:
            code = main.run(["--config", str(file), *arguments])
        finally:
            signal.signal(signal.SIGTERM, before)
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    assert job("run", "--once", "--detailed-exitcode")[0] == 0
    assert job("run", "--once", "--detailed-exitcode")[0] == 3
    assert job("run", "--once")[0] == 0
    assert job("verify")[0] == 0
    code, text = job("verify", "totlas")
    assert code == 2 and "did you mean totals?" in text
    code, text = job("rebuild", "totals", "--as-of", "99999")
    assert code == 2 and "is not in the log" in text
    file = settings_file(settings, tmp_path, ["job_bad"])
    code, text = job("rebuild", "totals")
    assert code in (2, 7) and "customer" in text and "Traceback" not in text
    mart = settings.sinks["mart"].dsn
    assert mart is not None
    with psycopg.connect(mart.get_secret_value()) as connection:
        connection.execute("UPDATE totals SET total = 0 WHERE customer_id = 3")
    file = settings_file(settings, tmp_path, ["job_totals"])
    assert job("verify")[0] == 4
    file.write_text("[store]\nnam = 1\n")
    code, text = job("run", "--once")
    assert code == 2 and "store.nam" in text
