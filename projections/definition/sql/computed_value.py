"""Values of a query that are computed of one row's columns: which may be a part of a key, and their text. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import sqlglot
from sqlglot import exp

from tailrace.projections.definition.computed import Computed
from tailrace.projections.definition.model import KeyColumn

_OF_MORE = (exp.AggFunc, exp.Placeholder, exp.Query, exp.Star, exp.UDTF, exp.Window)
"""What is of more than one row, or of none."""
_PLAIN = frozenset({
    exp.DataType.Type.SMALLINT, exp.DataType.Type.INT, exp.DataType.Type.BIGINT, exp.DataType.Type.DECIMAL,
})  # fmt: skip
_DIALECT = "spark"


def is_plain_cast(cast: exp.Cast) -> bool:
    """Does a cast most likely leave a value as it is? To a wider integer it does; to a date or a text it does not."""
    return isinstance(cast.to, exp.DataType) and cast.to.this in _PLAIN


def computed_text(expression: exp.Expr, held: Sequence[KeyColumn]) -> str | None:
    """The text of an expression in which its columns, in order, are those of an input, or are themselves computed of
    them; None for one that is of more than one row."""
    if expression.find(*_OF_MORE):
        return None
    made = expression.copy()
    for column, each in zip(list(made.find_all(exp.Column)), held, strict=True):
        column.replace(_part(each))
    return made.sql(dialect=_DIALECT)


def _part(held: KeyColumn) -> exp.Expr:
    if isinstance(held, Computed):
        return exp.paren(sqlglot.parse_one(held.expression, read=_DIALECT))
    return exp.column(exp.to_identifier(held))
