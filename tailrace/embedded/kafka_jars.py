"""Where the jars of the embedded Kafka are: in a folder that is named, or in the local repository of Maven.

``kafka-pom.xml`` says what Maven brings; ``kafka-jars.txt`` what that is, with all that it needs.
"""

from __future__ import annotations

import os
import shutil
import xml.etree.ElementTree as ElementTree
from functools import cache
from importlib import resources
from pathlib import Path

from tailrace.embedded.account import open_to_all
from tailrace.embedded.process import GuardProcess, reachable_by_others
from tailrace.eventstore.errors import OperatorError

KAFKA_VERSION = "4.4.0"
JARS_VARIABLE = "TAILRACE_KAFKA_JARS"
_NEEDED = ("kafka_2.13", "kafka-server", "log4j-slf4j-impl")  # the last, as its log is read
_RESOLVE = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:resolve"
_SETTINGS_BYTES_MAX = 1 << 20


def find_jars(named: Path | None = None, *, home: Path | None = None) -> list[Path]:
    """The broker's jars: of the folder ``named``, else of that which the environment variable names, else of Maven's
    local repository (``home``: of the user). Raises OperatorError when not all of them are there."""
    folder = named or (Path(os.environ[JARS_VARIABLE]) if os.environ.get(JARS_VARIABLE) else None)
    if folder is not None:
        if all(any(folder.glob(f"{jar}-*.jar")) for jar in _NEEDED):
            return sorted(folder.glob("*.jar"))
        raise _missing(f"not all of them are in {folder}")
    repository = local_repository(home or Path.home())
    jars = [repository / place for place in _places()]
    missing = [jar.name for jar in jars if not jar.is_file()]
    if not missing:
        return jars
    if len(missing) == len(jars):
        raise _missing(f"{JARS_VARIABLE} names no folder, and {repository} has none of them")
    raise _missing(f"{repository} has no {missing[0]}" + ", and others" * (len(missing) > 1))


def local_repository(home: Path) -> Path:
    """Maven's own place for what it fetched: that of the user's settings, else its default."""
    settings = home / ".m2" / "settings.xml"
    default = home / ".m2" / "repository"
    try:
        if settings.stat().st_size > _SETTINGS_BYTES_MAX:
            return default
        root = ElementTree.parse(settings).getroot()
    except (OSError, ElementTree.ParseError):
        return default  # as Maven does where there is none; one that it cannot read it reports itself
    found = root.find("{*}localRepository")
    text = (found.text or "").strip() if found is not None else ""
    return Path(text.replace("${user.home}", str(home))) if text else default


def _places() -> list[Path]:
    """Of the jars in a repository."""
    lines = resources.files("tailrace.embedded").joinpath("kafka-jars.txt").read_text().splitlines()
    found = []
    for group, artifact, version in (line.split(":") for line in lines if not line.startswith("#")):
        found.append(
            Path(*group.split("."), artifact, version, f"{artifact}-{version}.jar"),
        )
    return found


def _missing(why: str) -> OperatorError:
    pom = resources.files("tailrace.embedded").joinpath("kafka-pom.xml")
    return OperatorError(
        f"the embedded Kafka needs the jars of Apache Kafka, and {why}",
        hint=f"let Maven fetch them, once: mvn -q -f {pom} {_RESOLVE}   (or unpack Apache Kafka {KAFKA_VERSION} and set"
        f" {JARS_VARIABLE} to its folder libs)",
    )


@cache
def readable_jars(jars: tuple[Path, ...]) -> tuple[Path, ...]:
    """The jars, or copies of them, that every user can read."""
    if all(map(reachable_by_others, jars)):
        return jars
    folder = GuardProcess.current().folder()
    copies = tuple(Path(shutil.copy(jar, folder / jar.name)) for jar in jars)
    open_to_all(folder)
    return copies
