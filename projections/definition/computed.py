"""A column of a key that is computed of an input's columns: the text of an expression in Spark's SQL, and what can be
said of it without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

_DIALECT = "spark"


@dataclass(frozen=True, slots=True)
class Computed:
    """A column of the key that is computed of the columns of an input's row: ``Computed("to_date(placed_at)")``.

    The function has to compute the key by the same expression, or the proof does not find it.
    """

    expression: str
    """An expression in Spark's SQL over columns of this input. A constant is the key of one total."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads, each once. Raises ValueError when it is no expression over columns."""
        return _columns_in(self.expression)

    @property
    def is_constant(self) -> bool:
        return not self.columns


@lru_cache(1024)
def _columns_in(text: str) -> tuple[str, ...]:
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        parsed = sqlglot.parse_one(text, read=_DIALECT)
    except SqlglotError as error:
        raise ValueError("it cannot be read as an expression") from error
    if isinstance(parsed, exp.Column | exp.Identifier):
        raise ValueError("it is a column as it is: name the column itself")
    for kind, words in (
        (exp.Query, "it reads a query"),
        (exp.AggFunc, "it is an aggregate, of more than one row"),
        (exp.Window, "it is a window, of more than one row"),
        (exp.Placeholder, "it has a parameter"),
        (exp.Star, "it has a *"),
    ):
        if parsed.find(kind):
            raise ValueError(words)
    columns = list(parsed.find_all(exp.Column))
    if any(column.table for column in columns):
        raise ValueError("its columns have a table before them: they are those of its own input")
    return tuple(dict.fromkeys(column.name for column in columns))
