"""What Postgres answers, and what a projection does, for each case."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
from psycopg import sql

from tailrace.eventstore.errors import TailraceError
from tailrace.eventstore.model.postgres_text import postgres_texts
from tailrace.eventstore.state.input import StateInput
from tailrace.eventstore.store import Store
from tailrace.projections import Projection, State
from tailrace.projections.analysis.analyse import analyse
from tailrace.projections.compute.compute import define
from tailrace.projections.compute.frames import local_frame, read_buckets, shown_columns
from tailrace.projections.compute.read_plan import plan_input
from tailrace.projections.definition.sql.load import load_sql
from tests.projections.meaning.cases import Case
from tests.projections.meaning.columns import KINDS, PREPARED, ROWS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = list[tuple[str | None, ...]]
HEADER = """/* projection
key = "id"
sink = {{ kind = "parquet", sink = "lake" }}
trust = true
time_zone = "{zone}"
inputs.t = {{ state = "shop.public.t", affects = "*", columns = {columns} }}
*/
"""


@dataclass(frozen=True)
class Answer:
    """``rows`` as Postgres' text, sorted; None: the query is refused, with ``words``. ``warnings`` are what ``check``
    says beside."""

    rows: Rows | None
    words: str = ""
    warnings: tuple[str, ...] = ()


def fill_table(dsn: str) -> None:
    columns = [(name, kind) for kind in KINDS for name in (kind.name, f"{kind.name}_2")]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(PREPARED.encode())
        declared = ", ".join(f"{name} {kind.type}" for name, kind in columns)
        connection.execute(f"CREATE TABLE t (id bigint PRIMARY KEY, {declared})".encode())
        for row in range(ROWS):
            values = [value for kind in KINDS for value in kind.values[row]]
            places = ", ".join(f"%s::text::{kind.type}" for _, kind in columns)
            statement = f"INSERT INTO t VALUES ({row}, {places})"  # noqa: S608
            connection.execute(statement.encode(), values)


def answers_of_postgres(dsn: str, cases: Sequence[Case]) -> dict[str, Answer]:
    found = {}
    with psycopg.connect(dsn, autocommit=True) as connection:
        for setting in ("TimeZone = UTC", "lc_monetary = 'C'", "search_path = public"):
            connection.execute(sql.SQL("SET " + setting))
        for case in cases:
            connection.execute(sql.SQL("SET TimeZone = {}").format(case.zone))
            text = "CASE WHEN v IS NOT NULL OR v::text IS NOT NULL THEN format('%s', v) END"  # by its output function
            query = f"SELECT id::text, {text} FROM ({case.postgres}) q"  # noqa: S608
            try:
                found[case.name] = Answer(_sorted(connection.execute(sql.SQL(query)).fetchall()))
            except psycopg.Error as error:
                found[case.name] = Answer(None, str(error).splitlines()[0])
    return found


@dataclass
class Projected:
    """The cases as projections over the table's topic."""

    spark: SparkSession
    store: Store
    folder: Path
    _frames: dict[tuple[str, ...], DataFrame] = field(default_factory=dict)

    def answers(self, cases: Sequence[Case]) -> dict[str, Answer]:
        found: dict[str, Answer] = {}
        results: dict[str, DataFrame] = {}
        for case in cases:
            defined = self._load(case)
            try:
                analysis = analyse(self.spark, self.store, defined)
            except TailraceError as error:
                found[case.name] = Answer(None, error.message)
                continue
            said = [f"{each.what} [{each.hint}]" for each in analysis.findings if each.level == "fail"]
            if said:
                found[case.name] = Answer(None, said[0])
                continue
            warned = tuple(each.what for each in analysis.findings)
            found[case.name] = Answer([], "", warned)
            results[case.name] = define(defined, {"t": self._frame(defined)}, None)
        for name, rows in self._rows(results).items():
            known = found[name]
            found[name] = Answer(None, rows) if isinstance(rows, str) else Answer(rows, "", known.warnings)
        return found

    def _load(self, case: Case) -> Projection:
        file = self.folder / "query.sql"
        columns = "[" + ", ".join(f'"{name}"' for name in case.columns) + "]"
        file.write_text(HEADER.format(columns=columns, zone=case.zone) + case.query)
        loaded = load_sql(file)
        assert loaded.projection is not None and not loaded.findings, (case, loaded.findings)
        return loaded.projection

    def _frame(self, defined: Projection) -> DataFrame:
        source = defined.inputs["t"]
        assert isinstance(source, State) and source.columns is not None
        columns = source.columns
        if columns not in self._frames:
            planned = plan_input(self.store, source, self.store.cut())
            assert isinstance(planned, StateInput)
            shown = shown_columns(planned, source)
            pieces = read_buckets(self.store.storage, planned, range(planned.buckets))
            rows = pa.concat_tables([piece.select(shown) for piece in pieces])
            self._frames[columns] = local_frame(self.spark, defined, "t", rows).coalesce(1).alias("t")
        return self._frames[columns]

    def _rows(self, results: Mapping[str, DataFrame]) -> dict[str, Rows | str]:
        """Those of one type in one job; one by one where that fails. A text says why one failed."""
        by_type: dict[str, list[str]] = defaultdict(list)
        for name, result in results.items():
            by_type[str(result.schema["v"].dataType)].append(name)
        found: dict[str, Rows | str] = {}
        for names in by_type.values():
            try:
                found |= self._united({name: results[name] for name in names})
            except Exception:  # noqa: BLE001 of Spark
                for name in names:
                    try:
                        found |= self._united({name: results[name]})
                    except Exception as error:  # noqa: BLE001
                        found[name] = "fails: " + str(error).splitlines()[0]
        return found

    def _united(self, results: Mapping[str, DataFrame]) -> dict[str, Rows | str]:
        from pyspark.sql import functions as F  # noqa: N812

        whole: DataFrame | None = None
        for name, result in results.items():
            part = result.select(F.lit(name).alias("case"), F.col("id").cast("bigint").alias("id"), "v")
            whole = part if whole is None else whole.unionAll(part)
        assert whole is not None
        table: pa.Table = whole.toArrow()
        values = table["v"].combine_chunks()
        if pa.types.is_time(values.type):  # which Spark sends as nanoseconds
            values = values.cast(pa.time64("us"))
        texts = postgres_texts(values).to_pylist()
        rows: dict[str, Rows] = {name: [] for name in results}
        for name, number, text in zip(table["case"].to_pylist(), table["id"].to_pylist(), texts, strict=True):
            rows[name].append((None if number is None else str(number), text))
        return {name: _sorted(each) for name, each in rows.items()}


def _sorted(rows: Sequence[tuple[str | None, ...]]) -> Rows:
    return sorted(rows, key=lambda row: tuple((cell is None, cell or "") for cell in row))
