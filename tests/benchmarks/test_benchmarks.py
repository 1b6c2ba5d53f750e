"""Every benchmark still runs, and writes its section. In the smallest size: whether it is fast is not looked at."""

from __future__ import annotations

import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks
from benchmarks.__main__ import MODULES, NAMES
from benchmarks.kafka.broker import CODECS, CONFLUENT, by_kafka_python
from tests.support import REPOSITORY

pytestmark = pytest.mark.benchmarks
SMALLEST = {
    "capture": ["--transactions", "100", "--bulk", "0", "--wide", "20", "--huge", "0", "--large", "0"],
    "compaction": ["--events", "3000", "--many", "2000", "--wide", "1000", "--points", "1", "--cores", "1"],
    "debezium_backlog": ["--transactions", "100"],
    "debezium_latency": ["--rate", "100", "--seconds", "1", "--warmup", "0"],
    "decode": ["--changes", "500"],
    "envelopes": ["--records", "500"],
    "domain_events": ["--milliseconds", "100", "--writers", "2", "--crowd", "3"],
    "followers": ["--milliseconds", "300", "--writers", "2"],
    "append": ["--changes", "500", "--small", "3"],
    "size": ["--transactions", "20"],
    "consume": ["--changes", "500", "--events", "20", "--backlog", "500", "--follow", "3"],
    "check": ["--definitions", "1"],
    "rebuild": ["--events", "2000", "--wide", "1000"],
    "incremental": ["--rows", "3000", "--large", "2000"],
    "freshness": [
        "--rows",
        "3000",
        "--small",
        "0",
        "--rate",
        "10",
        "--seconds",
        "2",
        "--warmup",
        "1",
        "--most",
        "1",
    ],
    "everyday": ["--rows", "3000", "--queries", "1", "--rate", "10", "--seconds", "2", "--warmup", "1"],
    "round": ["--scale", "5", "--orders", "10", "--definitions", "3"],
    "tpch": ["--scale", "5", "--definitions", "2"],
    "sinks": ["--rows", "2000"],
    "typed_events": ["--events", "300", "--theirs", "20"],
    "latency": ["--rate", "100", "--seconds", "1", "--warmup", "0"],
    "load": ["--rows", "3000"],
    "kafka_fetch": ["--records", "2000"],
    "kafka_publish": ["--records", "2000"],
    "kafka_capture": ["--records", "500"],
    "year": ["--topics", "2", "--epochs", "600", "--points", "1", "--days", "1"],
}
KAFKA_LINES = sum(1 + CONFLUENT + by_kafka_python(codec) for codec in CODECS)
LINES = {
    "capture": 4,
    "compaction": 23,  # three tables: the heads of the others are two of them each
    "debezium_backlog": 3,
    "debezium_latency": 3,
    "decode": 2,
    "envelopes": 6,
    "domain_events": 90,
    "followers": 3,
    "append": 6,
    "size": 6,
    "consume": 5,
    "check": 1,
    "rebuild": 22,  # two tables
    "incremental": 18,  # two tables
    "freshness": 1,
    "everyday": 1,
    "round": 5,
    "tpch": 3,
    "sinks": 11 if shutil.which("redis-server") else 6,
    "typed_events": 3,
    "latency": 1,
    "load": 2,
    # kafka-python needs packages for two of three codecs; confluent-kafka may be there.
    "kafka_fetch": KAFKA_LINES,
    "kafka_publish": KAFKA_LINES,
    "kafka_capture": 3,
    "year": 12,  # three tables
}
PARTS = {
    "__main__",
    "cdc.debezium",
    "clients",
    "eventstore.flushes",
    "eventstore.forecast",
    "eventstore.history",
    "eventstore.layout",
    "kafka.broker",
    "kafka.same_rows",
    "memory",
    "options",
    "pgbench",
    "results",
    "spent",
}
"""Modules that are no benchmarks of their own."""


def test_every_benchmark_is_run_by_default_and_here() -> None:
    modules = pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")
    held = {module.name.removeprefix("benchmarks.") for module in modules if not module.ispkg}
    assert held - PARTS == set(MODULES)
    assert set(NAMES) == set(SMALLEST)


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_runs_and_writes_its_section(name: str, tmp_path: Path) -> None:
    results = tmp_path / "RESULTS.md"
    shared = ["--repeat", "1", "--to", str(results)]
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{NAMES[name]}", *SMALLEST[name], *shared],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=290,
    )
    assert done.returncode == 0, done.stderr
    text = results.read_text()
    assert f"<!-- {name}: begin -->" in text
    assert f"`python -m benchmarks.{NAMES[name]} {' '.join(SMALLEST[name])} --repeat 1`" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == LINES[name]
    for fact in ("- machine: ", "- versions: Python "):
        assert fact in text
