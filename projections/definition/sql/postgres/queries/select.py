"""One SELECT."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from tailrace.projections.definition.sql.postgres.contract import Query, TranslatesQueries
from tailrace.projections.definition.sql.postgres.expressions.expressions import Expressions
from tailrace.projections.definition.sql.postgres.names import result_name
from tailrace.projections.definition.sql.postgres.queries.clauses import (
    allow,
    direction,
    limits,
    ordering,
    output_name,
)
from tailrace.projections.definition.sql.postgres.queries.tables import Tables
from tailrace.projections.definition.sql.postgres.refusal import Refusals, Refused
from tailrace.projections.definition.sql.postgres.scope import Scope, folded
from tailrace.projections.definition.sql.postgres.source_map import unmarked
from tailrace.projections.definition.sql.postgres.types.values import Value, name_text

_CLAUSES = {
    "expressions", "distinct", "from_", "joins", "where", "group", "having", "order", "limit", "offset", "with_",
    "windows",
}  # fmt: skip
_Output = Sequence[tuple[str, Value]]
_FIRST = "`first of each`"
_SETS: dict[type[exp.Expr], str] = {exp.Rollup: "ROLLUP", exp.Cube: "CUBE", exp.GroupingSets: "GROUPING SETS"}


class Select:
    """Translates one SELECT; ``outer`` is what the query around it knows."""

    def __init__(self, queries: TranslatesQueries, node: exp.Select, outer: Scope | None) -> None:
        allow(node, _CLAUSES)
        self._node, self._scope = node, Scope(outer=outer)
        named = {each.name.lower(): each for each in node.args.get("windows") or []}
        self._expressions = Expressions(queries, self._scope, named)
        self._tables = Tables(queries, self._scope, self._expressions)

    def translated(self) -> Query:
        """Raises Refused."""
        node = self._node
        start = node.args.get("from_")
        tables = (
            f" FROM {self._tables.joined(start.this, node.args.get('joins') or [])}"
            if start is not None
            else ""
        )
        output: _Output = ()
        where = having = ""
        refusals = Refusals()
        with refusals.apart():
            output = self._output()
        with refusals.apart():
            where = self._condition("where")
        with refusals.apart():
            having = self._condition("having")
        refusals.end()
        if not output:
            raise Refused("a SELECT without columns is not translated", "select one", node)
        columns = tuple((name, value.type) for name, value in output)
        distinct = node.args.get("distinct")
        on = distinct.args.get("on") if distinct is not None else None
        items = [f"{value.sql} AS {name_text(name)}" for name, value in output]
        if on is not None:
            items.append(f"{self._number(on, output)} AS {_FIRST}")
        text = (
            f"SELECT {'DISTINCT ' if distinct is not None and on is None else ''}{', '.join(items)}{tables}"
        )
        text += where + self._group(output) + having
        if on is not None:
            names = ", ".join(name_text(name) for name, _ in output)
            return Query(f"SELECT {names} FROM ({text}) WHERE {_FIRST} = 1", columns)  # noqa: S608
        return Query(text + ordering(node, self._expressions, columns) + limits(node), columns)

    def _number(self, on: exp.Expr, output: _Output) -> str:
        """DISTINCT ON: the place of a row among those that are equal in these."""
        node = self._node
        if node.args.get("limit") is not None or node.args.get("offset") is not None:
            raise Refused("DISTINCT ON with LIMIT is not translated", "put it into a subquery of FROM", on)
        parts = [self._item(each, output, "DISTINCT ON") for each in on.expressions]
        order = node.args.get("order")
        ordered = (
            [self._item(each.this, output, "ORDER BY") for each in order.expressions]
            if order is not None
            else []
        )
        if not {unmarked(each) for each in ordered[: len(parts)]} <= {unmarked(each) for each in parts}:
            raise Refused("DISTINCT ON and ORDER BY begin with different columns", "begin with the same", on)
        keys = (
            [f"{text}{direction(each)}" for text, each in zip(ordered, order.expressions, strict=True)]
            if order
            else []
        )
        keys = keys or [f"{parts[0]} ASC NULLS LAST"]
        return f"row_number() OVER (PARTITION BY {', '.join(parts)} ORDER BY {', '.join(keys)})"

    def _item(self, node: exp.Expr, output: _Output, clause: str) -> str:
        """An expression of a clause that may name a column of the result, too."""
        name = output_name(node, tuple((each, value.type) for each, value in output), clause)
        if name is not None:
            return next(value.sql for each, value in output if each == name)
        return self._expressions.plain(self._expressions.value(node), node).sql

    def _condition(self, clause: str) -> str:
        given = self._node.args.get(clause)
        return f" {clause.upper()} {self._expressions.condition(given.this)}" if given is not None else ""

    def _output(self) -> list[tuple[str, Value]]:
        found = Refusals.of_each(self._columns, self._node.expressions)
        return [column for columns in found for column in columns]

    def _columns(self, node: exp.Expr) -> list[tuple[str, Value]]:
        """Those of an item; of ``*`` there are several."""
        inner = node.this if isinstance(node, exp.Column) else node
        if isinstance(inner, exp.Star):
            return self._star(node, inner)
        value = self._expressions.plain(self._expressions.value(node.unalias()), node)
        name = folded(node.args["alias"]) if isinstance(node, exp.Alias) else result_name(node)
        return [(name, value)]

    def _star(self, node: exp.Expr, star: exp.Star) -> list[tuple[str, Value]]:
        allow(star, set())
        if not isinstance(node, exp.Column):
            return list(self._scope.all_columns())
        table = folded(node.args["table"])
        for source in self._scope.sources:
            if source.name == table:
                named = [(name, source.column(name)) for name, _ in source.columns]
                return [(name, value) for name, value in named if value is not None]
        known = ", ".join(each.name for each in self._scope.sources)
        raise Refused(f"there is no table {table}", f"there are {known or 'none'}", node)

    def _group(self, output: _Output) -> str:
        group = self._node.args.get("group")
        if group is None:
            return ""
        allow(group, {"expressions"})
        return " GROUP BY " + ", ".join(self._group_item(each, output) for each in group.expressions)

    def _group_item(self, node: exp.Expr, output: _Output) -> str:
        """Columns of the tables come before those of the result."""
        if type(node) in _SETS:
            inner = ", ".join(self._group_item(each, output) for each in node.expressions)
            return f"{_SETS[type(node)]} ({inner})"
        if isinstance(node, exp.Tuple):
            return f"({', '.join(self._group_item(each, output) for each in node.expressions)})"
        if isinstance(node, exp.Paren):
            return f"({self._group_item(node.this, output)})"
        if isinstance(node, exp.Column) and not node.table:
            name = folded(node.this)
            if name in self._scope.merged or any(each.column(name) for each in self._scope.sources):
                return self._expressions.value(node).sql
        return self._item(node, output, "GROUP BY")
