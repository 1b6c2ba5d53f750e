"""The text of a query for the source: one SELECT, in which inputs became tables."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tailrace.eventstore.errors import UsageError
from tailrace.projections.definition.sql.source_text import SourceText


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (r"SELECT 'a\'; DROP TABLE x; --' AS v FROM kinds", "not one SELECT"),
        ("WITH gone AS (DELETE FROM kinds RETURNING *) SELECT * FROM gone", "DELETE"),
        ("SELECT 1 INTO made FROM kinds", "INTO"),
        ("SELECT id FROM kinds FOR UPDATE", "LOCK"),
        ("SELECT id FROM kinds; SELECT id FROM kinds", "not one SELECT"),
        ("SELECT id FROM other", "no input"),
        ("SELECT id FROM pg_catalog.kinds", "no input"),
        ("SELECT FROM WHERE", "or not at all"),
    ],
)
def test_only_one_select_over_the_inputs_is_run_in_the_source(text: str, part: str) -> None:
    with pytest.raises(UsageError, match="cannot be run in the source") as refused:
        SourceText(text, "projection 'p'").filled({"kinds": 'ONLY "shop"."kinds"'}, None)
    assert part in str(refused.value)


def test_names_of_inputs_become_tables_wherever_they_are_read() -> None:
    text = SourceText(
        "WITH mine AS (SELECT id FROM Kinds) SELECT k.id, '%' || 'kinds' FROM mine m -- kinds;\n"
        ' JOIN kinds k ON k.id = m.id WHERE EXISTS (SELECT 1 FROM "kinds" WHERE "kinds".id < 3);',
        "projection 'p'",
    )
    assert text.filled({"kinds": '"s"."t"'}, None) == (
        "WITH mine AS (SELECT id FROM \"s\".\"t\" AS Kinds) SELECT k.id, '%' || 'kinds' FROM mine m -- kinds;\n"
        ' JOIN "s"."t" k ON k.id = m.id WHERE EXISTS (SELECT 1 FROM "s"."t" AS "kinds" WHERE "kinds".id < 3)'
    )


def test_the_time_of_the_position_stands_for_now_and_nothing_else_does() -> None:
    text = SourceText(
        "SELECT ':now' AS a, x::date, now AS b FROM kinds WHERE at < :now -- :now", "projection 'p'"
    )
    moment = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert text.filled({"kinds": "t"}, moment) == (
        "SELECT ':now' AS a, x::date, now AS b FROM t AS kinds"
        " WHERE at < (TIMESTAMPTZ '2026-01-01T12:00:00+00:00') -- :now"
    )
    ended = SourceText("SELECT id FROM kinds;-- of each", "projection 'p'")
    assert ended.filled({"kinds": "t"}, None) == "SELECT id FROM t AS kinds-- of each"
    assert "(TIMESTAMPTZ '1970-01-01T00:00:00+00:00')" in text.filled({"kinds": "t"}, None)


@pytest.mark.parametrize(
    ("query", "reads"),
    [
        ("SELECT id FROM kinds", False),
        ("SELECT count(*) FROM kinds", False),
        ("SELECT k.* FROM kinds k", True),
        ("SELECT * FROM kinds", True),
        ('SELECT 1 FROM kinds WHERE "Secret" = 1', True),
        ("SELECT 1 FROM kinds JOIN kinds k USING (secret)", True),
        ("SELECT 1 FROM kinds NATURAL JOIN kinds k", True),
    ],
)
def test_a_query_may_read_a_column_that_it_names_or_takes_with_all(query: str, reads: bool) -> None:
    assert SourceText(query, "projection 'p'").names("secret") is reads
