"""What Postgres and a projection make of random expressions over the rows of ``x``."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from tailrace.eventstore.model.postgres_text import postgres_texts
from tailrace.eventstore.state.input import StateInput
from tailrace.eventstore.store import Store
from tailrace.projections import Projection, State
from tailrace.projections.analysis.analyse import analyse
from tailrace.projections.compute.compute import define
from tailrace.projections.compute.frames import local_frame, read_buckets, shown_columns
from tailrace.projections.compute.read_plan import plan_input
from tailrace.projections.definition.sql.load import load_sql
from tailrace.projections.definition.sql.postgres.refusal import Refused
from tailrace.projections.definition.sql.postgres.translate import parse, translate
from tailrace.projections.definition.sql.postgres.types.types import type_of_spark
from tailrace.projections.definition.sql_query import SqlQuery
from tests.projections.meaning.expressions import INEXACT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Outcome = Literal["equal", "refused", "warned", "fails in both", "fails in one", "different"]
"""``fails in one``: a decimal of more digits than Spark has, a text that it does not read as a type, an object of
JSON as text, a large quotient, the text of a late year, or a computed pattern of LIKE that ends in its escape, which is
an error when it is computed; a float that becomes infinite or zero, in the end or on the way, which is an error in
Postgres; what one of them does not compute, because NULL, an empty array, one without the element that is replaced, or
a choice of constants stands beside it; a constant that fails, which Postgres computes for no row, too."""
_ONLY_HERE = (
    "cannot be represented as Decimal(38",
    "CAST_INVALID_INPUT",
    "of JSON as text is not translated",
    "a quotient of 10^16 or more",
    "the text of a year beyond 9999",
    "INVALID_FORMAT.ESC_AT_THE_END",
)
_KNOWN_BEFORE = re.compile(r"NULL|nullif\(|CASE -?[0-9]+ WHEN -?[0-9]+ ")
_FLOATS = re.compile(r"\b[rf][12]\b|::(real|float)")
_NAME = re.compile(r"[a-z]+[12]\b")
_EMPTY = "{}"
_OUT_OF_RANGE, _LIMITS = "22003", ("Infinity", "-Infinity", "0", "-0", "NaN")
HEADER = """/* projection
key = "id"
sink = { kind = "parquet", sink = "lake" }
trust = true
collation = "C"
inputs.x = { state = "shop.public.x", affects = "*" }
*/
"""
_EVALUATED = """
CREATE FUNCTION evaluated(expression text) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    -- by its output function, where a row may have a NULL inside
    shown text := format('CASE WHEN (%1$s) IS NOT NULL OR (%1$s)::text IS NOT NULL THEN format(''%%s'', %1$s) END',
                         expression);
    found text[];
    one text;
    number bigint;
BEGIN
    BEGIN
        EXECUTE format('SELECT array_agg(v ORDER BY id) FROM (SELECT id, %s AS v FROM x) q', shown) INTO found;
        RETURN found;
    EXCEPTION WHEN OTHERS THEN
        found := '{}';
    END;
    FOR number IN SELECT id FROM x ORDER BY id LOOP
        BEGIN
            -- in a query within, where a window is over all rows
            EXECUTE format('SELECT v FROM (SELECT id, %s AS v FROM x) q WHERE id = %s', shown, number) INTO one;
        EXCEPTION WHEN OTHERS THEN
            one := chr(1) || SQLSTATE;
        END;
        found := found || one;
    END LOOP;
    RETURN found;
END $$
"""
_FAILS = "\x01"
_TRIES = 4
TOGETHER = 40
"""Expressions of a query. More are computed in less time unless one of them fails: then all are again."""


@dataclass(frozen=True, slots=True)
class Expected:
    """``values`` are Postgres' texts by row; of those in ``failing`` it has none. ``planned``: it can be planned there;
    otherwise a constant in it fails, whatever row would need it. ``shortened``: its planner left columns out, which
    constants beside them make needless, so that what is done with them cannot fail there."""

    expression: str
    values: Sequence[str | None]
    failing: Sequence[int]
    planned: bool = True
    shortened: bool = False

    @property
    def guarded(self) -> str:
        """The expression where Postgres has a value."""
        if not self.failing:
            return self.expression
        rows = ", ".join(map(str, self.failing))
        return f"CASE WHEN id NOT IN ({rows}) THEN {self.expression} END"


def values_of_postgres(dsn: str, expressions: Sequence[str]) -> list[Expected]:
    """Those that Postgres knows the types of."""
    found = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(_EVALUATED.encode())
        for expression in expressions:
            planned = True
            try:
                connection.execute(sql.SQL("SELECT {} FROM x LIMIT 0").format(sql.SQL(expression)))
            except psycopg.errors.DataError:
                planned = False
            except psycopg.Error:
                continue
            (row,) = connection.execute("SELECT evaluated(%s)", [expression]).fetchall()
            failing = [at for at, text in enumerate(row[0]) if text is not None and text.startswith(_FAILS)]
            shortened = planned and _is_shortened(connection, expression)
            found.append(Expected(expression, row[0], failing, planned, shortened))
        connection.execute("DROP FUNCTION evaluated")
    return found


def _is_shortened(connection: psycopg.Connection[tuple[Any, ...]], expression: str) -> bool:
    query = sql.SQL("EXPLAIN (VERBOSE, COSTS OFF) SELECT {} FROM x").format(sql.SQL(expression))
    plan = Counter(_NAME.findall(" ".join(row[0] for row in connection.execute(query).fetchall())))
    return any(plan[name] < count for name, count in Counter(_NAME.findall(expression)).items())


@dataclass(frozen=True, slots=True)
class _Failed:
    """Spark's words, and the place in the query that they are about."""

    words: str
    place: str


@dataclass
class Expressions:
    """``x`` as the input of projections whose bodies select expressions over it."""

    spark: SparkSession
    store: Store
    folder: Path
    words: dict[str, str] = field(default_factory=dict)
    """Of what is different or refused: what was found."""

    def __post_init__(self) -> None:
        defined = self._load([])
        source = defined.inputs["x"]
        assert isinstance(source, State)
        planned = plan_input(self.store, source, self.store.cut())
        assert isinstance(planned, StateInput)
        shown = shown_columns(planned, source)
        pieces = read_buckets(self.store.storage, planned, range(planned.buckets))
        rows = pa.concat_tables([piece.select(shown) for piece in pieces])
        self._frame: DataFrame = local_frame(self.spark, defined, "x", rows)
        self._bare = {name: _bare_rows(rows, name) for name in rows.column_names}
        self.columns = tuple((each.name, type_of_spark(each.dataType)) for each in self._frame.schema.fields)

    def _load(self, expressions: Sequence[str]) -> Projection:
        file = self.folder / "expressions.sql"
        columns = "".join(f",\n{each} AS v{at}" for at, each in enumerate(expressions))
        file.write_text(f"{HEADER}SELECT id{columns}\nFROM x")
        loaded = load_sql(file)
        assert loaded.projection is not None and not loaded.findings, (expressions, loaded.findings)
        return loaded.projection

    def outcomes(self, expected: Sequence[Expected], *, probes: int = 0) -> dict[str, Outcome]:
        """By expression. ``probes``: how many rows that fail in Postgres are tried here. What ``check`` says is asked
        of those that differ alone: it takes longer than computing them."""
        found: dict[str, Outcome] = {}
        accepted = []
        for each in expected:
            said = self._refusal(each.guarded)
            if said:
                found[each.expression], self.words[each.expression] = "refused", said
            else:
                accepted.append(each)
        for first in range(0, len(accepted), TOGETHER):
            self._compare(accepted[first : first + TOGETHER], found)
        failing = [each for each in accepted if found[each.expression] == "equal" and each.failing]
        self._probe(failing[:probes], found)
        return found

    def _refusal(self, expression: str) -> str:
        try:
            translate(parse(f"SELECT id, {expression} AS v FROM x"), {"x": self.columns}, "UTC")  # noqa: S608
        except Refused as error:
            return f"{error.what} [{error.hint}]"
        return ""

    def _compare(self, several: Sequence[Expected], found: dict[str, Outcome]) -> None:
        values = self._values(several)
        if isinstance(values, _Failed) and len(several) > 1:
            failed = _at(values.place, several)
            others = [each for each in several if each not in failed]
            for part in (failed, others) if failed else _halves(several):
                self._compare(part, found)
            return
        for at, each in enumerate(several):
            words = values.words if isinstance(values, _Failed) else _difference(each, values[at])
            found[each.expression] = self._verdict(each, words) if words else "equal"
            if words:
                self.words[each.expression] = words

    def _verdict(self, expected: Expected, words: str) -> Outcome:
        """Of one that differs."""
        fails = words.startswith("fails: ")
        beside_null = _KNOWN_BEFORE.search(expected.expression) is not None or not any(expected.values)
        beside_null |= expected.shortened
        if fails and len(expected.failing) == len(expected.values):
            return "fails in both"  # a constant that Spark computes beforehand
        if fails and (beside_null or any(each in words for each in _ONLY_HERE)):
            return "fails in one"
        levels = {
            each.level for each in analyse(self.spark, self.store, self._load([expected.guarded])).findings
        }
        return "refused" if "fail" in levels else "warned" if levels else "different"

    def _values(self, several: Sequence[Expected]) -> list[tuple[list[str | None], bool]] | _Failed:
        """The texts by row of each expression, and whether they are decimals'."""
        defined = self._load([each.guarded for each in several])
        try:
            table: pa.Table = define(defined, {"x": self._frame}, None).toArrow().sort_by("id")
        except Exception as error:  # noqa: BLE001 of Spark
            assert isinstance(defined.function, SqlQuery)
            return _Failed("fails: " + str(error).splitlines()[0], defined.function.place_of(error))
        return [texts_of(table[f"v{at}"].combine_chunks()) for at in range(len(several))]

    def values_of(self, columns: Mapping[str, Column]) -> dict[str, list[str | None]]:
        """The texts by row of columns that Python made."""
        named = [column.alias(f"v{at}") for at, column in enumerate(columns.values())]
        table: pa.Table = self._frame.select("id", *named).toArrow().sort_by("id")
        return {name: texts_of(table[f"v{at}"].combine_chunks())[0] for at, name in enumerate(columns)}

    def _probe(self, several: Sequence[Expected], found: dict[str, Outcome]) -> None:
        """Rows that fail in Postgres, first those without NULL and empty arrays. One that fails here, too, will do:
        what stands beside nothing is not computed."""
        for each in several:
            names = set(_NAME.findall(each.expression)) & self._bare.keys()
            bare = frozenset[int]().union(*(self._bare[name] for name in names))
            rows = sorted(each.failing, key=lambda row: row in bare)[:_TRIES]
            tried = (self._in_row(each, row, row in bare) for row in rows)
            found[each.expression] = next((one for one in tried if one != "different"), "different")

    def _in_row(self, expected: Expected, row: int, bare: bool) -> Outcome:
        expression = expected.expression
        values = self._values([Expected(f"CASE WHEN id = {row} THEN {expression} END", (), ())])
        if isinstance(values, _Failed):
            return "fails in both"
        (texts, _) = values[0]
        beside_null = _KNOWN_BEFORE.search(expression) is not None
        beside_null |= "array_replace(" in expression  # the other element is computed where it is needed
        unused = texts[row] in (None, _EMPTY) or not expected.planned or beside_null or bare
        limited = texts[row] in _LIMITS or _FLOATS.search(expression) is not None
        if unused or (expected.values[row] == _FAILS + _OUT_OF_RANGE and limited):
            return "fails in one"
        self.words[expression] = (
            f"row {row}: Postgres fails with {expected.values[row]!r}, here {texts[row]!r}"
        )
        return "different"


def _bare_rows(rows: pa.Table, name: str) -> frozenset[int]:
    """Those with NULL or an empty array."""
    column, ids = rows[name].combine_chunks(), rows["id"].combine_chunks()
    nothing = column.is_null()
    if pa.types.is_list(column.type):
        nothing = pc.or_(nothing, pc.fill_null(pc.equal(pc.list_value_length(column), 0), False))
    return frozenset(ids.filter(nothing).to_pylist())


def _at(place: str, several: Sequence[Expected]) -> list[Expected]:
    """The expression on the line of ``file:line:column``; none where that is another line."""
    line = int((*place.split(":"), "0")[1]) - HEADER.count("\n") - 2
    return [several[line]] if 0 <= line < len(several) else []


def _halves(several: Sequence[Expected]) -> tuple[Sequence[Expected], Sequence[Expected]]:
    middle = len(several) // 2
    return several[:middle], several[middle:]


def texts_of(column: pa.Array) -> tuple[list[str | None], bool]:
    if pa.types.is_time(column.type):  # which Spark sends as nanoseconds
        column = column.cast(pa.time64("us"))
    if pa.types.is_null(column.type):
        column = column.cast(pa.string())
    return postgres_texts(column).to_pylist(), pa.types.is_decimal(column.type)


def _difference(expected: Expected, values: tuple[list[str | None], bool]) -> str:
    """The first row that differs, in words; "" for none."""
    texts, is_decimal = values
    is_inexact = any(each in expected.expression for each in INEXACT)
    for row, (one, other) in enumerate(zip(expected.values, texts, strict=True)):
        if row in expected.failing or one == other:
            continue
        if is_decimal and one is not None and other is not None and Decimal(one) == Decimal(other):
            continue
        if is_inexact and one and other and _is_close(one, other):
            continue
        return f"row {row}: Postgres {one!r}, here {other!r}"
    return ""


def _is_close(one: str, other: str) -> bool:
    try:
        return math.isclose(float(one), float(other), rel_tol=1e-13)
    except ValueError:
        return False


def smallest(expressions: Mapping[str, str]) -> str:
    """The shortest of the different ones and what was found, for a message."""
    shortest = sorted(expressions, key=len)[:20]
    return "\n".join(f"{each}\n    {expressions[each]}" for each in shortest)
