"""Whether the driver, Spark's JVM and its executors have the same versions.

A cluster with another release of Spark, or executors with another Tailrace, mostly work, and then fail where no message
says why.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

import pyarrow as pa

from tailrace.eventstore.errors import OperatorError, manual_page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROBES = 4
"""Tasks that ask: executors come one by one, so that a look at the first few is all there is."""
_PYTHON_DIFFERS = "PYTHON_VERSION_MISMATCH"
_ANSWER = "pyspark string, tailrace string"


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of pyspark and Tailrace in one process. None: its modules are there without a distribution; "": they
    are not there. Workers compare Python's own version before they take a task."""

    pyspark: str
    tailrace: str | None


def disagreements(session: SparkSession, *, on_executors: bool) -> list[str]:
    """What has another version than this process, and what to do. With ``on_executors`` a few tiny tasks ask executors.

    Raises OperatorError when executors cannot run Python tasks of this driver at all.
    """
    return version_differences(
        process_versions(), str(session.version), executors(session) if on_executors else ()
    )


def version_differences(driver: Versions, spark: str, executors: Collection[Versions]) -> list[str]:
    """``disagreements`` as a pure function of the versions."""
    differences = []
    if _release(spark) != _release(driver.pyspark):
        differences.append(
            f"Spark is {spark}, but this driver's pyspark is {driver.pyspark}:"
            f" pip install pyspark=={spark} where the driver runs"
        )
    for name, mine, theirs, mend in (
        (
            "pyspark",
            driver.pyspark,
            {each.pyspark for each in executors},
            "use one image, or one Spark, for both",
        ),
        ("tailrace", driver.tailrace, {each.tailrace for each in executors}, "install one version on both"),
    ):
        others = sorted(str(other) for other in theirs if other and mine and other != mine)
        if others:
            differences.append(f"executors run {name} {', '.join(others)}, this driver {mine}: {mend}")
    if any(each.tailrace == "" for each in executors):
        differences.append("executors do not find tailrace: install it there, or send it with --py-files")
    return differences


def _release(version: str) -> tuple[str, ...]:
    """``4.0.1.dev3``, ``4.0.1-vendor`` -> 4.0: driver and JVM of different minor releases do not understand each
    other."""
    return tuple(version.split(".")[:2])


def process_versions() -> Versions:
    """The versions of this process."""
    import pyspark

    try:
        own: str | None = metadata.version("tailrace")
    except metadata.PackageNotFoundError:
        own = None
    return Versions(pyspark.__version__, own)


def executors(session: SparkSession) -> set[Versions]:
    """The versions that the executors' Python workers report. Raises OperatorError."""
    from pyspark.errors import PySparkException

    def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Sent by value, because it is defined in here: it runs where there is no Tailrace, too.
        import importlib.metadata
        import importlib.util

        import pyarrow
        import pyspark

        try:
            own: str | None = importlib.metadata.version("tailrace")
        except importlib.metadata.PackageNotFoundError:
            own = None if importlib.util.find_spec("tailrace") else ""
        for _ in batches:
            versions = {
                "pyspark": [pyspark.__version__],
                "tailrace": pyarrow.array([own], pyarrow.string()),
            }
            yield pyarrow.RecordBatch.from_pydict(versions)

    try:
        answers: pa.Table = session.range(0, _PROBES, 1, _PROBES).mapInArrow(tell, _ANSWER).toArrow()
    except PySparkException as error:
        raise _unable_error(str(error)) from None
    return {Versions(**answer) for answer in answers.to_pylist()}


def _unable_error(said: str) -> OperatorError:
    """Why no Python task ran. The probe has no rows, so Spark's message holds no value of one."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if _PYTHON_DIFFERS in said:
        why = next(line for line in lines if _PYTHON_DIFFERS in line)
        return OperatorError(
            f"executors run another Python than this driver: {why[why.index(_PYTHON_DIFFERS) :]}",
            hint="have both run one minor version: set spark.pyspark.python, or use one image",
        )
    why = next(
        (line for line in reversed(lines) if "Error" in line), lines[0] if lines else "no reason was given"
    )
    return OperatorError(
        f"executors run no Python task: {why}",
        hint="each needs the same Python packages as the driver: see "
        + manual_page("operations/storage.md", "Spark on a cluster"),
    )
