"""A use of a type that Spark has not is refused wherever the value went, in Python as in SQL; what is right is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tailrace.eventstore.log.sources import register_topic
from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.projections import State, projection
from tailrace.projections.analysis.analyse import analyse
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.sql.load import load_sql
from tests.projections.refresh.gallery import LAKE
from tests.projections.shoplog import topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Said = Callable[..., list[tuple[str, str]]]
OWN = 16_400
COLUMNS = (
    Column(1, "id", 20, type_name="bigint", key=True),
    Column(2, "mood", OWN, type_name="public.mood", type_kind="e"),
    Column(3, "length", 1186, type_name="interval"),
    Column(4, "code", 1042, 9, "character(5)"),
    Column(5, "city", 25, type_name="text", collation="en_US.utf8"),
    Column(6, "loose", 25, type_name="text", collation="loose (nondeterministic)"),
    Column(7, "home", OWN + 1, type_name="public.home", base_oid=869, type_kind="b"),
    Column(8, "odd", OWN + 2, type_name="public.ltree", type_kind="b"),
    Column(9, "untold", OWN + 3, type_name="public.status"),
    Column(10, "tags", 1009, type_name="text[]", collation="C"),
    Column(11, "doc", 3802, type_name="jsonb"),
)


@pytest.fixture(scope="module")
def said(spark: SparkSession, empty_shop: ProjectionContext) -> Said:
    """What ``check`` finds of a function over that table: level and words, without the column's description."""
    register_topic(empty_shop.store, topic("people"), TopicSchema(1, COLUMNS))

    def found(function: Callable[[DataFrame], DataFrame], **more: Any) -> list[tuple[str, str]]:
        def listed(people: DataFrame) -> DataFrame:
            return function(people)

        source = State("shop.public.people", cast=more.pop("cast", {}))
        defined = projection(key="id", sink=LAKE, trust=True, people=source, **more)(listed)
        return [(each.level, f"{each.column}: {each.what.rpartition(', and ')[2]}") for each in
                analyse(spark, empty_shop.store, defined).findings]  # fmt: skip

    return found


WRONG: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "through coalesce": (lambda p: p.where(F.coalesce("mood", F.lit("ok")) < "sad"), "mood: is compared as text (<)"),
    "through a struct": (
        lambda p: p.select("id", F.struct("length", "id").alias("s")).where("s.length = '1 mon'"),
        "length: is compared as text (=)",
    ),
    "through a list": (
        lambda p: p.groupBy("id").agg(F.array_max(F.collect_list("mood")).alias("m")),
        "mood: is compared as text (array_max)",
    ),
    "through a choice": (
        lambda p: p.groupBy(F.when(F.col("id") > 1, F.col("length")).alias("id")).count(),
        "length: is compared as text (groupBy)",
    ),
    "through explode": (
        lambda p: p.select("id", F.explode(F.array("doc", "doc")).alias("d")).distinct(),
        "doc: is compared as text (distinct)",
    ),
    "in a window": (
        lambda p: p.selectExpr("id", "count(*) OVER (PARTITION BY doc) AS n"), "doc: is compared as text (partitionBy)",
    ),
    "in a pivot": (
        lambda p: p.groupBy("id").pivot("length", ["1 day"]).count(), "length: is compared as text (pivot)",
    ),
    "in a map": (lambda p: p.select("id", F.create_map("length", "id").alias("m")), "length: is used by createmap()"),
    "in a set operation": (
        lambda p: p.select("id", "doc").where("id > 1").intersect(p.select("id", "doc")).select("id"), "",
    ),
    "as a date": (lambda p: p.select("id", F.year("mood").alias("y")), "mood: is read as date"),
    "of a domain": (lambda p: p.where("home < '10.0.0.1'"), "home: is compared as text (<)"),
    "of a type of an extension": (lambda p: p.where("odd = 'a'"), "odd: is compared as text (=)"),
    "of an extension in a function": (lambda p: p.where("odd LIKE 'a%'"), "odd: is used by like()"),
    "of a type that is not known": (lambda p: p.where("untold = 'a'"), "untold: is compared as text (=)"),
    "of texts of which several are equal": (lambda p: p.groupBy("loose").count().withColumnRenamed("loose", "id"),
                                            "loose: is compared as text (groupBy)"),
    "of arrays": (lambda p: p.orderBy("tags").limit(2), "tags: is compared as text (orderBy)"),
    "of padding": (lambda p: p.where("code LIKE '%x'"), "code: is used by like(), which sees no padding here"),
    "of a constant": (
        lambda p: p.where("home = '::1'"), "home: is compared with a constant that Postgres would print otherwise",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_it_is_refused(case: str, said: Said) -> None:
    function, words = WRONG[case]
    failed = [what for level, what in said(function) if level == "fail"]
    assert failed == ([words] if words else [])


RIGHT: dict[str, Callable[[DataFrame], DataFrame]] = {
    "kept": lambda p: p,
    "equal": lambda p: p.where("mood = 'ok' AND mood IN ('ok', 'sad') AND home = '10.0.0.1' AND code = 'a'"),
    "grouped": lambda p: p.groupBy(F.col("mood").alias("id")).agg(F.count("length"), F.max("id")),
    "cast where it is used": lambda p: p.where("cast(mood AS string) < 'sad'"),
    "beside its key": lambda p: p.groupBy("id", "length", "doc", "odd").count(),
    "functions of text": lambda p: p.selectExpr("id", "get_json_object(doc, '$.a') AS a", "upper(code) AS c"),
    "elements of an array": lambda p: p.select(
        "id", F.array_max("tags").alias("t"), F.sort_array("tags").alias("s")
    ),
    "padding": lambda p: p.where("code LIKE 'a%' AND code < 'b'"),
}


@pytest.mark.parametrize("case", RIGHT)
def test_what_is_right_is_not_refused(case: str, said: Said) -> None:
    assert said(RIGHT[case], collation="C") == []


def test_a_declared_cast_ends_it(said: Said) -> None:
    def ordered(people: DataFrame) -> DataFrame:
        return people.orderBy("mood", "id").limit(1)

    assert said(ordered, cast={"mood": "string"}) == []
    assert [level for level, _ in said(ordered)] == ["fail"]


def test_an_order_of_texts_is_warned_of_where_it_matters(said: Said) -> None:
    warned = [("warn", "city: is ordered by its bytes (max)")]
    assert said(lambda p: p.groupBy("id").agg(F.max("city").alias("c"))) == warned
    assert said(lambda p: p.where("city < 'm'"))[0] == ("warn", "city: is ordered by its bytes (<)")
    assert said(lambda p: p.orderBy("city", "id").limit(3))[0] == (
        "warn",
        "city: is ordered by its bytes (orderBy)",
    )
    assert said(lambda p: p.orderBy("city").where("city = 'Bonn'")) == [], (
        "the order of rows is none of a result"
    )
    assert said(lambda p: p.groupBy("id").agg(F.max("city").alias("c")), collation="C") == []


IN_POSTGRES = {
    "text that is meant": ("SELECT id, mood::text < 'sad' AS v, code::text LIKE '%x' AS w FROM people", ""),
    "text as it is printed": ("SELECT id, concat(home) AS v FROM people", ""),
    "an address": ("SELECT id, home::text AS v FROM people", "cast to text, which in Postgres always has the length"),
    "an address beside text": ("SELECT id, home || '!' AS v FROM people", "cast to text, which in Postgres always has"),
    "a collation": ("SELECT id, city::text < 'b' AS v FROM people", "ordered by its bytes (<)"),
    "a collation that takes texts for equal": ("SELECT id, loose::text = 'b' AS v FROM people", "compared as text (=)"),
}  # fmt: skip


@pytest.mark.parametrize("case", IN_POSTGRES)
def test_a_cast_to_text_in_postgres_sql_is_that_of_postgres(
    said: Said, spark: SparkSession, empty_shop: ProjectionContext, tmp_path: Path, case: str
) -> None:
    query, words = IN_POSTGRES[case]
    head = 'key = "id"\nsink = { kind = "parquet", sink = "lake" }\ninputs.people = "shop.public.people"'
    (tmp_path / "view.sql").write_text(f"/* projection\n{head}\n*/\n{query}")
    defined = load_sql(tmp_path / "view.sql").projection
    assert defined is not None
    found = [each.what for each in analyse(spark, empty_shop.store, defined).findings]
    assert len(found) == bool(words) and all(words in what for what in found), found
