"""Consumers: rows a second by what they are given, and how soon a follower knows of an epoch.

The log holds changes of seven columns (``append``) and domain events, sealed. A group reads each from the
beginning with one member: Arrow batches, changes as values, typed events; every batch is committed. Then the same while
another process, of another group, works through a backlog of its own topic. Latency runs from ``append`` coming back in
one process to ``follow`` giving the epoch in another, a hundred epochs of five rows a second.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
from pydantic import BaseModel

from benchmarks.cdc.decode import SCHEMA
from benchmarks.eventstore.append import epochs, split, writer_of
from benchmarks.options import Size, median, parse
from benchmarks.results import table, write_section
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.keys import hash_texts
from tailrace.eventstore.model.schema import EVENT_SCHEMA, TopicSchema, change_schema
from tailrace.eventstore.model.time import from_micros
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tailrace.eventstore.streams import event
from tailrace.eventstore.subscriptions.batch import Batch

SETTINGS = StoreSettings(catalog="sqlite:///catalog.db", segments=Path("segments"))
ORDERS = TopicId.table("shop", "public", "orders")
BACKLOG = TopicId.table("shop", "public", "backlog")
LIVE = TopicId.table("shop", "public", "live")
PAYMENTS = TopicId.events("shop", "payment")
_RATE = 100


@event("paid", version=1)
class Paid(BaseModel):
    account: str
    amount: int


class Filler:
    """Appends to the topics of one source, at ever higher positions."""

    def __init__(self, store: Store) -> None:
        topics = {ORDERS: SCHEMA, BACKLOG: SCHEMA, LIVE: SCHEMA, PAYMENTS: EVENT_SCHEMA}
        self._writer = writer_of(store, topics)
        self._lsns = itertools.count(1)

    def complete(self, topic: TopicId) -> None:
        """All that there is of it so far is known."""
        lsn = next(self._lsns)
        self._writer.append(
            EpochBatch("shop", lsn, lsn + 1, lsn + 1, from_micros(lsn), 1, [], completes=[topic])
        )

    def append(self, topic: TopicId, schema: TopicSchema, rows: pa.Table) -> int:
        """Rows as one transaction and epoch; gives its number."""
        lsn = next(self._lsns)
        at = rows.schema.get_field_index("_lsn")
        rows = rows.set_column(at, rows.schema.field(at), pa.repeat(lsn, rows.num_rows))
        part = TopicRows(topic, schema.version, rows)
        info = self._writer.append(EpochBatch("shop", lsn, lsn + 1, lsn + 1, from_micros(lsn), 1, [part]))
        assert info is not None
        return info.epoch


def payments(count: int) -> pa.Table:
    schema = change_schema(EVENT_SCHEMA)
    empty = dict.fromkeys(schema.names)
    return pa.Table.from_pylist(
        [
            empty
            | {
                "_hash": hash_texts([f"a{number % 1000}"]),
                "_op": "c",
                "_lsn": 0,
                "_txn": 1,
                "_ordinal": number,
                "_commit_ts": number,
                "_before": "none",
                "key": {"stream": f"a{number % 1000}"},
                "after": {
                    "stream": f"a{number % 1000}",
                    "version": number // 1000 + 1,
                    "type": "paid",
                    "schema_version": 1,
                    "data": json.dumps({"account": f"a{number % 1000}", "amount": number}),
                    "metadata": "{}",
                    "event_id": f"00000000-0000-0000-0000-{number:012d}",
                    "recorded_at": from_micros(number),
                },
            }
            for number in range(count)
        ],
        schema=schema,
    )


def arrow(batch: Batch) -> int:
    return int(batch.rows.num_rows)


def values(batch: Batch) -> int:
    return sum(1 for _ in batch.changes())


def typed(batch: Batch) -> int:
    return sum(1 for _ in batch.events(Paid))


CONSUMERS: dict[str, tuple[TopicId, Callable[[Batch], int]]] = {
    "Arrow batches": (ORDERS, arrow),
    "changes as values": (ORDERS, values),
    "typed domain events": (PAYMENTS, typed),
}


def consume(store: Store, name: str, topic: TopicId, take: Callable[[Batch], int]) -> float:
    """Rows a second of a new group that reads all there is."""
    group = store.group(name, [topic.text], start="earliest")
    started, rows = time.perf_counter(), 0
    with group.join("only") as member:
        while (batch := member.poll(timeout=0)) is not None:
            rows += take(batch)
            batch.commit()
    return rows / (time.perf_counter() - started)


def work_through(folder: Path, ready: Connection) -> None:
    """The process with the backlog: it reads its topic again and again until it is ended."""
    with Store.open(SETTINGS, root=folder) as store:
        for round_ in itertools.count():
            group = store.group(f"backlog{round_}-{time.time_ns()}", [BACKLOG.text], start="earliest")
            with group.join("only") as member:
                while (batch := member.poll(timeout=0)) is not None:
                    batch.commit()
                    ready.send(batch.rows.num_rows)


def follow(folder: Path, after: int, count: int, times: Connection) -> None:
    """The following process: tells when it knew of each epoch."""
    with Store.open(SETTINGS, root=folder) as store:
        times.send(None)
        seen = {}
        for info in store.follow([LIVE], after_epoch=after):
            seen[info.epoch] = time.time()
            if len(seen) == count:
                break
        times.send(seen)


@contextmanager
def beside(folder: Path, *, busy: bool) -> Iterator[None]:
    if not busy:
        yield
        return
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=work_through, args=(folder, there))
    process.start()
    try:
        here.recv()
        yield
        if not process.is_alive():
            raise SystemExit("the process with the backlog ended")
    finally:
        process.kill()
        process.join()


def latencies(folder: Path, filler: Filler, rows: Sequence[pa.Table], after: int) -> list[float]:
    """Milliseconds, sorted."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=follow, args=(folder, after, len(rows), there))
    process.start()
    here.recv()
    appended = {}
    started = time.monotonic()
    for number, part in enumerate(rows):
        time.sleep(max(started + number / _RATE - time.monotonic(), 0))
        epoch = filler.append(LIVE, SCHEMA, part)
        appended[epoch] = time.time()
    seen = here.recv()
    process.join()
    return sorted((seen[epoch] - at) * 1e3 for epoch, at in appended.items())


def measure(
    store: Store, folder: Path, filler: Filler, rounds: int, live: Sequence[pa.Table]
) -> list[list[str]]:
    found: dict[tuple[str, bool], list[float]] = {}
    for round_ in range(rounds):
        for busy in (False, True):
            with beside(folder, busy=busy):
                for name, (topic, take) in CONSUMERS.items():
                    rate = consume(store, f"{name}{round_}{busy}", topic, take)
                    found.setdefault((f"{name}, rows/s", busy), []).append(rate)
                head = store.head()
                late = latencies(folder, filler, live, head.epoch if head else 0)
                found.setdefault(("follow, p50 ms", busy), []).append(late[len(late) // 2])
                found.setdefault(("follow, p99 ms", busy), []).append(late[len(late) * 99 // 100])
    lines = []
    for name in dict.fromkeys(name for name, _ in found):
        alone, busy_ = median(found[name, False]), median(found[name, True])
        digits = 1 if name.endswith("ms") else 0
        lines.append([name, f"{alone:,.{digits}f}", f"{busy_:,.{digits}f}", f"{busy_ / alone:.2f}"])
    return lines


SIZES = (
    Size("changes", 1_000_000, 20_000, "changes of the consumers' topic"),
    Size("events", 100_000, 2_000, "domain events"),
    Size("backlog", 10_000_000, 50_000, "changes of the backlog beside"),
    Size("follow", 1_000, 100, "epochs whose latency is taken"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("eventstore.consume", __doc__, SIZES, arguments)
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name:
        folder = Path(name)
        with Store.open(SETTINGS, create=True, root=folder) as store:
            filler = Filler(store)
            changes = epochs(options["changes"])
            for rows in changes:
                filler.append(ORDERS, SCHEMA, rows)
            filler.append(PAYMENTS, EVENT_SCHEMA, payments(options["events"]))
            left = options["backlog"]
            while left > 0:
                for rows in changes:
                    filler.append(BACKLOG, SCHEMA, rows.slice(0, left))
                    left -= min(left, rows.num_rows)
                    if not left:
                        break
            store.seal()
            live = split(changes[0].slice(0, 5 * options["follow"]), 5)
            lines = measure(store, folder, filler, options.repeat, live)
    body = (
        f"{options['changes']:,} changes and {options['events']:,} domain events, sealed; one member, every batch "
        f"committed. Beside: another process of another group with a backlog of {options['backlog']:,} "
        f"changes, on the consumer's cores. Follow: {options['follow']:,} epochs of five rows, {_RATE} a second, "
        f"from the append coming back to another process knowing. Medians of {options.repeat} rounds.\n\n"
        + table(["consumer", "alone", "beside a backlog", "ratio"], lines)
    )
    write_section(
        "consume",
        "Consumers",
        body,
        command=options.command,
        packages=["pyarrow", "sqlalchemy"],
        path=options.to,
    )


if __name__ == "__main__":
    main()
