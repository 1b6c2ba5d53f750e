"""What the rooms of a translation need of each other: queries hold expressions, and these hold queries again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sqlglot import exp

from tailrace.projections.definition.sql.postgres.scope import Columns, Scope
from tailrace.projections.definition.sql.postgres.types.types import PgType
from tailrace.projections.definition.sql.postgres.types.values import Value


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

    def table(self, name: str, at: exp.Expr) -> tuple[str, Columns]:
        """The text for a table, and its columns. Raises Refused."""
        ...


class TranslatesExpressions(Protocol):
    """Of one SELECT. ``zone`` is the declared time zone."""

    zone: str

    def value(self, node: exp.Expr) -> Value:
        """An expression. Raises Refused."""
        ...

    def plain(self, value: Value, node: exp.Expr) -> Value:
        """A value that is something by itself. Raises Refused."""
        ...

    def query(self, node: exp.Expr) -> Query:
        """A subquery. Raises Refused."""
        ...

    def boolean(self, value: Value, node: exp.Expr) -> str:
        """What is true, false or NULL. Raises Refused."""
        ...

    def unify(self, values: Sequence[Value], node: exp.Expr) -> tuple[list[Value], PgType]:
        """The values as their common type. Raises Refused."""
        ...
