"""Values of a query that are computed of one row's columns: which may be a part of a key, their text, and that text in
Spark's SQL. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from tailrace.projections.definition.computed import Computed
from tailrace.projections.definition.model import KeyColumn
from tailrace.projections.definition.sql.postgres.expressions.expressions import Expressions
from tailrace.projections.definition.sql.postgres.functions import TABLE
from tailrace.projections.definition.sql.postgres.grammar import PostgresText
from tailrace.projections.definition.sql.postgres.queries.queries import Queries
from tailrace.projections.definition.sql.postgres.scope import Columns, Scope, Source
from tailrace.projections.definition.sql.postgres.source_map import unmarked

_OF_MORE = (exp.AggFunc, exp.Placeholder, exp.Query, exp.Star, exp.UDTF, exp.Window)
"""What is of more than one row, or of none."""
_PLAIN = frozenset({
    exp.DataType.Type.SMALLINT, exp.DataType.Type.INT, exp.DataType.Type.BIGINT, exp.DataType.Type.DECIMAL,
})  # fmt: skip
_LOWER = re.compile(r"[a-z_][a-z0-9_]*", re.A)


def is_plain_cast(cast: exp.Cast) -> bool:
    """Does a cast most likely leave a value as it is? To a wider integer it does; to a date or a text it does not."""
    return isinstance(cast.to, exp.DataType) and cast.to.this in _PLAIN


def coalesced(expression: exp.Expr) -> list[exp.Expr]:
    """The arguments of coalesce; none for anything else."""
    if isinstance(expression, exp.Coalesce):
        return [expression.this, *expression.expressions]
    is_call = isinstance(expression, exp.Anonymous) and expression.name.lower() == "coalesce"
    return list(expression.expressions) if is_call else []


def computed_of(expression: exp.Expr, held: Sequence[KeyColumn], zone: str | None) -> Computed | None:
    """An expression in which the columns, in order, are those of an input, or are themselves computed of them; None for
    one that is of more than one row, or of which nobody knows that. ``zone`` is that of a query in Postgres' SQL, None
    for one in Spark's."""
    if expression.find(*_OF_MORE) or not all(map(_is_of_one_row, expression.find_all(exp.Anonymous))):
        return None
    made = expression.copy()
    for column, each in zip(list(made.find_all(exp.Column)), held, strict=True):
        column.replace(_part(each))
    if zone is None:
        return Computed(made.sql(dialect="spark"))
    text = made.sql(dialect=PostgresText)
    try:
        same = _parsed(text, PostgresText) == made
    except SqlglotError:  # sqlglot writes some operators as it does not read them
        same = False
    return Computed(text, "postgres", zone) if same else None


def _is_of_one_row(call: exp.Anonymous) -> bool:
    """Only the tree of a query in Postgres' SQL has its functions under their names, and nothing but these."""
    return all(row.kind == "scalar" for row in TABLE.get(call.name.lower(), ()))


def _part(held: KeyColumn) -> exp.Expr:
    if isinstance(held, Computed):
        return exp.paren(_parsed(held.expression, PostgresText if held.dialect == "postgres" else "spark"))
    return exp.column(exp.to_identifier(held, quoted=not _LOWER.fullmatch(held)))


def _parsed(text: str, dialect: Any) -> exp.Expr:
    """An expression; by itself some begin like a statement."""
    found: exp.Expr = sqlglot.parse_one(f"SELECT {text}", dialect=dialect).expressions[0]
    return found


def in_spark(computed: Computed, name: str, columns: Columns) -> str:
    """The expression in Spark's SQL, over the columns of an input that has this ``name`` there. Raises Refused."""
    if computed.dialect == "spark":
        return computed.expression
    scope = Scope([Source(name, columns)])
    value = Expressions(Queries({}, computed.time_zone), scope).value(
        _parsed(computed.expression, PostgresText)
    )
    return unmarked(value.sql)
