"""How far Spark is with what this process waits for: the buckets that are done, and before the first of them the tasks
of a stage."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

    from tailrace.projections.context import Report

LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class BucketCount:
    """Counted by tasks, read by the driver, who is told what a task counted when it ends; of a repeated one, once.
    Pickles into Spark tasks. Over Spark Connect, which has nothing of the kind, None counts nothing."""

    accumulator: Accumulator[int] | None

    def add(self) -> None:
        """One bucket is done."""
        if self.accumulator is not None:
            self.accumulator.add(1)


@contextmanager
def buckets_reported(
    session: SparkSession,
    report: Report,
    step: str,
    done: int,
    total: int,
    look_seconds: float = LOOK_SECONDS,
) -> Iterator[BucketCount]:
    """Inside, ``report`` is told every ``look_seconds``, on a thread of its own, how many of ``total`` buckets are
    done: ``done`` before, the others as tasks count them. Stages before these tasks' are not by bucket: until the first
    bucket is counted, it is told how many tasks of the stage under way are done. Over Spark Connect nothing is
    reported.
    """
    from pyspark.errors import PySparkException

    try:
        context = session.sparkContext
    except PySparkException:
        yield BucketCount(None)
        return
    counted = context.accumulator(0)
    tracker = context.statusTracker()
    ended = threading.Event()

    def look() -> None:
        from py4j.protocol import Py4JError

        while not ended.wait(look_seconds):
            try:
                stage = _stage_under_way(tracker)
            except (Py4JError, OSError):  # the JVM has ended, which whoever waits for it is told
                return
            if counted.value:
                report(step, done + counted.value, total, "buckets")
            elif stage is not None:
                report(
                    f"{step} (Spark stage {stage.stageId})", stage.numCompletedTasks, stage.numTasks, "tasks"
                )

    thread = threading.Thread(target=look, name="progress", daemon=True)
    thread.start()
    try:
        yield BucketCount(counted)
    finally:
        ended.set()
        thread.join()


def _stage_under_way(tracker: Any) -> Any:
    """The newest one; None while there is none."""
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return max(filter(None, stages), key=lambda stage: int(stage.stageId), default=None)
