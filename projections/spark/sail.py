"""The one place that starts Sail: Spark's interface over Connect, computed in this process and without a JVM.

A server of this process listens at a port of the loopback address that the system chooses, and has one session. It
takes whoever can open that port for us: Sail has no passwords. It starts in a tenth of a second at the first use, and
ends with the process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata, util
from typing import TYPE_CHECKING, Any

from tailrace.eventstore.errors import optional_part
from tailrace.projections.spark.conf import configure, runtime_conf, silence_exceptions
from tailrace.projections.spark.connect import CHILDREN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.eventstore.settings import Settings

_LAST_KNOWN_CLIENT = (4, 2)
"""Sail 0.7 refuses later releases of pyspark, whose Python workers it cannot run. Plans it reads as before, so it is
told this one; where a definition has Python run in workers it fails, and stays with Spark."""
_IN_CALLERS_THREAD = "SingleThreadedUnaryStream"
"""An option of gRPC for Python: no thread of its own is started for each query."""
_DAY = 24 * 3600
_LEAST_BYTES = 256 << 20
_lock = threading.RLock()
_opened: dict[int, tuple[Any, SparkSession]] = {}
"""By process: a fork has none of the server's threads."""


def is_installed() -> bool:
    """Whether the extra ``sail`` is there."""
    return all(util.find_spec(name) is not None for name in ("pysail", "grpc", "pyspark"))


def require_installed() -> None:
    """Raises OperatorError when the extra ``sail`` is not there."""
    with optional_part("computing on Sail", "sail"):
        import pysail  # noqa: F401


@cache
def sail_version() -> str:
    """What results of this engine are recorded under: another release of either may give others. Starts nothing."""
    return f"sail {metadata.version('pysail')}, pyspark {metadata.version('pyspark')}"


def sail_session(settings: Settings) -> SparkSession:
    """The process's session of Sail; started when there is none. Raises OperatorError when it is not installed."""
    with _lock:
        if os.getpid() in _opened and _is_stopped(_opened[os.getpid()][1]):
            forget_sail()
        if os.getpid() not in _opened:
            require_installed()
            silence_exceptions()
            os.environ.setdefault(CHILDREN, "false")
            from pysail.spark import SparkConnectServer
            from pyspark.sql.connect.client import DefaultChannelBuilder
            from pyspark.sql.connect.session import SparkSession

            os.environ |= _server_settings(settings)
            server = SparkConnectServer()
            server.start(background=True)
            host, port = server.listening_address
            with _known_client():
                builder: Any = SparkSession.builder
                channel = DefaultChannelBuilder(f"sc://{host}:{port}")
                channel.setChannelOption(_IN_CALLERS_THREAD, 1)
                session = builder.channelBuilder(channel).create()
                # Reattaching is for networks that lose connections, and asks once more after each query.
                session.client.disable_reattachable_execute()
                configure(session, runtime_conf(settings))
            _opened[os.getpid()] = server, session
        return _opened[os.getpid()][1]


def forget_sail() -> None:
    """Make room for a new session, after one that was stopped."""
    with _lock:
        server, _ = _opened.pop(os.getpid())
        server.stop()


def _is_stopped(session: Any) -> bool:
    return bool(session.is_stopped)


def _server_settings(settings: Settings) -> dict[str, str]:
    bound = str(max(4 * settings.spark.small_bytes, _LEAST_BYTES))
    return {
        "RUST_LOG": os.environ.get("RUST_LOG", "off"),
        "SAIL_RUNTIME__MEMORY_POOL__TYPE": "greedy",
        "SAIL_RUNTIME__MEMORY_POOL__GREEDY__MAX_SIZE": bound,
        "SAIL_SPARK__SESSION_TIMEOUT_SECS": str(365 * _DAY),
    }


@contextmanager
def _known_client() -> Iterator[None]:
    """Inside, pyspark calls itself the last release that Sail knows, if it is a later one."""
    import pyspark
    from pyspark import version

    own = pyspark.__version__
    release = tuple(int(part) for part in own.split(".")[:2])
    if release > _LAST_KNOWN_CLIENT:
        told = ".".join(map(str, _LAST_KNOWN_CLIENT)) + ".0"
        pyspark.__version__ = version.__version__ = told
    try:
        yield
    finally:
        pyspark.__version__ = version.__version__ = own
