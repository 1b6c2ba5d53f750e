"""A random expression means in a projection what it means in Postgres, or is refused before a row is read."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from tailrace import functions as pg
from tailrace.embedded import PostgresServer
from tailrace.eventstore.errors import UsageError
from tailrace.projections.definition.sql.postgres.functions.patterns import Pattern, read_pattern
from tailrace.projections.definition.sql.postgres.refusal import NotInTable
from tailrace.projections.definition.sql.postgres.translate import parse, translate
from tailrace.projections.definition.sql.postgres.types.types import TEXT
from tests.fixtures.databases import drop_database
from tests.fixtures.scale import Scale
from tests.fixtures.spark import interpreted
from tests.projections.meaning.expression_answers import (
    Expressions,
    smallest,
    texts_of,
    values_of_postgres,
)
from tests.projections.meaning.expression_rows import fill_rows
from tests.projections.meaning.expressions import Generator
from tests.projections.meaning.function_cases import calls, computed_rows
from tests.projections.meaning.random_patterns import pattern, text
from tests.projections.meaning.syntax_cases import SYNTAX, X
from tests.support.capturing import Site, init_and_capture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH, COMPILED = 200, 50
"""Expressions of a round; which rounds are compiled."""


@pytest.fixture(scope="module")
def seed(scale: Scale) -> int:
    return scale.pick(smoke=20, full=random.randrange(10**9))


@pytest.fixture(scope="module")
def captured(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory, seed: int) -> Iterator[Site]:
    """In a database whose letters are Unicode's, as most are; that of other tests has the locale C."""
    name = "test_expressions"
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} TEMPLATE template0 ENCODING UTF8 LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8'"
        )
    site = Site.at(tmp_path_factory.mktemp("expressions"), postgres.dsn(name))
    fill_rows(site.dsn, seed)
    with init_and_capture(site):
        yield site
    drop_database(postgres, name)


def test_a_random_expression_means_what_it_means_in_postgres_or_is_refused(
    captured: Site, spark: SparkSession, tmp_path: Path, scale: Scale, seed: int
) -> None:
    rounds = scale.pick(smoke=600, full=100_000) // BATCH
    counted: Counter[str] = Counter()
    different: dict[str, str] = {}
    with captured.open() as store:
        here = Expressions(spark, store, tmp_path)
        for at in range(rounds):
            generator = Generator(seed * rounds + at)
            chosen = list(dict.fromkeys(generator.expression() for _ in range(BATCH)))
            # Hundreds of expressions that are computed once take longer to compile than to compute.
            with nullcontext() if at % COMPILED == COMPILED - 1 else interpreted(spark):
                outcomes = here.outcomes(values_of_postgres(captured.dsn, chosen), probes=1)
            counted.update(outcomes.values())
            different |= {each: here.words[each] for each, what in outcomes.items() if what == "different"}
            if (at + 1) % COMPILED == 0 or at + 1 == rounds:
                print(f"seed {seed}, {at + 1} of {rounds} rounds: {dict(counted)}", smallest(different))
    assert not different, f"seed {seed}, {len(different)} differ:\n{smallest(different)}"
    assert counted["equal"] > counted["refused"], "most of what is tried can be computed"


def test_every_function_of_the_table_gives_what_it_gives_in_postgres(
    captured: Site, spark: SparkSession, tmp_path: Path
) -> None:
    of_rows = {row: calls(row) for row in computed_rows()}
    every = list(dict.fromkeys(call for each in of_rows.values() for call in each))
    expected = values_of_postgres(captured.dsn, every)
    assert {each.expression for each in expected} == set(every), "each is known to Postgres"
    with captured.open() as store:
        here = Expressions(spark, store, tmp_path)
        outcomes = here.outcomes(expected)
    different = {
        each: here.words[each] for each, what in outcomes.items() if what not in ("equal", "refused")
    }
    assert not different, smallest(different)
    unseen = [calls for calls in of_rows.values() if all(outcomes[call] == "refused" for call in calls)]
    assert not unseen, "each is computed in some form"


def test_every_form_of_the_manual_gives_what_it_gives_in_postgres_or_is_refused_as_it_says(
    captured: Site, spark: SparkSession, tmp_path: Path
) -> None:
    every = [each for forms in SYNTAX.values() for each in forms.values()]
    expected = values_of_postgres(captured.dsn, every)
    assert {each.expression for each in expected} == set(every), "each is known to Postgres"
    with captured.open() as store:
        here = Expressions(spark, store, tmp_path)
        assert here.columns == X, "what the manual says of these columns is said of those that are captured"
        outcomes = here.outcomes(expected)
    different = {
        each: here.words[each] for each, what in outcomes.items() if what not in ("equal", "refused")
    }
    assert not different, smallest(different)


NUMBERS_AND_TIMES = ("smallint", "integer", "bigint", "real", "double precision", "date", "time", "timestamp")
TEXTS = (
    "2024", "2024-02", "2024-02-29 x", "2024-02-29 25:00", "2024-2-9", "0000-01-01", "2024-02-30", "2024-02-29T10:30",
    " 2024-02-29 ", "10:30", "9:5", "10:30 PM", "24:00", "23:59:59.1234567", "01:02:03.5", "1d", "1f",
    "0x1p3", "1.", ".5", "1E5", " 7 ", "+7", "1.5", "1_000", "inf", "-Infinity", "nan", "t", "",
)  # fmt: skip


@pytest.mark.parametrize("kind", NUMBERS_AND_TIMES)
def test_a_text_that_is_no_value_in_postgres_is_none(captured: Site, spark: SparkSession, kind: str) -> None:
    query = f"SELECT t::{kind} AS v FROM texts"  # noqa: S608
    here = translate(parse(query), {"texts": (("t", TEXT),)}, "UTC").text.format(i0="texts")
    spark.createDataFrame([(each,) for each in TEXTS], "t string").createOrReplaceTempView("texts")
    found = spark.sql(here.replace("CAST(", "t, TRY_CAST(", 1)).toArrow()
    texts = dict(zip(found["t"].to_pylist(), texts_of(found["v"].combine_chunks())[0], strict=True))
    with psycopg.connect(captured.dsn, autocommit=True) as connection:
        for text, value in texts.items():
            with suppress(psycopg.DataError):
                (expected,) = connection.execute(f"SELECT (%s::{kind})::text", [text]).fetchall()[0]
                assert value in (expected, None), text
                continue
            assert value is None, text
    assert sum(value is not None for value in texts.values()) >= 2


IN_PYTHON: dict[str, Callable[[], Column]] = {
    "upper(t1)": lambda: pg.upper("t1"),
    "lower(t1)": lambda: pg.lower(F.col("t1")),
    "initcap(t1)": lambda: pg.initcap("t1"),
    "left(t1, -2)": lambda: pg.left("t1", -2),
    "right(t1, 3)": lambda: pg.right("t1", 3),
    "substr(t1, -1)": lambda: pg.substr("t1", -1),
    "substr(t1, -1, 4)": lambda: pg.substr("t1", -1, 4),
    "split_part(t1, ' ', -1)": lambda: pg.split_part("t1", " ", -1),
    r"regexp_replace(t1, '(\w)(\w)', '{\2\1}')": lambda: pg.regexp_replace("t1", r"(\w)(\w)", r"{\2\1}"),
    "regexp_replace(t1, 'A|o', '\\&\\&', 'gi')": lambda: pg.regexp_replace("t1", "A|o", r"\&\&", "gi"),
    "regexp_like(t1, '[[:alpha:]]{3}')": lambda: pg.regexp_like("t1", "[[:alpha:]]{3}"),
    "regexp_substr(t1, '[0-9]+')": lambda: pg.regexp_substr("t1", "[0-9]+"),
    "regexp_match(t1, '([a-z]) ?([A-Z])', 'i')": lambda: pg.regexp_match("t1", "([a-z]) ?([A-Z])", "i"),
    "date_trunc('week', p1)": lambda: pg.date_trunc("week", "p1"),
    "date_trunc('day', z1, 'Europe/Berlin')": lambda: pg.date_trunc("day", "z1", "Europe/Berlin"),
    "to_char(p1, 'DD.MM.YYYY HH24:MI')": lambda: pg.to_char("p1", "DD.MM.YYYY HH24:MI"),
}


def test_functions_for_definitions_in_python_mean_what_they_mean_in_postgres(
    captured: Site, spark: SparkSession, tmp_path: Path
) -> None:
    assert {name.partition("(")[0] for name in IN_PYTHON} == set(pg.__all__)
    expected = values_of_postgres(captured.dsn, list(IN_PYTHON))
    with captured.open() as store:
        found = Expressions(spark, store, tmp_path).values_of(
            {text: make() for text, make in IN_PYTHON.items()}
        )
    assert {each.expression: list(each.values) for each in expected} == found


def test_a_pattern_that_spark_would_read_otherwise_is_refused_in_python_too(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="longest in Postgres") as refused:
        pg.regexp_replace("t1", "a|ab", "")
    assert "alternatives" in (refused.value.hint or "")


def test_a_random_pattern_finds_what_it_finds_in_postgres(
    captured: Site, spark: SparkSession, scale: Scale, seed: int
) -> None:
    rng = random.Random(seed)
    drawn = [(pattern(rng), text(rng)) for _ in range(scale.pick(smoke=1000, full=50_000))]
    accepted = [(each, given, known) for each, given in drawn if (known := _read(each))]
    assert len(accepted) > 0.9 * len(drawn)
    tried = [(at, each, given) for at, (each, given, _) in enumerate(accepted)]
    read = [known for _, _, known in accepted]
    with psycopg.connect(captured.dsn) as connection:
        connection.execute("CREATE TEMP TABLE tried (n int, p text, t text)")
        with connection.cursor().copy("COPY tried FROM STDIN") as copy:
            for row in tried:
                copy.write_row(row)
        expected = connection.execute(
            r"SELECT t ~ p, regexp_substr(t, p), regexp_match(t, p), regexp_replace(t, p, '<\&>', 'g')"
            " FROM tried ORDER BY n"
        ).fetchall()
    rows = [(at, each.java, text, each.groups) for (at, _, text), each in zip(tried, read, strict=True)]
    found = (
        spark.createDataFrame(rows, "n int, p string, t string, groups int")
        .selectExpr(
            "n", "t RLIKE p AS matches", "if(t RLIKE p, regexp_extract(t, p, 0), NULL) AS first",
            "if(t RLIKE p, transform(sequence(if(groups = 0, 0, 1), groups), i -> regexp_extract(t, p, i)), NULL)"
            " AS parts",
            "regexp_replace(t, p, concat('<', '$0', '>')) AS replaced",
        )
        .orderBy("n")
        .collect()
    )  # fmt: skip
    for (_, written, given), known, here, there in zip(tried, read, found, expected, strict=True):
        compared = 4 if known.exact else 1
        assert tuple(here)[1 : 1 + compared] == there[:compared], (seed, written, given)
    assert 4 * sum(each.exact for each in read) > len(read), "of a part the match itself is compared"


def _read(written: str) -> Pattern | None:
    with suppress(NotInTable):
        return read_pattern(written)
    return None
