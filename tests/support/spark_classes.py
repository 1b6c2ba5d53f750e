"""Spark's classes as an archive, which a JVM maps instead of loading and verifying them one by one (JEP 350).

``python -m tests.support.spark_classes`` makes it, once per virtual environment and Java: it takes half a minute, and
every JVM of the tests half the processor time to its first result.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tailrace.eventstore.errors import OperatorError
from tailrace.projections.spark.java import describe, java_home

# None lives long enough to earn back what the optimizing compiler costs.
LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.python.daemon.module=tests.support.spark_daemon"
_WORK = """
from pathlib import Path
import tempfile
from pyspark import SparkContext
from pyspark.sql import functions as F
from tailrace.eventstore.settings import Settings
from tailrace.projections.spark.session import open_session
from tests.fixtures.spark import SPARK

session = open_session(Settings(spark=SPARK))
rows = session.range(2000).withColumn("k", F.col("id") % 97).withColumn("t", F.col("id").cast("string"))
sums = rows.groupBy("k").agg(F.sum("id").alias("sum"), F.max("t").alias("last"))
with tempfile.TemporaryDirectory() as folder:
    sums.write.parquet(f"{folder}/sums")
    sums = session.read.parquet(f"{folder}/sums")
    joined = rows.join(sums, "k", "left").orderBy("k")
    joined.mapInArrow(lambda batches: batches, joined.schema).toArrow()
jvm = SparkContext._gateway
session.stop()
jvm.shutdown()
jvm.proc.stdin.close()
jvm.proc.wait(timeout=120)
"""


def archive() -> Path:
    """Where it is, or would be. Raises OperatorError when there is no Java that Spark takes."""
    home = java_home()
    java = describe(home / "bin" / "java")
    version = java.version if java else 0
    return Path(sys.prefix) / f"spark-classes-java{version}.jsa"


def options() -> str:
    """For every JVM that a test starts. One that the archive does not fit passes over it without a word."""
    try:
        found = archive()
    except OperatorError:  # the tests that need one say so
        return LIGHT
    return f"{LIGHT} -XX:SharedArchiveFile={found} -Xlog:disable" if found.exists() else LIGHT


def make() -> None:
    path = archive()
    if path.exists():
        return
    print("archiving Spark's classes for the tests (once)", flush=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": ""}
    environment["SPARK_SUBMIT_OPTS"] = f"{LIGHT} -XX:ArchiveClassesAtExit={unfinished} -Xlog:disable"
    subprocess.run([sys.executable, "-c", _WORK], env=environment, check=True, timeout=300)
    unfinished.rename(path)


if __name__ == "__main__":
    make()
