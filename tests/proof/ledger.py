"""A workload whose log can be checked without an oracle: every transaction says how many rows it has."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator

import psycopg

from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.store import Store

SCHEMA = """
CREATE TABLE public.ledger (id bigserial PRIMARY KEY, tx bigint NOT NULL, leg int NOT NULL, amount bigint NOT NULL);
CREATE TABLE public.tally (tx bigserial PRIMARY KEY, legs int NOT NULL, pad text NOT NULL);
"""
LEDGER = TopicId.table("shop", "public", "ledger")
TALLY = TopicId.table("shop", "public", "tally")


class Writers:
    """Threads that commit transactions of 1 to 8 ledger rows and one tally row until stopped, whatever the server
    does to them. A commit whose outcome they cannot know needs no care: the source's tables are the truth."""

    def __init__(self, dsn: str, threads: int = 2, pause: float = 0.002) -> None:
        self._dsn = dsn
        self._pause = pause
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(number,), daemon=True) for number in range(threads)
        ]

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def _write(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self._stop.is_set():
            with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self._dsn) as connection:
                while not self._stop.wait(self._pause):
                    _transfer(connection, rng)
            self._stop.wait(0.1)


def _transfer(connection: psycopg.Connection[tuple[object, ...]], rng: random.Random) -> None:
    legs = rng.randrange(1, 9)
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO public.tally (legs, pad) VALUES (%s, %s) RETURNING tx",
            (legs, "p" * rng.randrange(200)),
        )
        row = cursor.fetchone()
        assert row is not None
        for leg in range(legs):
            cursor.execute(
                "INSERT INTO public.ledger (tx, leg, amount) VALUES (%s, %s, %s)", (row[0], leg, leg)
            )


def check_whole_transactions(store: Store, epochs: range) -> int:
    """Each transaction's rows stand in one of these epochs, all of them, each once. Gives the transactions seen."""
    legs: dict[int, Counter[tuple[int, int]]] = defaultdict(Counter)
    tallies: dict[int, list[tuple[int, int]]] = defaultdict(list)
    cut = store.cut(epochs[-1])
    for batch in store.read(LEDGER, after_epoch=epochs[0] - 1, cut=cut, columns=["after", "_epoch"]):
        for row in batch.to_pylist():
            legs[row["after"]["tx"]][row["_epoch"], row["after"]["leg"]] += 1
    for batch in store.read(TALLY, after_epoch=epochs[0] - 1, cut=cut, columns=["after", "_epoch"]):
        for row in batch.to_pylist():
            tallies[row["after"]["tx"]].append((row["_epoch"], row["after"]["legs"]))
    assert legs.keys() == tallies.keys()
    for tx, found in tallies.items():
        assert len(found) == 1, f"transaction {tx} stands in the log twice"
        epoch, count = found[0]
        assert legs[tx] == Counter({(epoch, leg): 1 for leg in range(count)}), (
            f"transaction {tx} is not whole"
        )
    return len(tallies)


def check_dense_offsets(store: Store) -> None:
    """Offsets of every partition count from 0 without gaps, in epoch order."""
    for topic in (LEDGER, TALLY):
        following: dict[int, int] = defaultdict(int)
        for batch in store.read(topic, columns=["_partition", "_offset"]):
            for row in batch.to_pylist():
                assert row["_offset"] == following[row["_partition"]], (topic, row)
                following[row["_partition"]] += 1


def check_nothing_lost(store: Store, dsn: str) -> None:
    """The log holds exactly the transactions that the source has."""
    with psycopg.connect(dsn) as connection:
        committed = {tx for (tx,) in connection.execute("SELECT tx FROM public.tally")}
    captured = [
        row["after"]["tx"] for batch in store.read(TALLY, columns=["after"]) for row in batch.to_pylist()
    ]
    assert len(captured) == len(set(captured))
    assert set(captured) == committed
