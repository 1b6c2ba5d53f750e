"""Replaying domain events: typed columns in Spark beside the package eventsourcing, which makes an object of each.

Events of one type are read from the sealed log and summed, in a warm session: from typed columns, and from data as text
by Spark's own JSON. eventsourcing selects notifications of its Postgres and maps them to its classes; it is installed
into a temporary folder, and left out where that fails. CPU is that of the reading side: this process, Spark's and their
workers, for eventsourcing this process alone. Ways take turns.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks.eventstore.consume import PAYMENTS, SETTINGS, Filler, Paid, payments
from benchmarks.eventstore.domain_events import THEIRS, application_of, install_theirs
from benchmarks.options import Size, median, parse
from benchmarks.results import table, write_section
from benchmarks.spent import TICK, of_tree
from tailrace.embedded import PostgresServer
from tailrace.eventstore.model.schema import EVENT_SCHEMA
from tailrace.eventstore.settings import Settings, SinkSettings
from tailrace.eventstore.store import Store
from tailrace.projections import Events, ParquetFolder, projection
from tailrace.projections.compute.compute import define
from tailrace.projections.compute.frames import frames
from tailrace.projections.compute.read_plan import plan_reads
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Projection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EPOCH_EVENTS = 100_000
_SAVED_TOGETHER = 100
Way = Callable[[], int]


@projection(key="stream", sink=ParquetFolder("out"), events=Events(PAYMENTS.text, types=[Paid]))
def typed(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return events.groupBy("stream").agg(F.count("*").alias("events"), F.sum("paid.amount").alias("amount"))


@projection(key="stream", sink=ParquetFolder("out"), events=Events(PAYMENTS.text))
def parsed(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    data = events.withColumn("paid", F.from_json("data", "account string, amount long"))
    return data.groupBy("stream").agg(F.count("*").alias("events"), F.sum("paid.amount").alias("amount"))


def fill(store: Store, events: int) -> None:
    filler = Filler(store)
    filler.complete(PAYMENTS)
    rows = payments(min(events, _EPOCH_EVENTS))
    for done in range(0, events, _EPOCH_EVENTS):
        filler.append(PAYMENTS, EVENT_SCHEMA, rows.slice(0, events - done))
    store.seal()


def ours(context: ProjectionContext, defined: Projection) -> Way:
    def once() -> int:
        reads = plan_reads(context.store, defined, context.store.cut(), context.parallelism)
        inputs = frames(context.spark, context.store.storage, defined, reads, context.parallelism)
        found: pa.Table = define(defined, inputs, None).toArrow()
        return sum(found["events"].to_pylist())

    return once


def theirs(dsn: str, folder: Path, events: int) -> Way:
    sys.path.insert(0, str(folder))
    domain = import_module("eventsourcing.domain")

    def pay(self: Any, account: str, amount: Decimal) -> None:
        pass

    account = type("Account", (domain.Aggregate,), {"pay": domain.event("Paid")(pay)})
    globals()["Account"] = account  # they import it by its name
    account.__module__, account.__qualname__ = __name__, "Account"
    application = application_of(dsn)
    one = account()
    for number in range(events):
        one.pay(f"a{number % 1000}", Decimal(number))
        if number % _SAVED_TOGETHER == 0:
            application.save(one)
    application.save(one)

    def once() -> int:
        notifications = application.recorder.select_notifications(start=1, limit=events + 1)
        return sum(1 for each in notifications if application.mapper.to_domain_event(each)) - 1

    return once


def spent(way: Way, events: int, rounds: int) -> list[float]:
    found = []
    for _ in range(rounds + 1):
        before = of_tree(os.getpid())
        if way() != events:
            raise SystemExit("not every event was there")
        found.append(max(of_tree(os.getpid()) - before, TICK))
    return found[1:]  # warm


SIZES = (
    Size("events", 2_000_000, 100_000, "events in the log"),
    Size("theirs", 50_000, 2_000, "events of eventsourcing"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("projections.typed_events", __doc__, SIZES, arguments)
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=os.environ.get("TMPDIR")) as name:
        folder = Path(name)
        folder.chmod(0o755)
        ways: dict[str, tuple[int, list[float]]] = {}
        if install_theirs(folder / "theirs"):
            with PostgresServer(folder / "data", trust=True) as server:
                count = options["theirs"]
                way = theirs(server.dsn(), folder / "theirs", count)
                ways[THEIRS[0].replace("==", " ")] = count, spent(way, count, options.repeat)
        with Store.open(SETTINGS, create=True, root=folder / "store") as store:
            fill(store, options["events"])
            settings = Settings(
                store=SETTINGS, sinks={"out": SinkSettings(kind="parquet", path=folder / "out")}
            )
            context = ProjectionContext(store, settings, {})
            for title, defined in (
                ("tailrace, typed columns in Spark", typed),
                ("tailrace, data by from_json", parsed),
            ):
                ways[title] = (
                    options["events"],
                    spent(ours(context, defined), options["events"], options.repeat),
                )
    rates = {title: events / median(seconds) for title, (events, seconds) in ways.items()}
    first = next(iter(rates.values()))
    lines = [[title, f"{rate:,.0f}", f"{rate / first:.1f}"] for title, rate in rates.items()]
    body = (
        f"{options['events']:,} events of 86 bytes in the log, {options['theirs']:,} of eventsourcing's. Events per CPU"
        f" second of all that reads them, Spark's planning, its workers and the sum included. Medians of"
        f" {options.repeat} rounds.\n\n" + table(["way", "events per CPU second", "by the first's"], lines)
    )
    write_section(
        "typed_events",
        "Replaying domain events",
        body,
        command=options.command,
        packages=["pyspark", "pyarrow", "psycopg"],
        path=options.to,
    )


if __name__ == "__main__":
    main()
