"""The session is quiet, in UTC, and never sent to machines that cannot read the log."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.settings import Settings, SparkSettings, StoreSettings
from tailrace.eventstore.store import Store
from tailrace.projections.compute.progress import report_buckets
from tailrace.projections.compute.state_runs import SparkWorkers
from tailrace.projections.context import ProjectionContext
from tailrace.projections.spark.masters import check_master, parallelism_of
from tailrace.projections.spark.session import open_session
from tailrace.projections.spark.versions import disagreements
from tests.fixtures.spark import SPARK
from tests.support import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


def test_a_cluster_is_refused_unless_its_workers_see_the_segments() -> None:
    cluster = SparkSettings(master="spark://somewhere:7077")

    with pytest.raises(UsageError, match=r"store\.segments is a folder of this machine") as raised:
        check_master(Settings(spark=cluster))

    assert "shared_path" in raised.value.hint
    check_master(Settings(spark=cluster, store=StoreSettings(shared_path=True)))
    check_master(Settings(spark=SPARK))


@pytest.mark.parametrize(
    ("master", "units"), [("local", 1), ("local[3]", 3), ("local[2,4]", 2), ("spark://host:7077", 9)]
)
def test_inputs_are_cut_into_as_many_units_as_there_are_cores(master: str, units: int) -> None:
    assert parallelism_of(master, 9) == units


def test_a_submitted_driver_cuts_them_for_the_master_it_was_submitted_to(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    elsewhere = SparkSettings(master="spark://of-the-settings:7077", shuffle_partitions=9)
    settings = Settings(spark=elsewhere, store=StoreSettings(shared_path=True))
    context = ProjectionContext(store, settings, {})

    assert (context.parallelism, SparkWorkers.of(settings).shares) == (9, 9)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")  # as spark-submit leaves it; the session is local[2]
    assert (context.parallelism, SparkWorkers.of(settings).shares) == (2, 2)


def test_workers_run_this_interpreter_and_find_the_projects_modules(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import tailrace.projections as projections

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable], "home": [projections.__file__]})

    (row,) = spark.range(1).mapInArrow(where, "python string, home string").toArrow().to_pylist()

    assert Path(row["python"]).resolve() == Path(sys.executable).resolve()
    assert open_session(Settings(spark=SPARK)) is spark
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert capfd.readouterr() == ("", ""), "nothing of Spark's own between a command's lines"


def _alone(program: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the session of this one is shared by all tests."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=folder, capture_output=True, text=True, timeout=240,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("end", ["at once", "slow", "before its words are read"])
def test_a_jvm_that_was_killed_is_told_and_replaced(tmp_path: Path, end: str) -> None:
    program = textwrap.dedent(
        """
        import logging, os, signal, sys, threading
        from pyspark import SparkContext
        from tailrace.eventstore.errors import TransientError
        from tailrace.eventstore.store import Store
        from tailrace.eventstore.settings import Settings, StoreSettings
        from tailrace.projections import PostgresTable, ProjectionFailed, State, projection
        from tailrace.projections.context import ProjectionContext
        from tailrace.projections.spark.errors import translate_errors
        from tests.fixtures.spark import SPARK

        @projection(key="id", sink=PostgresTable("mart", "t"), rows=State("shop.public.t"))
        def t(rows):
            return rows

        def kill(spark):
            process = SparkContext._gateway.proc
            if sys.argv[1] == "slow":  # Spark stops, the JVM answers and does not end before it is killed
                server = spark._jvm.py4j.GatewayServer(None, 0)
                server.start()
                hook = spark._jvm.java.lang.Thread(server)
                spark._jvm.java.lang.Runtime.getRuntime().addShutdownHook(hook)
                threading.Timer(4, process.kill).start()
            process.send_signal(signal.SIGTERM)
            return process

        logging.disable()  # of an answer that is cut off half-way py4j tells the root logger
        settings = Settings(store=StoreSettings(catalog="sqlite:///catalog.db", segments="segments"), spark=SPARK)
        with Store.open(settings.store, create=True) as store:
            context = ProjectionContext(store, settings, {"t": t})
            numbers = context.spark.range(10)
            try:
                context.spark._jvm.java.util.ArrayDeque().getFirst()
            except Exception as error:
                of_the_jvm = error
            process = kill(context.spark)
            try:
                with translate_errors(t, "computing its result"):
                    if sys.argv[1] == "before its words are read":
                        process.wait()
                        raise of_the_jvm
                    while True:
                        numbers.count()
            except TransientError as error:
                print(error.message)
            print(context.spark.range(10).count())
            try:
                with translate_errors(t, "computing its result"):
                    raise ConnectionRefusedError("of the user's own")
            except ProjectionFailed as error:
                print("own")
        """
    )
    done = _alone(program, tmp_path, end)

    said = done.stdout.splitlines()
    assert said, done.stderr
    assert said[0].startswith("Spark went away while computing its result of projection 't'")
    assert said[1:] == ["10", "own"]
    assert done.stderr == ""


@pytest.mark.slow
def test_a_jvm_that_is_killed_while_it_starts_is_told_and_replaced(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import logging, os, signal
        from pyspark import SparkContext
        from tailrace.eventstore.errors import TransientError
        from tailrace.eventstore.settings import Settings
        from tailrace.projections.spark import session
        from tests.fixtures.spark import SPARK

        configure = session.configure

        def killed_before(*arguments):
            session.configure = configure
            os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
            configure(*arguments)

        logging.disable()
        session.configure = killed_before
        try:
            session.open_session(Settings(spark=SPARK))
        except TransientError as error:
            print(error.message)
        print(session.open_session(Settings(spark=SPARK)).range(10).count())
        """
    )
    done = _alone(program, tmp_path)

    assert done.stdout.splitlines() == ["Spark went away while it started", "10"], done.stderr
    assert done.stderr == ""


def test_executors_with_another_python_are_told_before_anything_is_computed(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert disagreements(spark, on_executors=True) == []
    monkeypatch.setattr(spark.sparkContext, "pythonVer", "3.4")  # what each worker compares itself with
    with pytest.raises(OperatorError, match=r"executors run another Python than this driver: .*3\.4"):
        disagreements(spark, on_executors=True)


def test_done_buckets_are_told_while_others_are_computed_and_before_the_first_the_stages_tasks(
    spark: SparkSession, tmp_path: Path
) -> None:
    of_tasks, of_buckets = tmp_path / "of_tasks", tmp_path / "of_buckets"
    told: list[tuple[str, int, int | None, str]] = []

    def report(step: str, done: int, total: int | None, unit: str) -> None:
        told.append((re.sub(r"\d+", "N", step), done, total, unit))
        (of_buckets if unit == "buckets" else of_tasks).touch()

    with report_buckets(spark, report, "computing totals", 4, 16, every_seconds=0.01) as counted:

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            """The first has two buckets and ends once tasks were told, the others once its buckets were."""
            import time

            for batch in batches:
                first = batch["id"][0].as_py() == 0
                while not (of_tasks if first else of_buckets).exists():
                    time.sleep(0.01)
                for _ in range(2 if first else 0):
                    counted.add()
                yield batch

        spark.range(0, 3, 1, 3).mapInArrow(task, "id long").toArrow()

    assert told[0] == ("computing totals (Spark stage N)", 0, 3, "tasks")
    assert told[-1] == ("computing totals", 6, 16, "buckets")
