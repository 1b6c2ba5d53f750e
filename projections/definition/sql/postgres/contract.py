"""What the rooms of a translation need of each other: queries hold expressions, and these hold queries again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sqlglot import exp

from tailrace.projections.definition.sql.postgres.scope import Columns, Scope
from tailrace.projections.definition.sql.postgres.values import Value


@dataclass(frozen=True, slots=True)
class Query:
    """A translated query, and its columns."""

    sql: str
    columns: Columns


class TranslatesQueries(Protocol):
    """``zone`` is the declared time zone."""

    zone: str

    def query(self, node: exp.Expr, outer: Scope | None = None) -> Query:
        """A query. Raises Refused."""
        ...


class TranslatesExpressions(Protocol):
    """Of one SELECT."""

    def value(self, node: exp.Expr) -> Value:
        """An expression. Raises Refused."""
        ...

    def plain(self, value: Value, node: exp.Expr) -> Value:
        """A value that is something by itself. Raises Refused."""
        ...
