"""The one place that reaches a server of Spark Connect (``spark.master = "sc://HOST:PORT"``), which computes for this
process: https://spark.apache.org/docs/latest/spark-connect-overview.html.

Plans are looked at in a JVM of this machine all the same (``analysis``), so both kinds of pyspark's functions are used
in one process: those for Connect ``remote_functions`` alone.

The life of a session: *opened* by the first use; *lost* when the server ends, or forgets it after an hour without a
query; the error of the next query shows that, and the use after it opens another.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import TransientError, UsageError, optional_part
from tailrace.projections.spark.conf import ARROW_BATCH, configure, runtime_conf, silence_exceptions
from tailrace.projections.spark.masters import TOKEN, check_master, is_connect
from tailrace.projections.spark.versions import disagreements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.eventstore.settings import Settings

CHILDREN: Final = "GRPC_ENABLE_FORK_SUPPORT"
"""With it, gRPC polls in a child between fork and exec, whose descriptors are closed by then: Spark's JVM then ends
before it starts (grpc/grpc#43055). Read when grpc begins. Nothing here calls gRPC in a fork of a process that did."""
_REMOTE = "SPARK_CONNECT_MODE_ENABLED"
"""By this variable pyspark's functions decide, at each call, whether they build columns for Connect."""
_TRIES: Final = 5
"""Each four times as long after the one before, from 50 ms on: 17 s together. pyspark would try for ten minutes."""
_GONE = ("INVALID_HANDLE.SESSION", "RETRIES_EXCEEDED", "StatusCode.UNAVAILABLE")
"""What the errors of a lost session say."""

_DETAILS = re.compile(r"details = \"(.+)\"$", re.M)

_log = logging.getLogger("tailrace.spark")
_lock = threading.RLock()
_opened: dict[tuple[int, str], SparkSession] = {}
"""By process and server: a fork has none of gRPC's threads."""


def connect_session(settings: Settings) -> SparkSession:
    """The process's session at the server of the settings; opened when there is none. Other versions at the server or
    its executors are logged as warnings.

    Raises OperatorError when pyspark's client is not installed or executors cannot run Python, UsageError for an
    address that is none and for a log that tasks cannot read, TransientError when nobody answers there.
    """
    check_master(settings)
    address = settings.spark.master
    with _lock:
        found = _opened.get((os.getpid(), address))
        if found is None or getattr(found, "is_stopped", False):  # a definition's code may stop it
            found = _opened[os.getpid(), address] = _open(settings, address)
    return found


def _open(settings: Settings, address: str) -> SparkSession:
    os.environ.setdefault(CHILDREN, "false")
    with optional_part("Spark Connect", "connect"):
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession as ConnectSession
    from pyspark.errors import PySparkException

    silence_exceptions()
    # The error that follows says so, too.
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]", UserWarning)
    builder: Any = ConnectSession.builder
    try:
        session = builder.remote(address).create()
    except PySparkException as error:
        raise UsageError(
            f"spark.master is no address of Spark Connect: {disclosure.hide_text(str(error))}",
            hint='write it as "sc://HOST:PORT", options as ";use_ssl=true" behind a slash',
        ) from None
    session.client.set_retry_policies([DefaultPolicy(max_retries=_TRIES)])
    try:
        configure(session, {**runtime_conf(settings), **ARROW_BATCH})
        differences = disagreements(session, on_executors=True)
    except PySparkException as error:
        _close(session)
        raise _away(address, str(error)) from error
    atexit.register(_release, session, os.getpid())
    for difference in differences:
        _log.warning(difference)
    found: SparkSession = session
    return found


def _release(session: Any, process: int) -> None:
    """At the end of the process that opened it: the server need not wait until it is idle."""
    if os.getpid() == process and not session.is_stopped:
        session.client.set_retry_policies([])
        session.stop()


def _close(session: Any) -> None:
    """Of a session that the server does not answer for. pyspark would otherwise take it for the one to use."""
    session.release_session_on_close = False
    session.stop()


def _away(address: str, said: str) -> TransientError:
    """Nobody answers at the address, or not as a server of Spark Connect does."""
    return TransientError(
        f"the server of Spark Connect at {address} cannot be used: {what_grpc_says(said)}",
        hint=f"see whether it runs there, and whether it asks for a token ({TOKEN})",
    )


def what_grpc_says(said: str) -> str:
    """Of the error of a lost connection or session, in which there are no values of rows."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    found = _DETAILS.search(said)
    return found[1] if found else next(iter(lines), "no reason was given")


def forget_if_lost(said: str) -> bool:
    """Whether an error says that its session is lost. The next use opens another one."""
    if not any(word in said for word in _GONE):
        return False
    with _lock:
        mine = [key for key in _opened if key[0] == os.getpid()]
        for key in mine:
            _close(_opened.pop(key))
    return bool(mine)


@contextmanager
def remote_functions() -> Iterator[None]:
    """Inside, pyspark's functions build columns for Connect, in all threads: one at a time is inside."""
    os.environ.setdefault(CHILDREN, "false")
    with _lock:
        before = os.environ.get(_REMOTE)
        os.environ[_REMOTE] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ[_REMOTE]
            else:
                os.environ[_REMOTE] = before


def functions_for(master: str) -> AbstractContextManager[None]:
    """Inside, pyspark's functions build columns for what computes there."""
    return remote_functions() if is_connect(master) else nullcontext()
