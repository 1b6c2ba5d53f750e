"""A rebuild from change events: to nowhere, kept as the log's result, and into each sink.

Two projections of one table: ``totals`` groups its rows by customer, ``cache`` has a row for each of wide ones. The log
is as rounds of upkeep leave it, with state runs beside the rows; ours is measured with them and of every row. Beside
it, what reads all of the same changes and gives the same rows: Spark by hand over the log's files (``max_by`` of the
row as a struct, or the largest position of each key and a semi-join), Spark over the same changes as lean
Debezium-style JSON (plain lines, of the envelope only what is needed, an explicit schema), and DuckDB over the log's
files. Row count and a sum over the result are compared before any time is reported. All Spark engines share one warm
session and take turns; a ratio compares two runs of one round.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
from pydantic import SecretStr

from benchmarks.eventstore.compaction import Answer, answer_of, spark_max_by, spark_semi_join
from benchmarks.eventstore.history import NARROW, TOPIC, WIDE, History, history
from benchmarks.options import Size, median, parse
from benchmarks.results import table, write_section
from tailrace.embedded import PostgresServer, RedisServer
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.settings import Settings, SinkSettings, UpkeepSettings
from tailrace.eventstore.state.input import StateInput
from tailrace.projections import ParquetFolder, PostgresTable, RedisCache, SearchIndex, State, projection
from tailrace.projections.compute.compute import define
from tailrace.projections.compute.frames import frames
from tailrace.projections.compute.read_plan import ReadPlan, plan_reads
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Projection
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.verify import verify
from tailrace.projections.sinks.specs import SinkSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS = TOPIC.text
_POSITION = "_lsn * 10 + _ordinal"
_STATE = f"""
select unnest(last.after) from (
  select arg_max({{'op': _op, 'after': after}}, {_POSITION}) as last from read_parquet(?) group by key
) where last.op <> 'd'
"""  # noqa: S608 - a constant
_TEXTS = {20: "long", 23: "int", 25: "string", 1700: "decimal(12,2)", 1184: "long"}


@projection(key="customer_id", sink=ParquetFolder("out"), orders=State(ORDERS))
def totals(orders: DataFrame) -> DataFrame:
    """What each customer has ordered."""
    from pyspark.sql import functions as F  # noqa: N812

    kept = orders.where("status <> 'returned'")
    return kept.groupBy("customer_id").agg(F.count("id").alias("orders"), F.sum("amount").alias("amount"))


@projection(key="id", sink=ParquetFolder("out"), orders=State(ORDERS))
def cache(orders: DataFrame) -> DataFrame:
    """Every order, to be looked up."""
    return orders


@dataclass(frozen=True, slots=True)
class Case:
    """A projection and the same in DuckDB's SQL over a relation ``state``."""

    projection: Projection
    schema: TopicSchema
    sql: str


CASES = (
    Case(
        totals,
        NARROW,
        "select customer_id, count(id) as orders, sum(amount) as amount from state "
        "where status <> 'returned' group by 1",
    ),
    Case(cache, WIDE, "select * from state"),
)


@dataclass(frozen=True, slots=True)
class Ground:
    """What is read: the log's files of one table, and its changes as JSON."""

    case: Case
    ctx: ProjectionContext
    folder: Path
    wanted: StateInput
    json: Path

    def log(self) -> DataFrame:
        """As a rebuild computes it."""
        cut = self.ctx.store.cut()
        return self._of(plan_reads(self.ctx.store, self.case.projection, cut, self.ctx.parallelism))

    def every_row(self) -> DataFrame:
        """The same without state runs."""
        return self._of(ReadPlan(self.ctx.store.cut(), {"orders": self.wanted}))

    def _of(self, plan: ReadPlan) -> DataFrame:
        spark, projection = self.ctx.spark, self.case.projection
        inputs = frames(spark, self.ctx.store.storage, projection, plan, self.ctx.parallelism)
        return define(projection, inputs, None)

    def by_hand(self, state: Callable[[SparkSession, Path, StateInput], DataFrame]) -> DataFrame:
        found = state(self.ctx.spark, self.folder, self.wanted)
        return define(self.case.projection, {"orders": found}, None)

    def debezium(self) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        names = [column.name for column in self.case.schema.columns]
        cells = ", ".join(f"{each.name}: {_TEXTS[each.type_oid]}" for each in self.case.schema.columns)
        schema = f"before struct<id: long>, after struct<{cells}>, op string, source struct<lsn: long>"
        changes = self.ctx.spark.read.schema(schema).json(str(self.json / "*.json"))
        key = F.coalesce("after.id", "before.id").alias("key")
        last = changes.groupBy(key).agg(F.max_by(F.struct("op", "after"), "source.lsn").alias("last"))
        rows = last.where("last.op <> 'd'").select(*(f"last.after.{name}" for name in names))
        state = rows.withColumn("updated_at", F.timestamp_micros("updated_at"))
        return define(self.case.projection, {"orders": state}, None)

    def duck(self) -> tuple[float, Answer]:
        files = [str(self.folder / str(ref.path)) for ref in self.wanted.refs]
        with duckdb.connect(config={"threads": self.ctx.parallelism}) as connection:
            began = time.perf_counter()
            query = f"with state as ({_STATE}) {self.case.sql}"
            found = connection.sql(query, params=[files]).to_arrow_table()
            seconds = time.perf_counter() - began
        return seconds, answer_of(found)


Engine = Callable[[], tuple[float, Answer]]


def to_nowhere(frame: Callable[[], DataFrame]) -> Engine:
    """Writes its frame nowhere. The answer is taken once, outside the clock; that run is also the warm-up."""
    from pyspark.sql import functions as F  # noqa: N812

    row = frame().agg(F.count("*"), F.sum("amount")).collect()[0]
    answer = Answer(int(row[0]), int(row[1] * 100))

    def run() -> tuple[float, Answer]:
        began = time.perf_counter()
        frame().write.format("noop").mode("overwrite").save()
        return time.perf_counter() - began, answer

    return run


def compared(ground: Ground, events: int, repeat: int) -> list[list[str]]:
    """A line per engine, ours first: medians, and by how much ours are quicker in the same round."""
    engines = {
        "Tailrace": to_nowhere(ground.log),
        "Tailrace, of every row": to_nowhere(ground.every_row),
        "Spark by hand, max_by(struct)": to_nowhere(partial(ground.by_hand, spark_max_by)),
        "Spark by hand, max + semi-join": to_nowhere(partial(ground.by_hand, spark_semi_join)),
        "Spark, lean Debezium JSON": to_nowhere(ground.debezium),
        "DuckDB": ground.duck,
    }
    rounds = [{name: engine() for name, engine in engines.items()} for _ in range(repeat)]
    answers = {answer for each in rounds for _, answer in each.values()}
    if len(answers) != 1:
        raise SystemExit(f"the engines do not agree: {[rounds[0][name][1] for name in engines]}")
    lines = []
    for name in engines:
        seconds = median([each[name][0] for each in rounds])
        ratios = [median([each[name][0] / each[ours][0] for each in rounds]) for ours in list(engines)[:2]]
        what = f"{ground.case.projection.name}: {name}"
        lines.append(
            [what, f"{seconds:.2f}", f"{events / seconds:,.0f}", *(f"{ratio:.2f}" for ratio in ratios)]
        )
    return lines


SINKS: dict[str, Callable[[str], SinkSpec]] = {
    "Parquet": lambda name: ParquetFolder("out"),
    "Postgres": lambda name: PostgresTable("mart", name),
    "Redis": lambda name: RedisCache("cache"),
    "search": lambda name: SearchIndex("search", fields={"amount": "f64"}),
}


def into_sinks(ctx: ProjectionContext, case: Case, events: int) -> list[list[str]]:
    """A line for the whole rebuild into each sink, proved equal afterwards."""
    lines = []
    for kind, spec in SINKS.items():
        name = f"{case.projection.name}_{kind.lower()}"
        ctx.projections[name] = replace(case.projection, name=name, sink=spec(name))
        applying: list[float] = []

        def report(step: str, done: int, total: int | None, unit: str, at: list[float] = applying) -> None:
            if step.startswith("applying"):
                at.append(time.perf_counter())

        ctx.report = report
        began = time.perf_counter()
        rebuild(ctx, name)
        parts = (applying[0] - began, applying[-1] - applying[0], time.perf_counter() - began)
        proof = verify(ctx, name)
        assert proof.equal, proof
        cells = [text for seconds in parts for text in (f"{seconds:.2f}", f"{events / seconds:,.0f}")]
        lines.append([f"{case.projection.name}: {kind}", *cells, f"{proof.rows:,}"])
    return lines


def as_json(ground: History, wanted: StateInput, folder: Path, to: Path) -> int:
    """The changes as JSON lines; their bytes."""
    to.mkdir()
    files = [str(folder / str(ref.path)) for ref in wanted.refs]
    cells = ", ".join(
        f"'{each.name}': {_json_cell(each.name, each.type_oid)}" for each in ground.schema.columns
    )
    query = f"""
    copy (select case when _op = 'd' then {{'id': key.id}} end as before,
                 case when _op <> 'd' then {{{cells}}} end as after,
                 _op as op, {{'lsn': {_POSITION}}} as source, epoch_ms(_commit_ts) as ts_ms
          from read_parquet($files))
    to '{to}' (format json, per_thread_output true)
    """  # noqa: S608 - names of our own columns and folders
    with duckdb.connect() as connection:
        connection.execute(query, {"files": files})
    return sum(file.stat().st_size for file in to.iterdir())


def _json_cell(name: str, oid: int) -> str:
    casts = {1700: f"after.{name}::varchar", 1184: f"epoch_us(after.{name})"}
    return casts.get(oid, f"after.{name}")


@contextmanager
def servers(folder: Path) -> Iterator[dict[str, SinkSettings]]:
    with PostgresServer() as postgres, RedisServer() as redis:
        yield {
            "out": SinkSettings(kind="parquet", path=folder / "out"),
            "search": SinkSettings(kind="search", path=folder / "search"),
            "mart": SinkSettings(kind="postgres", dsn=SecretStr(postgres.dsn())),
            "cache": SinkSettings(kind="redis", url=SecretStr(redis.url)),
        }


def measured(case: Case, events: int, repeat: int) -> tuple[str, list[list[str]], list[list[str]]]:
    """What was measured on, in words; a line per engine, and one per sink."""
    keys = max(1, events // 10)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-bench-")))
        made = stack.enter_context(history(folder, case.schema, keys, UpkeepSettings().state_bytes))
        made.grow(events, rounds=10)
        wanted = made.state()
        size = as_json(made, wanted, folder / "segments", folder / "json")
        settings = Settings(store=made.store.settings, sinks=stack.enter_context(servers(folder)))
        ctx = stack.enter_context(ProjectionContext(made.store, settings, {}))
        ground = Ground(case, ctx, folder / "segments", wanted, folder / "json")
        lines = compared(ground, events, repeat)
        sinks = into_sinks(ctx, case, events)
        read = made.state(every_row=False)
    said = (
        f"{case.projection.name}: {events:,} change events on {keys:,} keys, {_megabytes(wanted)} MB of the log's "
        f"files ({_megabytes(read)} MB by way of its state runs), {size / 1e6:,.0f} MB of JSON"
    )
    return said, lines, sinks


def _megabytes(wanted: StateInput) -> str:
    return f"{sum(ref.bytes for ref in wanted.refs) / 1e6:,.0f}"


SIZES = (
    Size("events", 10_000_000, 200_000, "change events of narrow rows, for totals"),
    Size("wide", 10_000_000, 50_000, "change events of wide rows with the row before, for a cache"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("projections.rebuild", __doc__, SIZES, arguments)
    sizes: dict[Any, int] = {NARROW: options["events"], WIDE: options["wide"]}
    found = [measured(case, sizes[case.schema], options.repeat) for case in CASES]
    body = (
        f"{'; '.join(said for said, _, _ in found)}. Every engine gave the same rows; all but the first of each "
        f"read every row. {options.repeat} rounds, medians, engines by turns in one warm session, to nowhere "
        "(Spark's noop; DuckDB: a table in memory).\n\n"
        + table(
            ["to nowhere", "seconds", "events/s", "by ours", "by ours of every row"],
            [line for _, each, _ in found for line in each],
        )
        + "\n\nThe whole rebuild into each sink: computed, kept as the log's own result, written, promoted; then "
        "proved equal to the log, outside the clock. Once each.\n\n"
        + table(
            ["into", "computed, kept s", "events/s", "into it s", "events/s", "in all s", "events/s", "rows"],
            [line for _, _, each in found for line in each],
        )
    )
    write_section(
        "rebuild",
        "Rebuilding projections",
        body,
        command=options.command,
        packages=["pyspark", "pyarrow", "duckdb", "psycopg", "redis", "tantivy"],
        path=options.to,
    )


if __name__ == "__main__":
    main()
