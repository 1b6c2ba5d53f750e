"""A random expression means in a projection what it means in Postgres, or is refused before a row is read."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tailrace.embedded import PostgresServer
from tests.fixtures.databases import drop_database
from tests.fixtures.scale import Scale
from tests.projections.meaning.expression_answers import Expressions, smallest, values_of_postgres
from tests.projections.meaning.expression_rows import fill_rows
from tests.projections.meaning.expressions import Generator
from tests.projections.meaning.function_cases import calls, computed_rows
from tests.projections.meaning.syntax_cases import SYNTAX, X
from tests.support.capturing import Site, init_and_capture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH = 200


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
    rounds = scale.pick(smoke=1000, full=100_000) // BATCH
    counted: Counter[str] = Counter()
    different: dict[str, str] = {}
    with captured.open() as store:
        here = Expressions(spark, store, tmp_path)
        for at in range(rounds):
            generator = Generator(seed * rounds + at)
            chosen = list(dict.fromkeys(generator.expression() for _ in range(BATCH)))
            outcomes = here.outcomes(values_of_postgres(captured.dsn, chosen), probes=1)
            counted.update(outcomes.values())
            different |= {each: here.words[each] for each, what in outcomes.items() if what == "different"}
    print(f"seed {seed}: {dict(counted)}")
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
        outcomes = here.outcomes(expected, despite_warnings=True)
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
        outcomes = here.outcomes(expected, despite_warnings=True)
    different = {
        each: here.words[each] for each, what in outcomes.items() if what not in ("equal", "refused")
    }
    assert not different, smallest(different)
