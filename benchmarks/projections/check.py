"""``tailrace check`` of many definitions: how long, as a user runs it, the engine's start included.

The definitions are the queries of TPC-H, over a log that holds the tables' rows. Each run is a process of its own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

from benchmarks.cdc.capture import QUIET
from benchmarks.clients import Client
from benchmarks.options import Size, median, parse
from benchmarks.results import table, write_section
from tailrace.embedded import PostgresServer
from tests.projections.tpch import data

QUERIES = Path(data.__file__).with_name("queries")
TAILRACE = [sys.executable, "-m", "tailrace"]
TOML = """
[store]
catalog = "sqlite:///catalog.db"
segments = "segments"
[sources.shop]
dsn = "{dsn}"
[sinks.lake]
kind = "parquet"
path = "lake"
[projections]
sql = ["queries"]
"""


def prepare(folder: Path, dsn: str) -> None:
    """A project whose log has the tables."""
    data.load(dsn, data.Generator(data.Size.of_factor(0.01), Random(22)))
    (folder / "queries").mkdir()
    (folder / "tailrace.toml").write_text(TOML.format(dsn=dsn), encoding="utf-8")
    for words in (["init"], ["capture", "--until-idle"]):
        subprocess.run([*TAILRACE, *words], cwd=folder, check=True, capture_output=True)


def seconds_of(folder: Path, definitions: int) -> float:
    for each in (folder / "queries").iterdir():
        each.unlink()
    for each in sorted(QUERIES.glob("*.sql"))[:definitions]:
        shutil.copy(each, folder / "queries")
    client = Client(
        [*TAILRACE, "--config", folder / "tailrace.toml", "projection", "check"], folder / "output"
    )
    return client.finish()[0]


def row_of(count: int, seconds: Sequence[float]) -> list[str]:
    middle = median(seconds)
    return [str(count), f"{middle:.1f}", f"{min(seconds):.1f} to {max(seconds):.1f}", f"{middle / count:.2f}"]


SIZES = (Size("definitions", 22, 2, "queries that are checked, beside one alone"),)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("projections.check", __doc__, SIZES, arguments)
    counts = (1, options["definitions"])
    found: dict[int, list[float]] = {count: [] for count in counts}
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name,
        PostgresServer(settings=QUIET, trust=True) as server,
    ):
        folder = Path(name)
        prepare(folder, server.dsn())
        for _ in range(options.repeat):
            for count in counts:
                found[count].append(seconds_of(folder, count))
    lines = [row_of(count, seconds) for count, seconds in found.items()]
    write_section(
        "check",
        "Checking definitions",
        "Queries of TPC-H, checked by one command each time: from its start to its end. Medians of "
        f"{options.repeat} rounds, by turns.\n\n"
        + table(["definitions", "seconds", "least to most", "seconds a definition"], lines),
        command=options.command,
        packages=["pyspark", "sqlglot"],
        path=options.to,
    )


if __name__ == "__main__":
    main()
