"""State of a topic from its change events: our kernel, Spark's ``max_by(struct)`` and DuckDB's ``arg_max``.

All read the same segment files (Parquet, zstd level 1) and give the newest row of each key without the deleted ones;
row count and a sum over the result are compared before any time is reported. The order of the changes is
(_lsn, _ordinal), packed into one integer for the SQL engines, which is the form that is quickest for them. Engines
take turns; a ratio compares two runs of one round.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.options import Options, Size, median, parse
from benchmarks.results import table, write_section
from eventstore.keys import hash_columns
from eventstore.model import PartitionRange, SegmentRef, TopicId
from eventstore.schema import Column, TopicSchema, change_schema
from eventstore.segment import write_segment
from eventstore.state import StateInput, readable_state
from eventstore.storage import LocalStorage
from projections.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = TopicId.table("shop", "public", "orders")
SCHEMA = TopicSchema(
    version=1,
    columns=(
        Column(1, "id", 20, type_name="bigint", key=True),
        Column(2, "customer_id", 23, type_name="integer"),
        Column(3, "status", 25, type_name="text"),
        Column(4, "amount", 1700, (12 << 16 | 2) + 4, type_name="numeric(12,2)"),
        Column(5, "updated_at", 1184, type_name="timestamp with time zone"),
    ),
)
PARTITIONS = 4
EVENTS_PER_EPOCH = 200_000
CHANGES_PER_TRANSACTION = 5
DELETED = 0.03
_STATES = pa.array(["new", "paid", "packed", "shipped", "returned"])
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


def generate(folder: Path, events: int, keys: int) -> StateInput:
    """Write the change events as segments of ``EVENTS_PER_EPOCH`` rows and say how to read them."""
    storage = LocalStorage(folder)
    random = np.random.default_rng(20261121)
    seen = np.zeros(keys, np.bool_)
    following = dict.fromkeys(range(PARTITIONS), 0)
    refs = []
    for epoch, start in enumerate(range(0, events, EVENTS_PER_EPOCH), start=1):
        rows = _rows(random, seen, start, min(EVENTS_PER_EPOCH, events - start))
        made = write_segment(storage, TOPIC, 1, rows, PARTITIONS, f"{epoch:06d}")
        ranges = tuple(PartitionRange(p, following[p], count) for p, count in made.counts)
        for piece in ranges:
            following[piece.partition] += piece.rows
        refs.append(
            SegmentRef(
                TOPIC, 1, epoch, epoch, made.rows, made.bytes, ranges, path=made.path, checksum=made.checksum
            )
        )
    names = tuple(column.name for column in SCHEMA.columns)
    return StateInput(TOPIC, SCHEMA, {1: SCHEMA}, PARTITIONS, 1, tuple(refs), names, {})


def _rows(
    random: np.random.Generator, seen: np.ndarray[Any, np.dtype[np.bool_]], start: int, count: int
) -> pa.Table:
    keys = random.integers(0, len(seen), count)
    first = np.zeros(count, np.bool_)
    first[np.unique(keys, return_index=True)[1]] = True
    ops = np.where(~seen[keys] & first, "c", np.where(random.random(count) < DELETED, "d", "u"))
    seen[keys] = True
    ids = pa.array(keys)
    number = np.arange(start, start + count)
    times = pa.array(1_780_000_000_000_000 + number, pa.timestamp("us", "UTC"))
    cents = pa.array(random.integers(100, 1_000_000, count))
    deleted = pa.array(ops == "d")
    schema = change_schema(SCHEMA)
    after = pa.StructArray.from_arrays(
        [
            ids,
            pa.array(random.integers(0, 100_000, count), pa.int32()),
            _STATES.take(pa.array(random.integers(0, len(_STATES), count))),
            pc.multiply(cents, pa.scalar(Decimal("0.01"))).cast(pa.decimal128(12, 2)),
            times,
        ],
        fields=list(schema.field("after").type),
        mask=deleted,
    )
    columns = {
        "_hash": hash_columns([ids.cast(pa.string())]),
        "_op": pa.array(ops, pa.string()),
        "_lsn": pa.array(1000 + number // CHANGES_PER_TRANSACTION),
        "_txn": pa.array(number // CHANGES_PER_TRANSACTION),
        "_ordinal": pa.array(number % CHANGES_PER_TRANSACTION),
        "_commit_ts": times,
        "key": pa.StructArray.from_arrays([ids], fields=list(schema.field("key").type)),
        "after": after,
        "_before": pa.repeat("none", count),
    }
    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def answer_of(state: pa.Table) -> Answer:
    total = pc.sum(state["amount"].cast(pa.decimal128(38, 2))).as_py() or 0
    return Answer(state.num_rows, int(total * 100))


def _bucket(folder: Path, wanted: StateInput, bucket: int) -> tuple[Answer, int]:
    """One bucket in this process: its answer, and the most memory this process ever held (MiB)."""
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    answer = answer_of(readable_state(folder, wanted, bucket))
    return answer, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def ours_local(folder: Path, wanted: StateInput, cores: int) -> Timing:
    """Our kernel in ``cores`` processes of one thread each, started before the clock."""
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_ready, range(cores)))
        begun = time.perf_counter()
        jobs = [pool.submit(_bucket, folder, wanted, bucket) for bucket in range(wanted.buckets)]
        parts = [job.result() for job in jobs]
        seconds = time.perf_counter() - begun
    answer = Answer(sum(a.rows for a, _ in parts), sum(a.cents for a, _ in parts))
    return Timing("our kernel, local", cores, seconds, answer, max(peak for _, peak in parts))


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


def spark_kernel(session: SparkSession, folder: Path, wanted: StateInput) -> DataFrame:
    """Our kernel inside ``mapInArrow`` tasks, one bucket each."""

    def states(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pa.set_cpu_count(1)
        for batch in batches:
            for bucket in batch.column(0).to_pylist():
                state = readable_state(folder, wanted, bucket)
                yield from state.drop_columns(_POSITIONS).to_batches(max_chunksize=65_536)

    buckets = session.range(0, wanted.buckets, 1, wanted.buckets)
    kind = "id long, customer_id int, status string, amount decimal(12,2), updated_at timestamp"
    return buckets.mapInArrow(states, kind)


_POSITIONS = ["_hash", "_lsn", "_offset", "_epoch"]


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
        kernel, plain = "our kernel, Spark mapInArrow", "Spark max_by(struct)"
        engines = [
            SparkEngine(kernel, cores, partial(spark_kernel, session, folder, wanted)),
            SparkEngine(plain, cores, partial(spark_max_by, session, folder, wanted)),
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


def rows_of(groups: Sequence[Sequence[Sequence[Timing]]], events: int) -> list[list[str]]:
    """A line per engine: medians; ``ratio`` is its speed by ours of the same round, also a median."""
    lines = []
    for rounds in groups:
        for runs in zip(*rounds, strict=True):
            seconds = median([timing.seconds for timing in runs])
            ratio = median(
                [round_[0].seconds / run.seconds for round_, run in zip(rounds, runs, strict=True)]
            )
            peaks = [timing.peak_mib for timing in runs if timing.peak_mib is not None]
            lines.append(
                [
                    runs[0].engine,
                    str(runs[0].cores),
                    f"{events / seconds:,.0f}",
                    f"{ratio:.2f}",
                    f"{seconds:.2f}",
                    str(max(peaks, default="")),
                ]
            )
    return lines


_HEAD = ["engine", "cores", "changes/s", "ratio", "seconds", "peak MiB a process"]


def report(groups: list[list[list[Timing]]], keys: int, stored: int, options: Options) -> None:
    living = groups[0][0][0].answer.rows
    body = (
        f"{options['events']:,} change events on {keys:,} keys ({living:,} alive) in {stored / 1e6:.0f} MB of "
        f"segments; every engine gave the same rows. Medians of {options.repeat} rounds, engines by turns, session "
        "start excluded; ratio: speed by that of our kernel on the same cores and in the same surroundings.\n\n"
        + table(_HEAD, rows_of(groups, options["events"]))
    )
    packages = ("pyarrow", "numpy", "pyspark", "duckdb")
    write_section(
        "compaction",
        "State from change events",
        body,
        command=options.command,
        packages=packages,
        path=options.to,
    )


SIZES = (
    Size("events", 10_000_000, 300_000, "change events, on a tenth as many keys"),
    Size("cores", len(os.sched_getaffinity(0)), len(os.sched_getaffinity(0)), "cores to use"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("compaction", __doc__, SIZES, arguments)
    keys = max(1, options["events"] // 10)
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name:
        folder = Path(name)
        wanted = generate(folder, options["events"], keys)
        groups = measure(folder, wanted, options["cores"], options.repeat)
    report(groups, keys, sum(ref.bytes for ref in wanted.refs), options)


if __name__ == "__main__":
    main()
