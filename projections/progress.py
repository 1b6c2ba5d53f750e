"""How far Spark is with what this process waits for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from projections.context import Report

LOOK_SECONDS = 1.0


@contextmanager
def tasks_reported(
    session: SparkSession, report: Report, step: str, look_seconds: float = LOOK_SECONDS
) -> Iterator[None]:
    """Inside, ``report`` is told every ``look_seconds``, on a thread of its own, how many tasks of the stage under way
    are done. Over Spark Connect, which does not tell, nothing is reported."""
    from pyspark.errors import PySparkException

    try:
        tracker = session.sparkContext.statusTracker()
    except PySparkException:
        yield
        return
    ended = threading.Event()

    def look() -> None:
        from py4j.protocol import Py4JError

        while not ended.wait(look_seconds):
            try:
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            except (Py4JError, OSError):  # the JVM has ended, which whoever waits for it is told
                return
            newest = max(filter(None, stages), key=lambda stage: int(stage.stageId), default=None)
            if newest is not None:
                report(step, newest.numCompletedTasks, newest.numTasks, "tasks")

    thread = threading.Thread(target=look, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
