"""Progress of Spark's work: the buckets that are done, and before the first of them the tasks of a stage. Over
Spark Connect, which has no counters, it is the tasks all the time."""

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

REPORT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class BucketCount:
    """A counter that tasks raise and the driver reads. The driver gets a task's count when the task ends; a repeated
    task counts once. Pickles into Spark tasks. Spark Connect has no accumulators: None counts nothing."""

    accumulator: Accumulator[int] | None

    def add(self) -> None:
        """Count one bucket as done."""
        if self.accumulator is not None:
            self.accumulator.add(1)


@contextmanager
def report_buckets(
    session: SparkSession,
    report: Report,
    step: str,
    done: int,
    total: int,
    every_seconds: float = REPORT_SECONDS,
) -> Iterator[BucketCount]:
    """Inside, a thread reports ``every_seconds`` how many of ``total`` buckets are done: ``done`` before, and those
    that tasks have counted. Earlier stages do not go by bucket: until the first bucket is counted, the tasks of the
    stage under way are reported."""
    from pyspark.errors import PySparkException

    try:
        context = session.sparkContext
    except PySparkException:
        with _report_tasks(session, report, step):
            yield BucketCount(None)
        return
    counted = context.accumulator(0)
    tracker = context.statusTracker()
    ended = threading.Event()

    def report_until_ended() -> None:
        from py4j.protocol import Py4JError

        while not ended.wait(every_seconds):
            try:
                stage = _stage_under_way(tracker)
            except (Py4JError, OSError):  # the JVM has ended; the thread that waits for it raises
                return
            if counted.value:
                report(step, done + counted.value, total, "buckets")
            elif stage is not None:
                report(
                    f"{step} (Spark stage {stage.stageId})", stage.numCompletedTasks, stage.numTasks, "tasks"
                )

    thread = threading.Thread(target=report_until_ended, name="progress", daemon=True)
    thread.start()
    try:
        yield BucketCount(counted)
    finally:
        ended.set()
        thread.join()


@contextmanager
def _report_tasks(session: SparkSession, report: Report, step: str) -> Iterator[None]:
    """Inside, reports what a server of Spark Connect tells of its tasks, as often as it does."""
    connected: Any = session

    def tell(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        under_way = [stage for stage in stages or () if not stage.done]
        latest = max(under_way, key=lambda stage: int(stage.stage_id), default=None)
        if latest is not None and not done:
            report(
                f"{step} (Spark stage {latest.stage_id})",
                latest.num_completed_tasks,
                latest.num_tasks,
                "tasks",
            )

    connected.registerProgressHandler(tell)
    try:
        yield
    finally:
        connected.removeProgressHandler(tell)


def _stage_under_way(tracker: Any) -> Any:
    """The latest active stage; None while there is none."""
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return max(filter(None, stages), key=lambda stage: int(stage.stageId), default=None)
