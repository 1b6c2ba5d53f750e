"""A column of a key that is computed of an input's columns: the text of an expression, and what can be said of it
without Spark."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

_REMAINDER = re.compile(r"([a-z_][a-z0-9_]*) % ([1-9]\d{0,8})", re.A)


@dataclass(frozen=True, slots=True)
class Computed:
    """A column of the key that is computed of the columns of an input's row: ``Computed("to_date(placed_at)")``.

    The function has to compute the key by the same expression, or the proof does not find it.
    """

    expression: str
    """An expression over columns of this input. A constant is the key of one total."""
    dialect: Literal["spark", "postgres"] = "spark"
    """Whose SQL it is."""
    time_zone: str = "UTC"
    """The zone of its clocks, where it is Postgres'."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads, each once. Raises ValueError when it is no expression over columns."""
        return _columns_in(self.expression, self.dialect)

    @property
    def remainder(self) -> tuple[str, int] | None:
        """The column and the divisor of ``column % 64``, which needs no Spark to be computed; None for anything
        else."""
        found = _REMAINDER.fullmatch(self.expression)
        return (found[1], int(found[2])) if found else None

    @property
    def is_constant(self) -> bool:
        return not self.columns


@lru_cache(1024)
def _columns_in(text: str, dialect: str) -> tuple[str, ...]:
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        (parsed,) = sqlglot.parse_one(f"SELECT {text}", read=dialect).expressions
    except (SqlglotError, ValueError) as error:
        raise ValueError("it cannot be read as an expression") from error
    if isinstance(parsed, exp.Column | exp.Alias):
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
    fold = dialect == "postgres"
    names = (each.name.lower() if fold and not each.this.quoted else each.name for each in columns)
    return tuple(dict.fromkeys(names))
