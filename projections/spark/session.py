"""The one place that starts Spark: a quiet session with the settings that projections rely on.

A start takes 5 to 12 s, so a process has one session and keeps it. Output of the JVM and its workers goes to a file in
the session's temporary folder, not between the lines of a command.

The life of a session: *started* by the first use; *open* until the process ends; *lost* when its JVM ends (killed, or
out of memory), which the next use finds and starts another one. A driver that spark-submit started has its JVM from
there, and ends when that ends.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.eventstore.disclosure import reveals
from tailrace.eventstore.errors import OperatorError, TransientError, optional_part
from tailrace.projections.spark.conf import configure, runtime_conf, silence_exceptions, spark_conf
from tailrace.projections.spark.java import java_home
from tailrace.projections.spark.masters import TOKEN, check_master, is_connect, runs_here
from tailrace.projections.spark.versions import disagreements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.eventstore.settings import Settings


LOG = "spark.log"
_log = logging.getLogger("tailrace.spark")
_PARENT = os.getppid()
_GATEWAY = (
    "PYSPARK_GATEWAY_PORT"  # set by spark-submit: the JVM is there and master and memory are its decision
)
_WORKERS_PATH = "spark.executorEnv.PYTHONPATH"
_TAIL_CHARS = 1500
_LOOK_SECONDS = 0.05
_END_SECONDS = 30.0
"""From the stop of a JVM's Spark, or its first closed socket, to the JVM's end: it removes its files meanwhile."""


def open_session(settings: Settings) -> SparkSession:
    """The process's Spark session in a JVM; started when there is none. Other versions in the JVM or in executors are
    logged as warnings. Where Spark Connect computes, it runs no tasks: it is there for plans.

    Raises OperatorError when pyspark is not installed, when there is no suitable Java or Spark does not start,
    UsageError for a master on other machines while the log is in a local folder, TransientError when the JVM ends
    meanwhile.
    """
    with optional_part("computing a projection", "spark"):
        from pyspark.sql import SparkSession
    silence_exceptions()
    settings = _for_plans(settings)
    active: SparkSession | None = SparkSession.getActiveSession()
    if active is not None:
        configure(active, runtime_conf(settings))
        return active
    if not is_submitted():
        check_master(settings)
        os.environ["JAVA_HOME"] = str(java_home())
    _prepare_workers()
    folder = Path(tempfile.mkdtemp(prefix="tailrace-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    conf = spark_conf(settings, folder, submitted=is_submitted())
    if is_submitted() or not runs_here(settings.spark.master):
        conf[_WORKERS_PATH] = _workers_path()
    with _raise_on_end():
        with _without_secrets(settings.secrets()):
            session = _connect(conf) if is_submitted() else _launch(conf, folder / LOG)
        configure(session, runtime_conf(settings))
        where = str(session.conf.get("spark.master"))
        if is_submitted():
            check_master(settings, where)
        if not runs_here(where):
            # A cluster counts executors that lose their driver silently as failed, and starts them again.
            atexit.register(session.stop)
        for warning in disagreements(session, on_executors=not runs_here(where)):
            _log.warning(warning)
    return session


def _for_plans(settings: Settings) -> Settings:
    """With a master of this machine where the settings' is no master of a JVM."""
    if is_submitted() or not is_connect(settings.spark.master):
        return settings
    return settings.model_copy(update={"spark": settings.spark.model_copy(update={"master": "local[1]"})})


@contextmanager
def _raise_on_end() -> Iterator[None]:
    """Raises TransientError when the JVM ends before its session can be used."""
    from py4j.protocol import Py4JError

    try:
        yield
    except (Py4JError, OSError) as error:
        if not is_ending():
            raise
        forget_lost()
        raise TransientError(
            "Spark went away while it started",
            hint="run the command again; if it repeats, the machine lacks memory: give the driver less"
            " (spark.driver_memory), or the machine more",
        ) from error


def is_submitted() -> bool:
    """Whether the JVM was there before this driver. Then spark-submit has decided about master and memory."""
    return _GATEWAY in os.environ


def master(settings: Settings) -> str:
    """Where tasks run: the master of the settings, or of spark-submit."""
    return str(open_session(settings).conf.get("spark.master")) if is_submitted() else settings.spark.master


@contextmanager
def _without_secrets(secrets: Collection[str]) -> Iterator[None]:
    """A JVM that is started inside, and its Python workers, do not get environment variables that hold a secret: sinks
    and catalog are the driver's work, and Spark shows environments in logs and pages."""
    kept = {
        name: text
        for name, text in os.environ.items()
        if name in ("PGPASSWORD", TOKEN) or reveals(text, secrets)
    }
    for name in kept:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(kept)


def is_lost(within: float = 0.0) -> bool:
    """Whether the JVM of this process's session has ended (killed for its memory, or by a signal to the whole group).
    Waits ``within`` seconds for that."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext

    process: Any = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return _submitter_ended(within)
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        return False
    return True


def is_ending() -> bool:
    """Whether the JVM of this process's session ends; returns when it has. It stops Spark and closes its sockets a
    moment before its end can be seen."""
    return is_lost() or (_spark_stopped() and is_lost(_END_SECONDS))


def _spark_stopped() -> bool:
    """Whether the JVM's Spark has stopped, or the JVM no longer answers."""
    if "pyspark" not in sys.modules:
        return False
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    context: Any = SparkContext._active_spark_context
    if gateway is None:
        return False
    try:
        return bool(context._jsc.sc().isStopped()) if context else gateway.jvm.System.nanoTime() == 0
    except (Py4JError, OSError):
        return True


def _submitter_ended(within: float = 0.0) -> bool:
    """Whether the JVM of spark-submit, the parent of a Python driver, has ended."""
    until = time.monotonic() + within
    while is_submitted():
        if os.getppid() != _PARENT:
            return True
        if time.monotonic() >= until:
            break
        time.sleep(_LOOK_SECONDS)
    return False


def require_submitter() -> None:
    """Raises TransientError when spark-submit started this driver and its JVM has ended: it was stopped without a word
    to the driver."""
    if _submitter_ended():
        raise TransientError(
            "spark-submit has ended, and Spark with it",
            hint="what was committed is kept; submit the job again",
        )


def forget_lost() -> None:
    """Make room for a new session after the JVM has ended; pyspark has no public way. Raises TransientError when a new
    one is not possible."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    require_submitter()
    lost: Any = SparkContext._gateway
    if lost is not None:
        lost.shutdown()
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None


def _prepare_workers() -> None:
    """Python workers run this interpreter and find this process's modules. On executors elsewhere, spark-submit may
    know better."""
    if not is_submitted():
        os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(_unique([*sys.path, os.environ.get("PYTHONPATH", "")]))


def _workers_path() -> str:
    """Where workers of a JVM that this process did not start look for modules: where spark-submit says, then where this
    process looks, if that exists there."""
    from pyspark import SparkConf, SparkContext

    given = ""
    if is_submitted():
        SparkContext._ensure_initialized()
        given = SparkConf().get(_WORKERS_PATH) or ""
    return os.pathsep.join(_unique([given, *sys.path]))


def _unique(paths: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(part for path in paths for part in path.split(os.pathsep) if part))


def _connect(conf: dict[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    for name, value in conf.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session


def _launch(conf: dict[str, str], log: Path) -> SparkSession:
    """Start the JVM directly: only then can its output go to a file."""
    from pyspark import SparkConf, SparkContext, java_gateway
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    spark_conf = SparkConf().setAll(list(conf.items()))
    with log.open("wb") as output, warnings.catch_warnings():
        # The gateway's process and sockets live as long as this process; nobody closes them earlier.
        warnings.simplefilter("ignore", ResourceWarning)
        launch: Any = java_gateway.launch_gateway
        try:
            # On a thread, where no Ctrl-C arrives: cut off while the JVM starts, pyspark removes the folder that the
            # JVM reports its port in, and a JVM that cannot report it never ends.
            with ThreadPoolExecutor(1) as launcher:
                gateway = launcher.submit(launch, spark_conf, {"stdout": output, "stderr": output}).result()
        except (PySparkRuntimeError, OSError) as error:
            raise OperatorError(
                f"Spark does not start: {error}\n{_tail(log)}".rstrip(),
                hint="see the lines above; `tailrace doctor` checks Java and the memory Spark asks for",
            ) from error
        context: Any = SparkContext(conf=spark_conf, gateway=gateway)
        # When the JVM ends, the server of its accumulators has nothing to say that its caller does not learn.
        context._accumulatorServer.handle_error = lambda request, address: None
    session: SparkSession = SparkSession.builder.getOrCreate()
    return session


def _tail(log: Path) -> str:
    try:
        return log.read_text(errors="replace")[-_TAIL_CHARS:].strip()
    except OSError:
        return ""
