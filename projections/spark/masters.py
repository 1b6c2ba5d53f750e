"""Where Spark's tasks run, as ``spark.master`` says: in the driver's own JVM, on a cluster, or where a server of Spark
Connect has them run."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from tailrace.eventstore.errors import UsageError, manual_page

if TYPE_CHECKING:
    from tailrace.eventstore.settings import Settings

TOKEN: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
"""The environment variable from which pyspark takes the token that shows a server of Spark Connect who asks."""
_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\d+)?\])?$")


def runs_here(master: str) -> bool:
    """Whether tasks run in the driver's own JVM. Elsewhere, tasks see nothing of this machine."""
    return _LOCAL.match(master) is not None


def is_connect(master: str) -> bool:
    """Whether it is the address of a server of Spark Connect."""
    return master.startswith("sc://")


def parallelism_of(master: str, fallback: int) -> int:
    """How many units of work an input is cut into: the cores of a local master, or ``fallback`` on a cluster."""
    match = _LOCAL.match(master)
    if match is None:
        return fallback
    threads = match[1]
    return (os.cpu_count() or 1) if threads == "*" else int(threads or 1)


def check_master(settings: Settings, where: str | None = None) -> None:
    """Refuse executors on machines that cannot read the log's files, and a token where others see it. ``where``: the
    master, if it is not that of the settings."""
    store, where = settings.store, where or settings.spark.master
    if is_connect(where) and ";token=" in where.lower():
        raise UsageError(
            "spark.master holds a token, which messages and process lists would show",
            hint=f"leave it out, and set {TOKEN} in the environment",
        )
    if not runs_here(where) and not store.in_objects and not store.shared_path:
        raise UsageError(
            f"the Spark master is {where!r}, but store.segments is a folder of this machine",
            hint="use local[*], or keep the segments in an object store; when every worker mounts that folder at the "
            "same path, set store.shared_path = true; see "
            + manual_page("operations/storage.md", "Spark on a cluster"),
        )
