"""From the text of a query to Spark's."""

from __future__ import annotations

from collections.abc import Mapping

import sqlglot
from sqlglot import exp

from tailrace.projections.definition.sql.postgres.grammar import PostgresText
from tailrace.projections.definition.sql.postgres.queries.queries import Queries, top_level
from tailrace.projections.definition.sql.postgres.refusal import Refused
from tailrace.projections.definition.sql.postgres.scope import Columns
from tailrace.projections.definition.sql.postgres.source_map import SourceMap
from tailrace.projections.definition.sql.statements import statements

TRANSLATION = "2"
"""Raise it when a query that was translated before becomes another text: it is part of fingerprints."""


def parse(text: str) -> exp.Expr:
    """The tree that ``translate`` takes. Raises what sqlglot raises; ``load`` has parsed the text before."""
    found = statements(text, PostgresText)
    return found[0] if len(found) == 1 else sqlglot.parse_one(text, dialect=PostgresText)


def translate(query: exp.Expr, inputs: Mapping[str, Columns], zone: str) -> SourceMap:
    """A query over inputs with these columns; in the result they are ``{i0}``, ``{i1}``, …. Raises Refused."""
    try:
        return SourceMap.of(top_level(Queries(inputs, zone).query(query)))
    except RecursionError:
        raise Refused("it is nested too deeply", "split it into several", None) from None
