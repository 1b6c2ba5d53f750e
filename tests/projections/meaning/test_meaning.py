"""A query means in a projection what it means in Postgres, or is refused before a row is read."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.scale import Scale
from tests.fixtures.spark import interpreted
from tests.projections.meaning.cases import Case, cases
from tests.projections.meaning.oracle import Answer, Projected, answers_of_postgres, fill_table
from tests.projections.meaning.random_queries import COLUMNS, queries
from tests.support.capturing import Site, init_and_capture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


AT_ONCE = 25  # random queries
_NUMBER = re.compile(r"-?\d+\.\d+|-?\d+")


@pytest.fixture
def captured(tmp_path: Path, database: str) -> Iterator[Site]:
    site = Site.at(tmp_path, database)
    fill_table(database)
    with init_and_capture(site):
        yield site


def test_a_query_means_what_it_means_in_postgres_or_is_refused(
    captured: Site, spark: SparkSession, tmp_path: Path, scale: Scale
) -> None:
    chosen = list(cases(all_forms=scale.pick(smoke=False, full=True)))
    expected = answers_of_postgres(captured.dsn, chosen)
    with captured.open() as store:
        found = Projected(spark, store, tmp_path).answers(chosen)
    outcomes = {case.name: outcome(expected[case.name], found[case.name]) for case in chosen}
    print(Counter(outcomes.values()))
    wrong = [name for name, each in outcomes.items() if each == "different"]
    assert {name: words(name, expected, found) for name in wrong} == {}


def test_a_random_query_means_what_it_means_in_postgres_or_is_refused(
    captured: Site, spark: SparkSession, tmp_path: Path, scale: Scale
) -> None:
    seed = scale.pick(smoke=3, full=random.randrange(10**9))
    rounds = scale.pick(smoke=1, full=80)
    used = tuple(COLUMNS)
    counted: Counter[str] = Counter()
    different: dict[str, str] = {}
    with captured.open() as store:
        here = Projected(spark, store, tmp_path)
        for at in range(rounds):
            drawn = [Case(text, used, text, text) for text in queries(seed + at, AT_ONCE)]
            expected = answers_of_postgres(captured.dsn, drawn)
            chosen = [case for case in drawn if expected[case.name].rows is not None]
            counted["of Postgres"] += len(chosen)
            with interpreted(spark):
                found = here.answers(chosen)
            outcomes = {case.name: outcome(expected[case.name], found[case.name]) for case in chosen}
            counted.update(outcomes.values())
            different |= {
                name: words(name, expected, found) for name, each in outcomes.items() if each == "different"
            }
    print(f"seed {seed}: {dict(counted)}")
    assert different == {}, f"seed {seed}"
    assert counted["of Postgres"] > 0.8 * rounds * AT_ONCE, "it takes most of what is drawn"
    assert counted["equal"] > counted["refused"], "most of what is tried can be computed"


def outcome(expected: Answer, found: Answer) -> str:
    """``different``: Postgres gives other rows or refuses, and nothing was said."""
    if found.rows is None:
        return "refused"
    if found.warnings:
        return "warned"
    return "equal" if _values(found) == _values(expected) else "different"


def _values(answer: Answer) -> list[tuple[str | Decimal | None, ...]] | None:
    """Numbers by their value: 0 is 0.0."""
    if answer.rows is None:
        return None
    return [
        (number, Decimal(text) if text and _NUMBER.fullmatch(text) else text) for number, text in answer.rows
    ]


def words(name: str, expected: Mapping[str, Answer], found: Mapping[str, Answer]) -> str:
    postgres = expected[name].rows if expected[name].rows is not None else expected[name].words
    return f"Postgres: {postgres}; here: {found[name].rows}"
