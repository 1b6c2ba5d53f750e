"""Jobs of schedulers: the line for spark-submit run as it is printed, on a cluster of Spark's own whose executors are
processes of their own, the log's files in an object store and the catalog on Postgres."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyspark
import pytest

from tailrace import __version__
from tailrace.cli import main
from tailrace.eventstore.settings import Settings
from tailrace.eventstore.store import Store
from tailrace.projections.generations.generation import files_of
from tailrace.projections.generations.step_files import folder_of
from tailrace.projections.spark.java import java_home
from tests.projections.shoplog import ShopLog, settings_in
from tests.support.capturing import wait_until

CLUSTER = "local-cluster[2,1,1024]"
SECONDS = 540
pytestmark = [pytest.mark.timeout(600), pytest.mark.servers]
# As pip installs it, with its own paths: only so is the archive of Spark's classes used.
SPARK_HOME = Path(pyspark.__file__).parent
VIEWS = """
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType
from tailrace import PostgresTable, State, projection


def twice(amount):  # called by name where the task runs: the module has to be there
    return amount * 2


@F.udf(DecimalType(22, 2))
def doubled(amount):
    return twice(amount)


@projection(
    key="customer_id", sink=PostgresTable("mart", "totals"), trust=True,
    orders=State("shop.public.orders", affects="customer_id"))
def totals(orders):
    return orders.groupBy("customer_id").agg(F.sum(doubled("amount")).cast("decimal(22,2)").alias("total"))
"""
# A main file of one's own: one session for several commands.
DRIVER = """
import sys, time
from pathlib import Path
from tailrace.cli.main import run

given = sys.argv[1:]
options = ["--json", *given[: given.index("run")]]
codes = [run([*options, "rebuild", "totals"])]
while not Path("more").exists():
    time.sleep(0.05)
codes += [run([*options, "run", "--once"]), run([*options, "verify", "totals"])]
sys.exit(max(codes))
"""


@pytest.fixture(autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Executors are looked for among all processes, and their folders where Spark is installed: one cluster at a time,
    whatever other workers do."""
    with (tmp_path_factory.getbasetemp().parent / "cluster.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def settings(tmp_path: Path, database: str, redis_url: str, bucket: str) -> Settings:
    given = settings_in(tmp_path, dsn=database, redis_url=redis_url)
    place = {"catalog": database, "segments": f"s3://{bucket}/acme", "inline_bytes": 3000}
    return given.model_copy(update={"store": given.store.model_copy(update=place)})


@pytest.fixture
def configuration(tmp_path: Path, settings: Settings, database: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, and spark-submit on the path."""
    (tmp_path / "views.py").write_text(VIEWS)
    (tmp_path / "driver.py").write_text(DRIVER)
    path = tmp_path / "tailrace.toml"
    path.write_text(
        f"""
        [store]
        name = "acme"
        catalog = "{database}"
        segments = "{settings.store.segments}"
        partitions = 2
        [sinks.mart]
        kind = "postgres"
        dsn = "${{MART_DSN}}"
        [projections]
        modules = ["views"]
        [spark]
        shuffle_partitions = 2
        """
    )
    for name, value in {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PATH": os.pathsep.join([str(SPARK_HOME / "bin"), os.environ["PATH"]]),
        "MART_DSN": database,
    }.items():
        monkeypatch.setenv(name, value)
    return path


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of a test, ended with it."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def folders() -> Iterator[Callable[[], set[str]]]:
    """Names of the folders that executors of this test worked in; Spark makes them where it is installed."""
    work = SPARK_HOME / "work"
    before = set(work.glob("app-*"))

    def new() -> set[Path]:
        return set(work.glob("app-*")) - before

    yield lambda: {path.name for application in new() for path in application.iterdir()}
    for application in new():
        shutil.rmtree(application)


def printed(capsys: pytest.CaptureFixture[str], configuration: Path, *arguments: str) -> str:
    """What ``projection job`` prints."""
    assert main.run(["--config", str(configuration), "projection", "job", *arguments]) == 0
    return capsys.readouterr().out


def results(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Results among progress: spark-submit sends both streams of a driver to its standard output."""
    for line in lines:
        document = json.loads(line)
        if "projection" in document:
            yield document


def test_rebuild_run_and_verify_on_executors_that_are_other_processes(
    shop: ShopLog,
    configuration: Path,
    database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    started: list[subprocess.Popen[str]],
    folders: Callable[[], set[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = tmp_path / "other" / "tailrace-9.9.dist-info"  # as executors with another wheel have it
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: tailrace\nVersion: 9.9\n")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", f"-Dspark.executorEnv.PYTHONPATH={other.parent}")
    line = printed(
        capsys, configuration, "spark-submit", "--master", CLUSTER, "--main", str(tmp_path / "driver.py")
    )
    with (tmp_path / "said").open("w") as said:
        driver = subprocess.Popen(
            ["sh", "-c", line], cwd=tmp_path, stdout=subprocess.PIPE, stderr=said, text=True
        )
        started.append(driver)
        assert driver.stdout is not None
        told = ""
        for line in iter(driver.stdout.readline, ""):
            told += line
            if built := next(results([line]), None):
                break
        else:
            pytest.fail((tmp_path / "said").read_text())
        shop.work()
        (tmp_path / "more").touch()
        out, _ = driver.communicate(timeout=SECONDS)
    assert driver.returncode == 0, (tmp_path / "said").read_text()
    refreshed, verified = results(out.splitlines())

    expected: dict[int, Decimal] = {}
    for order in shop.state["orders"].values():
        expected[order["customer_id"]] = expected.get(order["customer_id"], Decimal(0)) + 2 * order["amount"]
    assert built["promoted"] and built["generation"] == 1
    assert refreshed["status"] == "done" and refreshed["reason"].startswith("incremental: ")
    assert verified["equal"] and verified["rows"] == len(expected)
    with psycopg.connect(database) as connection:
        assert dict(connection.execute("SELECT customer_id, total FROM totals").fetchall()) == expected
    assert folders() == {"0", "1"}
    warned = f"executors run tailrace 9.9, this driver {__version__}: install one version on both"
    assert warned in told


# Each bucket's files wait before the driver hears of them; the function, once, before its first row.
SLOWLY = "-Dspark.executorEnv.TAILRACE_FAILPOINT=derived_written~3000"
PAUSE = """
def twice(amount):
    pause()
    return amount * 2


def pause():
    import os, time
    from pathlib import Path
    try:
        with open({mark!r}, "x") as file:
            file.write(Path(f"/proc/{{os.getppid()}}/stat").read_text().split()[3])
    except FileExistsError:
        return
    time.sleep(5)
"""
REPEATED = """
import sys
from tailrace.cli.main import run

given = sys.argv[1:]
options = ["--json", *given[: given.index("run")]]
verbs = [["rebuild", "totals"], ["verify", "totals"], ["projection", "gc", "totals"]]
sys.exit(max([run([*options, *verb]) for verb in verbs]))
"""


def executors() -> set[int]:
    found = subprocess.run(["pgrep", "-f", "CoarseGrainedExecutorBackend"], capture_output=True, text=True)
    return {int(each) for each in found.stdout.split()}


def test_an_executor_that_is_killed_as_it_computes_and_as_it_writes_costs_time_alone(
    shop: ShopLog,
    configuration: Path,
    database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    started: list[subprocess.Popen[str]],
    folders: Callable[[], set[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mark = tmp_path / "computing"
    views = VIEWS.partition("def twice")[0] + PAUSE.format(mark=str(mark)) + VIEWS.partition("amount * 2")[2]
    (tmp_path / "views.py").write_text(views)
    (tmp_path / "driver.py").write_text(REPEATED)
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", SLOWLY)
    line = printed(
        capsys, configuration, "spark-submit", "--master", CLUSTER, "--main", str(tmp_path / "driver.py")
    )
    before, storage = executors(), shop.store.storage

    def written() -> set[str]:
        return {path for path in storage.list(folder_of("totals", 1)) if path.endswith(".run.arrow")}

    with (tmp_path / "said").open("w") as said:
        driver = subprocess.Popen(
            ["sh", "-c", line], cwd=tmp_path, stdout=subprocess.PIPE, stderr=said, text=True
        )
        started.append(driver)
        wait_until(lambda: mark.exists() and mark.read_text() != "", SECONDS)
        computing = int(mark.read_text())
        assert computing in executors() - before
        os.kill(computing, signal.SIGKILL)
        wait_until(lambda: len(written()) > 0, SECONDS)
        lost = written()
        for executor in executors() - before:
            os.kill(executor, signal.SIGKILL)
        assert driver.stdout is not None
        built = next(results(iter(driver.stdout.readline, "")), None)
        assert built is not None, (tmp_path / "said").read_text()
        mark.unlink()  # once more: while it is verified
        wait_until(lambda: mark.exists() and mark.read_text() != "", SECONDS)
        os.kill(int(mark.read_text()), signal.SIGKILL)
        out, _ = driver.communicate(timeout=SECONDS)
    assert driver.returncode == 0, (tmp_path / "said").read_text()
    verified, *_ = results(out.splitlines())
    assert built["promoted"] and built["generation"] == 1
    assert verified["equal"] and verified["rows"] == len(
        {row["customer_id"] for row in shop.state["orders"].values()}
    )
    assert len(folders()) > 2, "others took their place"
    (step,) = shop.store.steps.list("totals", 1)
    assert written() == files_of(step).paths()
    assert lost - written(), "what a lost executor wrote was written again, and collected"


def test_the_command_line_itself_is_the_main_file_and_its_exit_code_that_of_spark_submit(
    configuration: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = printed(capsys, configuration, "spark-submit", "--", "run", "--once", "--master", "local[2]")
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 2, done.stderr
    assert "error: --master is spark-submit's here" in done.stdout


OBSERVED = """
import sys
from pathlib import Path
from tailrace.cli.main import run

sys.stderr = open("said", "w")
Path("ended").write_text(str(run(sys.argv[1:])))
"""


def test_a_driver_ends_with_the_spark_submit_that_was_told_to_stop(
    store: Store,
    configuration: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    started: list[subprocess.Popen[str]],
) -> None:
    (tmp_path / "observed.py").write_text(OBSERVED)
    line = printed(
        capsys, configuration, "spark-submit", "--main", str(tmp_path / "observed.py"), "--", "run"
    )
    submitted = subprocess.Popen(
        ["sh", "-c", f"exec {line}"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    started.append(submitted)
    assert submitted.stdout is not None
    assert "shop.public.orders" in submitted.stdout.readline(), "it waits for what is not there yet"
    submitted.terminate()
    assert submitted.wait(SECONDS) == 128 + 15
    ended = tmp_path / "ended"
    wait_until(lambda: ended.exists() and ended.read_text() == "6")
    assert "error: spark-submit has ended, and Spark with it" in (tmp_path / "said").read_text()
    submitted.stdout.close()
