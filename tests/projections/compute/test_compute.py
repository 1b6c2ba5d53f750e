"""What a projection computes: keyed rows in files, differences only, and errors that name the user's line."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from tailrace.eventstore.model import keys
from tailrace.eventstore.storage import LocalStorage
from tailrace.projections import PostgresTable, Projection, ProjectionFailed, State, projection
from tailrace.projections.compute.bucket import BucketOutcome, BucketTask, Placement
from tailrace.projections.compute.compute import compute, define, output_schema
from tailrace.projections.compute.progress import BucketCount, report_buckets
from tailrace.projections.context import Report, report_nothing
from tailrace.projections.generations.step_files import (
    BucketFiles,
    StepFiles,
    next_files,
    read_delta,
    read_result,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.usefixtures("values_shown")

SINK = PostgresTable("mart", "totals")
ORDERS = State("shop.public.orders", affects="customer")


@dataclass
class Generation:
    """Computes a projection again and again over hand-made rows, as a generation's refreshes do."""

    spark: SparkSession
    storage: LocalStorage
    projection: Projection
    files: Mapping[int, BucketFiles]
    report: Report = report_nothing

    def refresh(self, orders: pa.Table) -> list[BucketOutcome]:
        frame = self.spark.createDataFrame(orders, from_arrow_schema(orders.schema))
        result = define(self.projection, {"orders": frame}, None)
        self.schema = output_schema(self.projection, result)
        placement = Placement(self.schema, self.projection.key, partitions=4, split=2)
        task = BucketTask(self.storage, placement, self.files, self.projection.tolerance, "derived/p/1", "t")
        outcomes = compute(self.projection, result, task, self.report, self.projection.name)
        written = {outcome.bucket: outcome.files for outcome in outcomes if outcome.files is not None}
        self.files = StepFiles(*next_files(self.files, written), (), "", 0).buckets
        return outcomes

    def rows(self) -> list[dict[str, Any]]:
        key = self.projection.key
        tables = [read_result(self.storage, files, self.schema, key) for files in self.files.values()]
        rows = pa.concat_tables(tables).drop_columns(["_hash"]).to_pylist() if tables else []
        return sorted(rows, key=repr)

    def deltas(self, outcomes: Sequence[BucketOutcome]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        upserts: list[dict[str, Any]] = []
        deletes: list[dict[str, Any]] = []
        for outcome in outcomes:
            if outcome.delta is not None:
                found = read_delta(self.storage, outcome.delta, self.schema, self.projection.key)
                upserts += found[0].drop_columns(["_hash"]).to_pylist()
                deletes += found[1].drop_columns(["_hash"]).to_pylist()
        return upserts, deletes


def files(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file()}


def orders(rows: list[tuple[int | None, str]]) -> pa.Table:
    return pa.table(
        {
            "customer": pa.array([customer for customer, _ in rows], pa.int64()),
            "amount": pa.array([Decimal(amount) for _, amount in rows], pa.decimal128(12, 2)),
        }
    )


@projection(key="customer", sink=SINK, orders=ORDERS)
def totals(orders: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return orders.groupBy("customer").agg(F.sum("amount").alias("total"))


@projection(key="customer", sink=SINK, orders=ORDERS)
def listing(orders: DataFrame) -> DataFrame:
    return orders


def test_a_refresh_writes_only_the_rows_that_differ(spark: SparkSession, tmp_path: Path) -> None:
    generation = Generation(spark, LocalStorage(tmp_path), totals, {})
    first = generation.refresh(orders([(1, "1.50"), (2, "2.00"), (2, "3.00"), (3, "9.99")]))
    assert generation.deltas(first)[0] and not generation.deltas(first)[1]
    before = files(tmp_path)
    assert len(before) == len(generation.files), "a first build writes its rows once: the run is the delta"

    second = generation.refresh(orders([(1, "1.50"), (2, "2.00"), (4, "7.00")]))

    upserts, deletes = generation.deltas(second)
    assert sorted(row["customer"] for row in upserts) == [2, 4]
    assert deletes == [{"customer": 3}]
    assert generation.rows() == [
        {"customer": 1, "total": Decimal("1.50")},
        {"customer": 2, "total": Decimal("2.00")},
        {"customer": 4, "total": Decimal("7.00")},
    ]
    after = files(tmp_path)
    generation.refresh(orders([(1, "1.50"), (2, "2.00"), (4, "7.00")]))
    assert files(tmp_path) == after, "nothing changed, so nothing is written"
    assert before < after, "files are never changed or removed by a refresh"


def test_each_bucket_with_rows_is_counted_by_the_task_that_settles_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[BucketCount] = []
    told: list[tuple[str, int, int | None, str]] = []

    @contextmanager
    def kept(*arguments: Any) -> Iterator[BucketCount]:
        with report_buckets(*arguments) as counted:
            counts.append(counted)
            yield counted

    def report(step: str, done: int, total: int | None, unit: str) -> None:
        told.append((step, done, total, unit))

    monkeypatch.setattr("tailrace.projections.compute.compute.report_buckets", kept)
    generation = Generation(spark, LocalStorage(tmp_path), totals, {}, report)
    outcomes = generation.refresh(orders([(key, "1.00") for key in range(6)]))

    with_rows = [outcome for outcome in outcomes if outcome.rows]
    assert 1 < len(with_rows) < len(outcomes) == 8
    (counted,) = counts
    assert counted.accumulator is not None and counted.accumulator.value == len(with_rows)
    assert told[-1] == ("computing totals", 8, 8, "buckets"), "those without rows are done, too"


def test_a_result_without_rows_deletes_everything(spark: SparkSession, tmp_path: Path) -> None:
    generation = Generation(spark, LocalStorage(tmp_path), totals, {})
    generation.refresh(orders([(key, "1.00") for key in range(20)]))

    emptied = generation.refresh(orders([]))

    assert len(generation.deltas(emptied)[1]) == 20
    assert generation.rows() == []
    assert len(generation.deltas(generation.refresh(orders([(5, "1.00")])))[0]) == 1


def test_rows_lie_in_the_bucket_of_their_key(spark: SparkSession, tmp_path: Path) -> None:
    generation = Generation(spark, LocalStorage(tmp_path), totals, {})
    generation.refresh(orders([(key, "1.00") for key in range(50)]))

    for bucket, files in generation.files.items():
        table = read_result(generation.storage, files, generation.schema, listing.key)
        for row in table.to_pylist():
            assert row["_hash"] == keys.hash_texts([str(row["customer"])])
            assert keys.bucket_of(row["_hash"], 4, 2) == bucket
        assert table["_hash"].to_pylist() == sorted(table["_hash"].to_pylist())


@projection(key=("id", "at"), sink=SINK, orders=State("shop.public.orders"))
def everything(orders: DataFrame) -> DataFrame:
    return orders


def test_every_type_comes_back_as_it_went_in(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema(
        {
            "id": pa.int64(), "at": pa.timestamp("us", "UTC"), "flag": pa.bool_(), "small": pa.int16(),
            "int": pa.int32(), "real": pa.float32(), "double": pa.float64(), "text": pa.string(),
            "bytes": pa.binary(), "day": pa.date32(), "time": pa.time64("us"), "local": pa.timestamp("us"),
            "money": pa.decimal128(38, 10), "list": pa.list_(pa.int32()), "texts": pa.list_(pa.string()),
        }
    )  # fmt: skip
    at = dt.datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=dt.UTC)
    row = {
        "id": 1, "at": at, "flag": True, "small": -(2**15), "int": 2**31 - 1, "real": 1.5, "double": math.inf,
        "text": "é\n'", "bytes": b"\x00\xff", "day": dt.date(1, 1, 1), "time": dt.time(23, 59, 59, 999_999),
        "local": dt.datetime.fromisoformat("1500-01-01T00:00:00.000001"), "money": Decimal("12345.0000000001"),
        "list": [1, None], "texts": [],
    }  # fmt: skip
    empty: dict[str, Any] = dict.fromkeys(schema.names) | {"id": 2, "at": at}
    generation = Generation(spark, LocalStorage(tmp_path), everything, {})
    source = pa.Table.from_pylist(
        [row, empty], schema=schema.remove(10).append(pa.field("time", pa.time64("ns")))
    )

    generation.refresh(source)

    assert generation.rows() == sorted(
        [{name: found[name] for name in source.schema.names} for found in (row, empty)], key=repr
    )
    assert generation.schema.field("time").type == pa.time64("us")
    assert all(outcome.files is None for outcome in generation.refresh(source)), "equal to itself"


def test_rows_without_a_key_or_with_a_repeated_key_are_refused_and_leave_no_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    generation = Generation(spark, LocalStorage(tmp_path), listing, {})

    with pytest.raises(ProjectionFailed, match=r"2 rows have NULL in their key \(customer\)\n"):
        generation.refresh(orders([(None, "1.00"), (1, "1.00"), (None, "2.00")]))
    with pytest.raises(ProjectionFailed, match=r'2 rows repeat a key .*\{"customer": 7\}'):
        generation.refresh(orders([(7, "1.00"), (1, "1.00"), (7, "2.00"), (7, "1.00"), (2, "0.10")]))

    assert files(tmp_path) == set()


@projection(key="customer", sink=SINK, orders=ORDERS)
def lacks_key(orders: DataFrame) -> DataFrame:
    return orders.select("amount")


@projection(key="customer", sink=SINK, orders=ORDERS)
def raises(orders: DataFrame) -> DataFrame:
    return orders.limit(1 // 0)


@projection(key="customer", sink=SINK, orders=ORDERS)
def unknown_column(orders: DataFrame) -> DataFrame:
    return orders.select("custmer", "amount")


@projection(key="customer", sink=SINK, orders=ORDERS)
def returns_nothing(orders: DataFrame) -> None:
    orders.count()


@projection(key="customer", sink=SINK, orders=ORDERS)
def returns_rows_of_pandas(orders: DataFrame) -> Any:
    return orders.toPandas()


@projection(key="customer", sink=SINK, orders=ORDERS)
def fails_in_a_task(orders: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    @F.udf("string")
    def picky(value: object) -> str:
        raise KeyError(f"no price for {value}")

    return orders.withColumn("amount", picky("amount"))


@projection(key="customer", sink=SINK, orders=ORDERS)
def divides_by_zero(orders: DataFrame) -> DataFrame:
    return orders.selectExpr("customer", "amount / (amount - amount) AS share")


@pytest.mark.filterwarnings("ignore:Cannot infer the eval type")
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lacks_key, "its output lacks its key: no column customer among amount"),
        (raises, "ZeroDivisionError: integer division or modulo by zero"),
        (unknown_column, "`custmer` cannot be resolved. Did you mean"),
        (returns_nothing, "returned NoneType, not a DataFrame"),
        (returns_rows_of_pandas, "DataFrame, not a DataFrame of Spark"),
        (fails_in_a_task, "KeyError: 'no price for 1.00'"),
        (divides_by_zero, "Division by zero"),
    ],
    ids=lambda value: value.name if isinstance(value, Projection) else "",
)
def test_an_error_of_the_function_names_projection_file_and_line(
    spark: SparkSession, tmp_path: Path, wrong: Projection, words: str
) -> None:
    generation = Generation(spark, LocalStorage(tmp_path), wrong, {})

    with pytest.raises(ProjectionFailed) as raised:
        generation.refresh(orders([(1, "1.00")]))

    message = raised.value.message
    assert words in message
    assert f"'{wrong.name}'" in message
    assert "tests/projections/compute/test_compute.py:" in message
    assert "\n" not in message
    assert "\tat org.apache" not in str(raised.value)
    assert files(tmp_path) == set()
