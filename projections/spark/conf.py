"""The configuration of a session of Spark, and what pyspark is not to print."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace.eventstore import disclosure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.eventstore.settings import Settings

# How a worker talks to an object store; no secret among them. Credentials are its own (docs/operations/storage.md).
_FOR_WORKERS = (disclosure.VARIABLE, "AWS_REQUEST_CHECKSUM_CALCULATION")
_ARROW_POOL = "ARROW_DEFAULT_MEMORY_POOL"
"""The memory pool of tasks. They decode one row group after another; pools that return such blocks to the system and
take them again cost a seventh of the tasks' time."""

_BROADCAST_PART = 256
_BROADCAST_BYTES = 10 << 20
"""Spark's own bound for tables that a join sends to all tasks; a large heap has room for more. Files of this machine,
which are not packed, seem larger than others."""
ARROW_BATCH: Final = {"spark.sql.execution.arrow.maxRecordsPerBatch": "65536"}


def spark_conf(settings: Settings, folder: Path, *, submitted: bool) -> dict[str, str]:
    """The configuration of a session in a JVM. Times are UTC everywhere; a ``time`` column is a time, not a number."""
    conf = {
        "spark.app.name": f"tailrace {settings.store.name}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # What the parser of SQL learned from one text it keeps for the next, by default without a bound.
        "spark.sql.parser.manageParserCaches": "true",
        "spark.sql.parser.parserDfaCacheFlushRatio": "25",
        "spark.log.level": "ERROR",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **ARROW_BATCH,
        **runtime_conf(settings),
    }
    conf[f"spark.executorEnv.{_ARROW_POOL}"] = os.environ.get(_ARROW_POOL, "system")
    for name in _FOR_WORKERS:  # those on other machines do not inherit it
        if text := os.environ.get(name):
            conf[f"spark.executorEnv.{name}"] = text
    if not submitted:
        conf |= {
            "spark.master": settings.spark.master,
            "spark.driver.memory": settings.spark.driver_memory,
            "spark.local.dir": str(folder / "scratch"),
        }
        if settings.spark.master.startswith("local"):
            conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
            broadcast = _heap_bytes(settings.spark.driver_memory) // _BROADCAST_PART
            if broadcast > _BROADCAST_BYTES:
                conf["spark.sql.autoBroadcastJoinThreshold"] = str(broadcast)
    return conf


def _heap_bytes(text: str) -> int:
    """What Spark takes ``2g`` or ``512m`` for; 0 for another text, which is Spark's to refuse."""
    found = re.fullmatch(r"(\d+)([kmgt])b?", text.strip().lower())
    return int(found[1]) << 10 * (1 + "kmgt".index(found[2])) if found else 0


def runtime_conf(settings: Settings) -> dict[str, str]:
    """Settings that can be changed in a running session."""
    return {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.timeType.enabled": "true",
        # Decimals that do not fit are errors; otherwise digits behind the point would be dropped without a word.
        "spark.sql.decimalOperations.allowPrecisionLoss": "false",
        "spark.sql.shuffle.partitions": str(settings.spark.shuffle_partitions),
    }


def configure(session: SparkSession, conf: Mapping[str, str]) -> None:
    """Change settings of a running session."""
    for name, value in conf.items():
        session.conf.set(name, value)


def silence_exceptions() -> None:
    """pyspark prints each failed query on standard error before it raises, with the values it failed on. Not here."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
