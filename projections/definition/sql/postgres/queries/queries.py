"""SELECT, set operations, WITH and FROM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from tailrace.projections.definition.findings import did_you_mean
from tailrace.projections.definition.sql.postgres.contract import Query
from tailrace.projections.definition.sql.postgres.expressions.expressions import Expressions
from tailrace.projections.definition.sql.postgres.queries.clauses import allow, limits, ordering
from tailrace.projections.definition.sql.postgres.queries.select import Select
from tailrace.projections.definition.sql.postgres.queries.tables import renamed
from tailrace.projections.definition.sql.postgres.refusal import OTHER_DIALECT, Refusals, Refused
from tailrace.projections.definition.sql.postgres.scope import Columns, Scope, folded
from tailrace.projections.definition.sql.postgres.types.types import TEXT, UNKNOWN, PgType
from tailrace.projections.definition.sql.postgres.types.values import Value, common_type, name_text

_SET_OPERATION = {"this", "expression", "distinct", "order", "limit", "offset", "with_"}


@dataclass(slots=True)
class Queries:
    """Translates queries over ``inputs``: the columns of each by its name. In the result they are ``{i0}``, ``{i1}`` …
    ``zone`` is the declared time zone."""

    inputs: Mapping[str, Columns]
    zone: str
    _defined: dict[str, Columns] = field(default_factory=dict)

    def query(self, node: exp.Expr, outer: Scope | None = None) -> Query:
        """A SELECT, a set operation, VALUES, or one of these in parentheses. Raises Refused."""
        before = dict(self._defined)
        try:
            head = self._with(node.args.get("with_"))
            found = self._bare(node, outer)
        finally:
            self._defined = before
        return Query(head + found.sql, found.columns)

    def _bare(self, node: exp.Expr, outer: Scope | None) -> Query:
        match node:
            case exp.Subquery() if not node.args.get("alias"):
                allow(node, {"this", "with_", "order", "limit", "offset"})
                inner = self.query(node.this, outer)
                return Query(f"({inner.sql})" + self._tail(node, inner, outer), inner.columns)
            case exp.SetOperation():
                return self._set_operation(node, outer)
            case exp.Values():
                return self._values(node, outer)
            case exp.Select():
                return Select(self, node, outer).translated()
        raise Refused(f"{node.key.upper()} is not translated", "the body is one SELECT", node)

    def _with(self, node: exp.Expr | None) -> str:
        if not isinstance(node, exp.With):
            return ""
        if node.args.get("recursive"):
            raise Refused("WITH RECURSIVE is not translated", OTHER_DIALECT.removeprefix("or "), node)
        refusals, refused = Refusals(), set[str]()
        parts: list[str] = []
        for each in node.expressions:
            known = len(parts)
            if refused.isdisjoint(table.name.lower() for table in each.find_all(exp.Table)):
                with refusals.apart():
                    parts.append(self._defined_text(each))
            if len(parts) == known:
                refused.add(each.alias.lower())
        refusals.end()
        return f"WITH {', '.join(parts)} "

    def _defined_text(self, node: exp.Expr) -> str:
        """A common table expression, which is known from now on."""
        query, alias = self.query(node.this), node.args["alias"]
        name, columns = folded(alias.this), renamed(query.columns, alias)
        names = ", ".join(name_text(column) for column, _ in columns)
        self._defined[name] = columns
        return f"{name_text(name)} ({names}) AS ({query.sql})"

    def _set_operation(self, node: exp.SetOperation, outer: Scope | None) -> Query:
        allow(node, _SET_OPERATION)
        left, right = Refusals.of_each(lambda side: self.query(side, outer), (node.left, node.right))
        if len(left.columns) != len(right.columns):
            counts = f"{len(left.columns)} and {len(right.columns)}"
            raise Refused(f"both sides of {node.key.upper()} have {counts} columns", "select as many", node)
        columns = []
        for (name, one), (_, other) in zip(left.columns, right.columns, strict=True):
            kind = common_type([Value("", one), Value("", other)])
            if kind is None or not all(_becomes(each, kind) for each in (one, other)):
                raise Refused(
                    f"column {name} is {one} and {other} in {node.key.upper()}", "cast one of them", node
                )
            columns.append((name, kind))
        word = node.key.upper() + ("" if node.args.get("distinct") else " ALL")
        united = Query(f"({left.sql}) {word} ({right.sql})", tuple(columns))
        return Query(united.sql + self._tail(node, united, outer), united.columns)

    def _values(self, node: exp.Values, outer: Scope | None) -> Query:
        names = [f"column{at + 1}" for at in range(len(node.expressions[0].expressions))]
        expressions = Expressions(self, Scope(outer=outer))
        rows = [
            [expressions.plain(expressions.value(each), each) for each in row.expressions]
            for row in node.expressions
        ]
        if any(len(row) != len(names) for row in rows):
            raise Refused("the rows of VALUES have different numbers of columns", "", node)
        columns = [expressions.unify(column, node) for column in zip(*rows, strict=True)]
        texts = [", ".join(values[at].sql for values, _ in columns) for at in range(len(rows))]
        listed = ", ".join(f"({text})" for text in texts)
        named = ", ".join(name_text(name) for name in names)
        text = f"SELECT * FROM (VALUES {listed}) AS `values` ({named})"  # noqa: S608
        return Query(text, tuple(zip(names, (kind for _, kind in columns), strict=True)))

    def _tail(self, node: exp.Expr, query: Query, outer: Scope | None) -> str:
        """ORDER BY over a result's own columns, LIMIT and OFFSET."""
        scope = Scope(merged=dict(query.columns), outer=outer)
        return ordering(node, Expressions(self, scope), query.columns) + limits(node)

    def table(self, name: str, at: exp.Expr) -> tuple[str, Columns]:
        """A common table expression, or an input. Raises Refused."""
        if name in self._defined:
            return name_text(name), self._defined[name]
        known = {each.lower(): each for each in self.inputs}
        if name.lower() not in known:
            hint = did_you_mean(name, known) or f"its inputs are {', '.join(self.inputs)}"
            raise Refused(f"it reads {name}, which is no input", hint, at)
        place = list(self.inputs).index(known[name.lower()])
        return f"{{i{place}}}", self.inputs[known[name.lower()]]


def _becomes(type_: PgType, kind: PgType) -> bool:
    """Whether Spark makes one column of these, as Postgres does."""
    if type_ == UNKNOWN:
        return kind == TEXT
    return type_ == kind or (type_.is_number and kind.is_number and kind.name not in ("float4",))


def top_level(query: Query) -> str:
    """The query whose columns are a projection's: a constant without a type is a text."""
    if all(type_ != UNKNOWN for _, type_ in query.columns):
        return query.sql
    items = ", ".join(
        f"{as_text(name)} AS {name_text(name)}" if type_ == UNKNOWN else name_text(name)
        for name, type_ in query.columns
    )
    return f"SELECT {items} FROM ({query.sql})"  # noqa: S608


def as_text(name: str) -> str:
    return f"CAST({name_text(name)} AS STRING)"
