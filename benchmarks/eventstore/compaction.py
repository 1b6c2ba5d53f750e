"""State of a topic from its change events: our kernel, Spark's three ways and DuckDB's ``arg_max``; runs; and growth.

All read the files of a store as capture, sealing and merging leave them, and give the newest row of each key without
the deleted ones; row count and a sum over the result are compared before any time is reported. The order of the changes
is (_lsn, _ordinal), packed into one integer for the SQL engines, which is the form that is quickest for them. Spark's
ways: ``max_by`` of the row as a struct; of fixed-width columns only, the status as a number (narrow rows: texts cannot
be had that way); the largest position of each key, and a semi-join with it. Engines take turns; a ratio compares two
runs of one round.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import delete, select, update

from benchmarks.eventstore.history import CHANGES_PER_TRANSACTION, NARROW, STATES, WIDE, History, history
from benchmarks.memory import peak_kib
from benchmarks.options import Size, median, parse
from benchmarks.results import table, write_section
from tailrace.eventstore.catalog import tables
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.state.input import StateInput
from tailrace.eventstore.state.state import readable_states
from tailrace.projections.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ORDER = 10  # _lsn * _ORDER + _ordinal is one integer in commit order


@dataclass(frozen=True, slots=True)
class Answer:
    """What every engine must agree on."""

    rows: int
    cents: int


@dataclass(frozen=True, slots=True)
class Timing:
    engine: str
    cores: int
    seconds: float
    answer: Answer
    peak_mib: int | None = None


def answer_of(state: pa.Table) -> Answer:
    total = pc.sum(state["amount"].cast(pa.decimal128(38, 2))).as_py() or 0
    return Answer(state.num_rows, int(total * 100))


def together(answers: Iterable[Answer]) -> Answer:
    parts = list(answers)
    return Answer(sum(part.rows for part in parts), sum(part.cents for part in parts))


def _partition(folder: Path, wanted: StateInput, partition: int) -> tuple[Answer, int]:
    """One partition in this process: its answer, and the most memory this process ever held (MiB)."""
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    buckets = wanted.bucket_layout.buckets_of(partition)
    answer = together(map(answer_of, readable_states(folder, wanted, buckets)))
    return answer, peak_kib() >> 10


def ours_local(folder: Path, wanted: StateInput, cores: int) -> Timing:
    """Our kernel in ``cores`` processes of one thread each, started before the clock."""
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_ready, range(cores)))
        begun = time.perf_counter()
        jobs = [pool.submit(_partition, folder, wanted, each) for each in range(wanted.partitions)]
        parts = [job.result() for job in jobs]
        seconds = time.perf_counter() - begun
    peak = max(peak for _, peak in parts)
    return Timing("our kernel, local", cores, seconds, together(answer for answer, _ in parts), peak)


def _ready(_: int) -> int:
    time.sleep(0.5)  # so that every process of the pool has imported this module
    return os.getpid()


_DUCKDB = f"""
select key.id as id, unnest(last.after) from (
  select key, arg_max({{'op': _op, 'after': after}}, _lsn * {_ORDER} + _ordinal) as last
  from read_parquet(?) group by key
) where last.op <> 'd'
"""  # noqa: S608 - a constant


def duckdb_arg_max(folder: Path, wanted: StateInput, cores: int) -> Timing:
    files = [str(folder / str(ref.path)) for ref in wanted.refs]
    with duckdb.connect(config={"threads": cores}) as connection:
        begun = time.perf_counter()
        state = connection.sql(_DUCKDB, params=[files]).to_arrow_table()
        seconds = time.perf_counter() - begun
    return Timing("DuckDB arg_max(struct)", cores, seconds, answer_of(state))


def spark_session(cores: int) -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.shuffle.partitions", str(2 * cores))
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    session.range(1000).count()
    return session


def spark_max_by(session: SparkSession, folder: Path, wanted: StateInput) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    changes = session.read.parquet(*(str(folder / str(ref.path)) for ref in wanted.refs))
    order = F.col("_lsn") * _ORDER + F.col("_ordinal")
    last = changes.groupBy("key").agg(F.max_by(F.struct("_op", "after"), order).alias("last"))
    return last.where("last._op <> 'd'").select("last.after.*")


def spark_fixed_width(session: SparkSession, folder: Path, wanted: StateInput) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    changes = session.read.parquet(*(str(folder / str(ref.path)) for ref in wanted.refs))
    order = F.col("_lsn") * _ORDER + F.col("_ordinal")
    names = F.array(*map(F.lit, STATES))
    status = F.array_position(names, F.col("after.status")).cast("int").alias("status")
    columns = [F.col(f"after.{name}").alias(name) for name in ("customer_id", "amount", "updated_at")]
    row = F.struct((F.col("_op") == "d").alias("deleted"), status, *columns)
    last = changes.groupBy(F.col("key.id").alias("id")).agg(F.max_by(row, order).alias("last"))
    text = F.element_at(names, F.col("last.status")).alias("status")
    return last.where("NOT last.deleted").select(
        "id", "last.customer_id", text, "last.amount", "last.updated_at"
    )


def spark_semi_join(session: SparkSession, folder: Path, wanted: StateInput) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    files = [str(folder / str(ref.path)) for ref in wanted.refs]
    order = (F.col("_lsn") * _ORDER + F.col("_ordinal")).alias("position")
    keyed = session.read.parquet(*files).select(F.col("key.id").alias("key_id"), order, "_op", "after")
    newest = keyed.groupBy("key_id").agg(F.max("position").alias("position"))
    return keyed.join(newest, ["key_id", "position"], "left_semi").where("_op <> 'd'").select("after.*")


def spark_kernel(session: SparkSession, folder: Path, wanted: StateInput) -> DataFrame:
    """Our kernel inside ``mapInArrow`` tasks, one partition each."""

    def states(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pa.set_cpu_count(1)
        for batch in batches:
            for partition in batch.column(0).to_pylist():
                for state in readable_states(folder, wanted, wanted.bucket_layout.buckets_of(partition)):
                    cells = state.select([column.name for column in wanted.selected_columns])
                    yield from cells.to_batches(max_chunksize=65_536)

    partitions = session.range(0, wanted.partitions, 1, wanted.partitions)
    kind = "id long, customer_id int, status string, amount decimal(12,2), updated_at timestamp"
    texts = [f"{column.name} string" for column in wanted.target.columns[len(NARROW.columns) :]]
    return partitions.mapInArrow(states, ", ".join([kind, *texts]))


class SparkEngine:
    """Writes its frame nowhere. The answer is taken once, outside the clock; that run is also the warm-up."""

    def __init__(self, engine: str, cores: int, frame: Callable[[], DataFrame]) -> None:
        from pyspark.sql import functions as F  # noqa: N812

        self._engine, self._cores, self._frame = engine, cores, frame
        row = frame().agg(F.count("*"), F.sum("amount")).collect()[0]
        self._answer = Answer(int(row[0]), int((row[1] or 0) * 100))

    def __call__(self) -> Timing:
        begun = time.perf_counter()
        self._frame().write.format("noop").mode("overwrite").save()
        return Timing(self._engine, self._cores, time.perf_counter() - begun, self._answer)


def measure(folder: Path, wanted: StateInput, cores: int, repeat: int) -> list[list[list[Timing]]]:
    """Groups of engines measured by turns, ours first: per group its rounds, each with one timing per engine."""
    groups = [
        _by_turns(
            [partial(ours_local, folder, wanted, n), partial(duckdb_arg_max, folder, wanted, n)], repeat
        )
        for n in sorted({1, cores})
    ]
    session = spark_session(cores)
    try:
        ways: dict[str, Callable[[SparkSession, Path, StateInput], DataFrame]] = {
            "our kernel, Spark mapInArrow": spark_kernel,
            "Spark max_by(struct)": spark_max_by,
            "Spark max + semi-join": spark_semi_join,
        }
        if wanted.target == NARROW:
            ways["Spark max_by, fixed width"] = spark_fixed_width
        engines = [
            SparkEngine(name, cores, partial(way, session, folder, wanted)) for name, way in ways.items()
        ]
        groups.append(_by_turns(engines, repeat))
    finally:
        session.stop()
    answers = {timing.answer for rounds in groups for round_ in rounds for timing in round_}
    if len(answers) != 1:
        raise SystemExit(f"the engines do not agree: {answers}")
    return groups


def _by_turns(engines: Sequence[Callable[[], Timing]], repeat: int) -> list[list[Timing]]:
    return [[engine() for engine in engines] for _ in range(repeat)]


def rows_of(shape: str, groups: Sequence[Sequence[Sequence[Timing]]], events: int) -> list[list[str]]:
    """A line per engine: medians; ``ratio`` is its speed by ours of the same round, also a median."""
    lines = []
    for rounds in groups:
        for runs in zip(*rounds, strict=True):
            seconds = median([timing.seconds for timing in runs])
            ratio = median(
                [round_[0].seconds / run.seconds for round_, run in zip(rounds, runs, strict=True)]
            )
            peaks = [timing.peak_mib for timing in runs if timing.peak_mib is not None]
            cells = (
                f"{events / seconds:,.0f}",
                f"{ratio:.2f}",
                f"{seconds:.2f}",
                str(max(peaks, default="")),
            )
            lines.append([f"{shape}: {runs[0].engine}", str(runs[0].cores), *cells])
    return lines


def compared(
    shape: str, schema: TopicSchema, events: int, cores: int, repeat: int
) -> tuple[str, list[list[str]]]:
    """What was measured on, in words, and a line per engine."""
    keys = max(1, events // 10)
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name:
        folder = Path(name)
        with history(folder, schema, keys) as made:
            made.grow(events)
            wanted = made.state()
        groups = measure(folder / "segments", wanted, cores, repeat)
    stored = sum(ref.bytes for ref in wanted.refs) / 1e6
    living = groups[0][0][0].answer.rows
    said = f"{shape}: {events:,} change events on {keys:,} keys ({living:,} alive), {stored:.0f} MB"
    return said, rows_of(shape, groups, events)


def growth(events: int, points: int, keys: int) -> list[list[str]]:
    """Runs on a fixed number of keys while the history grows: a line for each of its lengths."""
    lines = []
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name,
        history(Path(name), NARROW, keys) as made,
    ):
        for at in range(1, points + 1):
            made.grow(_whole_transactions(events * at // points))
            _forget_runs(made)
            full = _seconds(lambda: made.store.compact())
            made.grow(made.events + _whole_transactions(made.events // 100))
            step = _seconds(lambda: made.store.compact())
            by_rows, by_runs = made.state(), made.state(every_row=False)
            answers = [_whole(made, wanted) for wanted in (by_rows, by_runs)]
            if answers[0][1] != answers[1][1]:
                raise SystemExit(f"the state by way of runs is another one: {answers}")
            seconds = (full, step, answers[0][0], answers[1][0])
            lines.append(
                [
                    f"{made.events:,}",
                    f"{keys:,}",
                    "one of all" if _runs(made) == 1 else "beside the first",
                    *(f"{each:.2f}" for each in seconds),
                    f"{step / full:.3f}",
                    f"{answers[1][0] / answers[0][0]:.3f}",
                ]
            )
    return lines


def _whole_transactions(events: int) -> int:
    return max(1, events // CHANGES_PER_TRANSACTION) * CHANGES_PER_TRANSACTION


def _forget_runs(made: History) -> None:
    with made.store.catalog.write() as connection:
        connection.execute(delete(tables.state_runs))
        connection.execute(update(tables.topic_offsets).values(looks="[]"))


def _runs(made: History) -> int:
    columns = (tables.state_runs.c.after_epoch, tables.state_runs.c.epoch)
    with made.store.catalog.read() as connection:
        return len(connection.execute(select(*columns).distinct()).all())


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _whole(made: History, wanted: StateInput) -> tuple[float, Answer]:
    begun = time.perf_counter()
    states = readable_states(made.store.storage, wanted, range(wanted.buckets))
    answer = together(map(answer_of, states))
    return time.perf_counter() - begun, answer


_HEAD = ["rows: engine", "cores", "changes/s", "ratio", "seconds", "peak MiB a process"]
_GROWTH_HEAD = [
    "events in the end",
    "keys",
    "the run after 1 % more",
    "a whole run s",
    "a run of 1 % new s",
    "state from all rows s",
    "state by way of runs s",
    "1 % new by whole",
    "by runs by all rows",
]

SIZES = (
    Size("events", 10_000_000, 300_000, "change events of narrow rows, on a tenth as many keys; 0: none"),
    Size("many", 50_000_000, 400_000, "change events of a longer history of narrow rows, read once"),
    Size(
        "wide",
        10_000_000,
        50_000,
        "change events of wide rows with the row before, also; 0: none",
    ),
    Size("points", 4, 2, "lengths of history at which runs are measured"),
    Size("cores", len(os.sched_getaffinity(0)), len(os.sched_getaffinity(0)), "cores to use"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("eventstore.compaction", __doc__, SIZES, arguments)
    section = partial(
        write_section,
        command=options.command,
        packages=("pyarrow", "numpy", "pyspark", "duckdb"),
        path=options.to,
    )
    if options["events"]:
        shapes = [("narrow", options["events"], options.repeat), ("long", options["many"], 1)]
        found = [compared(name, NARROW, many, options["cores"], repeat) for name, many, repeat in shapes]
        rounds = f"Medians of rounds ({options.repeat}; long: one)"
        section("compaction", "State from change events", by_engines(found, rounds))
        section("runs", "State runs", by_growth(options["events"], options["points"]))
    if options["wide"]:
        wide = compared("wide", WIDE, options["wide"], options["cores"], 1)
        section("wide", "State from change events of wide rows", by_engines([wide], "One round"))


def by_engines(found: Sequence[tuple[str, list[list[str]]]], rounds: str) -> str:
    return (
        f"Files as capture, sealing and merging leave them; {'; '.join(said for said, _ in found)}. Every engine gave "
        f"the same rows. {rounds}, engines by turns, session start excluded; ratio: "
        "speed by that of our kernel on the same cores and in the same surroundings.\n\n"
        + table(_HEAD, [line for _, each in found for line in each])
    )


def by_growth(events: int, points: int) -> str:
    fixed = max(1, events // points // 10)
    lines = growth(events, 1, max(1, events // 10)) + growth(events, points, fixed)
    return (
        "Narrow rows, one process: with a tenth as many keys as events, then while the history grows on a fixed number "
        "of keys. A run of all there is; 1 % more events, and what upkeep makes then: a run of those beside the first, "
        "or one of both once the new events have a quarter of the first one's bytes, for which the first is read "
        "instead of all rows; and the state read from all rows, and by way of runs. Once each.\n\n"
        + table(_GROWTH_HEAD, lines)
    )


if __name__ == "__main__":
    main()
