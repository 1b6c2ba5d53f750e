"""A refresh of a projection after some rows of its table changed: by affected keys, and in full.

Two projections of one table: ``totals`` groups its rows by customer, so a changed row affects the customer it had and
the one it has, with all of their rows; ``cache`` has a row for each of its. So many rows change that about the given
share of a projection's keys is affected. Time is that of computing a step and committing it, in a warm session;
bringing it to the sink is the same for both. After each pair the sink's rows are proved equal to the log's.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.eventstore.history import CUSTOMERS, EVENTS_PER_EPOCH, NARROW, TOPIC, History, history
from benchmarks.options import Options, Size, median, parse
from benchmarks.results import table, write_section
from tailrace.eventstore.settings import Settings, SinkSettings
from tailrace.projections import ParquetFolder, State, projection
from tailrace.projections.context import ProjectionContext
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.verify import verify
from tailrace.projections.refresh.apply import apply
from tailrace.projections.refresh.plan import Full, Incremental
from tailrace.projections.refresh.plan_step import plan_generation
from tailrace.projections.refresh.step import CommittedStep, take_step
from tailrace.projections.refresh.step_input import StepInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHARES = (0.0001, 0.001, 0.01, 0.1)
ORDERS = TOPIC.text
_CUSTOMERS_OF_A_CHANGE = 2  # the one that the row had, the one that it has


@projection(key="customer_id", sink=ParquetFolder("out"), orders=State(ORDERS, affects="customer_id"))
def totals(orders: DataFrame) -> DataFrame:
    """What each customer has ordered."""
    from pyspark.sql import functions as F  # noqa: N812

    kept = orders.where("status <> 'returned'")
    return kept.groupBy("customer_id").agg(F.count("id").alias("orders"), F.sum("amount").alias("total"))


@projection(key="id", sink=ParquetFolder("out"), orders=State(ORDERS, affects="id"))
def cache(orders: DataFrame) -> DataFrame:
    """Every order, to be looked up."""
    return orders.select("id", "customer_id", "status", "amount", "updated_at")


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    share: float
    rows: int
    keys: int | None
    """That were followed; None: they were too many, and everything was computed."""
    incremental: float
    full: float

    def cells(self) -> list[str]:
        return [
            self.name,
            f"{self.share:.2%}",
            f"{self.rows:,}",
            "too many" if self.keys is None else f"{self.keys:,}",
            f"{self.incremental:.2f}",
            f"{self.full:.2f}",
            f"{self.incremental / self.full:.2f}",
        ]


@contextmanager
def shop(rows: int) -> Iterator[tuple[History, ProjectionContext]]:
    """A table of so many rows, as a first load and upkeep leave it, with both projections built."""
    with tempfile.TemporaryDirectory() as name, history(Path(name), NARROW, rows) as made:
        for first in range(0, rows, EVENTS_PER_EPOCH):
            made.put(np.arange(first, min(first + EVENTS_PER_EPOCH, rows)))
        made.store.maintain()
        settings = Settings(
            store=made.store.settings, sinks={"out": SinkSettings(kind="parquet", path=Path(name) / "out")}
        )
        with ProjectionContext(made.store, settings, {"totals": totals, "cache": cache}) as ctx:
            for each in ("totals", "cache"):
                rebuild(ctx, each)
            yield made, ctx


def measure(made: History, ctx: ProjectionContext, name: str, share: float, repeat: int) -> Line:
    """Rounds of changes, each followed by one incremental and, after as many more changes, one full step."""
    rows = len(made.seen)
    keys = {"totals": min(CUSTOMERS, rows) / _CUSTOMERS_OF_A_CHANGE, "cache": rows}
    count = max(1, round(keys[name] * share))
    random = np.random.default_rng(round(share * 1e6))
    taken: dict[str, list[tuple[CommittedStep, float]]] = {"incremental": [], "full": []}
    for _ in range(repeat):
        for kind, steps in taken.items():
            made.put(random.choice(rows, count, replace=False))
            steps.append(_step(ctx, name, kind))
    assert verify(ctx, name).equal
    return Line(
        name,
        share,
        count,
        taken["incremental"][0][0].keys,
        median([seconds for _, seconds in taken["incremental"]]),
        median([seconds for _, seconds in taken["full"]]),
    )


def _step(ctx: ProjectionContext, name: str, kind: str) -> tuple[CommittedStep, float]:
    definition, generation = ctx.projection(name), ctx.generation(name, 1)
    cut = ctx.store.cut()
    step = StepInput(ctx, definition, generation, cut)
    decided = plan_generation(step)
    assert isinstance(decided, Incremental), decided
    wanted = Full(decided.from_epoch, cut.epoch, "measured") if kind == "full" else decided
    began = time.monotonic()
    taken = take_step(step, wanted)
    seconds = time.monotonic() - began
    assert taken.kind == kind or "keys are affected" in taken.reason, taken.reason  # too many to be followed
    apply(ctx, generation)
    return taken, seconds


def report(options: Options, rows: int, repeat: int, section: str, lines: Sequence[Line]) -> None:
    head = ["projection", "of its keys", "rows changed", "keys affected", "incremental s", "full s", "ratio"]
    rounds = f"{repeat} rounds, medians" if repeat > 1 else "one round"
    body = f"{rows:,} rows in the table; {rounds}.\n\n" + table(head, [line.cells() for line in lines])
    write_section(
        section,
        f"Refresh by affected keys, and in full: {rows:,} rows",
        body,
        command=options.command,
        packages=["pyspark", "pyarrow"],
        path=options.to,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    sizes = [
        Size("rows", 1_000_000, 20_000, "rows of the table; 0: none"),
        Size("large", 10_000_000, 0, "rows of a larger one, measured in one round; 0: none"),
    ]
    options = parse("projections.incremental", __doc__, sizes, arguments)
    for rows, repeat, section in (
        (options["rows"], options.repeat, "incremental"),
        (options["large"], 1, "incremental-large"),
    ):
        if rows:
            report(options, rows, repeat, section, measured(rows, repeat))


def measured(rows: int, repeat: int) -> list[Line]:
    lines: list[Line] = []
    with shop(rows) as (made, ctx):
        for name in ("totals", "cache"):
            refresh(ctx, [name])
            lines += [measure(made, ctx, name, share, repeat) for share in SHARES]
    return lines


if __name__ == "__main__":
    main()
