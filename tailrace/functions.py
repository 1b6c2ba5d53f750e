"""Functions of Postgres for definitions in Python, where Spark's of the same name mean something else.

Each takes a column and constants, and gives a column of the function's name. The meaning is that of queries in SQL:
both use one table. Letters are changed one by one, as in every locale of Postgres but C and ICU's.

    from tailrace import functions as pg

    people.select(pg.initcap("name").alias("name"), pg.left("phone", -2).alias("prefix"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.eventstore.errors import UsageError
from tailrace.projections.definition.sql.postgres.functions import TABLE
from tailrace.projections.definition.sql.postgres.functions.table import choose
from tailrace.projections.definition.sql.postgres.refusal import NotInTable
from tailrace.projections.definition.sql.postgres.types.types import (
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    PgType,
)
from tailrace.projections.definition.sql.postgres.types.values import Value, number, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = [
    "date_trunc",
    "initcap",
    "left",
    "lower",
    "regexp_like",
    "regexp_match",
    "regexp_replace",
    "regexp_substr",
    "right",
    "split_part",
    "substr",
    "to_char",
    "upper",
]


def upper(text: Column | str) -> Column:
    """Capitals, letter by letter: ``ß`` stays."""
    return _called("upper", text, TEXT)


def lower(text: Column | str) -> Column:
    """Small letters, letter by letter."""
    return _called("lower", text, TEXT)


def initcap(text: Column | str) -> Column:
    """A capital at the start of each word, the rest small. A word is letters and digits: ``O'Neil-Smith``."""
    return _called("initcap", text, TEXT)


def left(text: Column | str, count: int) -> Column:
    """The first characters; with a negative count all but the last."""
    return _called("left", text, TEXT, count)


def right(text: Column | str, count: int) -> Column:
    """The last characters; with a negative count all but the first."""
    return _called("right", text, TEXT, count)


def substr(text: Column | str, start: int, count: int | None = None) -> Column:
    """From a place that is counted from 1; a place before the text counts as well."""
    return _called("substr", text, TEXT, start, *(() if count is None else (count,)))


def split_part(text: Column | str, separator: str, number: int) -> Column:
    """A part, counted from 1, or from the end with a negative number; empty where there is none."""
    return _called("split_part", text, TEXT, separator, number)


def regexp_replace(text: Column | str, pattern: str, replacement: str, flags: str = "") -> Column:
    r"""The first match replaced, with the flag ``g`` all; ``i`` ignores case. ``\1`` is a group, ``\&`` the match.

    Raises UsageError for a pattern of which Spark finds another match than Postgres.
    """
    return _called("regexp_replace", text, TEXT, pattern, replacement, flags)


def regexp_like(text: Column | str, pattern: str, flags: str = "") -> Column:
    """Whether there is a match. Raises UsageError for a pattern that Spark reads otherwise."""
    return _called("regexp_like", text, TEXT, pattern, flags)


def regexp_substr(text: Column | str, pattern: str) -> Column:
    """The first match, or NULL. Raises UsageError as ``regexp_replace`` does."""
    return _called("regexp_substr", text, TEXT, pattern)


def regexp_match(text: Column | str, pattern: str, flags: str = "") -> Column:
    """The groups of the first match as an array, or NULL. Raises UsageError as ``regexp_replace`` does."""
    return _called("regexp_match", text, TEXT, pattern, flags)


def date_trunc(field: str, time: Column | str, zone: str | None = None) -> Column:
    """A timestamp cut to a field: ``day``, ``week``, ``month``, … With a zone it is an instant (``timestamptz``), cut
    on the clocks there; without one it has none. Raises UsageError for another field or an unknown zone."""
    if zone is None:
        return _called("date_trunc", time, TIMESTAMP, field, first=1)
    return _called("date_trunc", time, TIMESTAMPTZ, field, zone, first=1)


def to_char(time: Column | str, pattern: str) -> Column:
    """A timestamp without time zone, printed: ``YYYY-MM-DD HH24:MI``. Raises UsageError for other patterns."""
    return _called("to_char", time, TIMESTAMP, pattern)


_VALUE = "value"


def _called(name: str, column: Column | str, type_: PgType, *constants: str | int, first: int = 0) -> Column:
    """The function of the table, of the column and constants; ``first`` of these stand before it."""
    from pyspark.sql import functions as F  # noqa: N812

    arguments = [_constant(each) for each in constants]
    arguments.insert(first, Value(_VALUE, type_))
    try:
        chosen = choose(TABLE[name], arguments)
        assert chosen is not None
        text = chosen[0].result(chosen[1]).sql
    except NotInTable as error:
        raise UsageError(f"{error.what} has no counterpart in Spark", hint=error.hint) from error
    given = F.col(column) if isinstance(column, str) else column
    # A lambda, because a template names its argument several times, and a column has no name of its own.
    each = F.expr(f"{_VALUE} -> {_unescaped(text)}")
    return F.get(F.call_function("transform", F.array(given), each), F.lit(0)).alias(name)


def _constant(value: str | int) -> Value:
    if isinstance(value, str):
        return Value(quoted(value), UNKNOWN, value)
    found = number(str(abs(value)))
    return found if value >= 0 else Value(f"(- {found.sql})", found.type, str(value))


def _unescaped(text: str) -> str:
    """Without the doubled braces that templates of queries have."""
    return text.replace("{{", "{").replace("}}", "}")
