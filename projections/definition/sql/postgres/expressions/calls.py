"""Calls of functions, aggregates and window functions, with DISTINCT, FILTER, ORDER BY and OVER."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlglot import exp

from tailrace.projections.definition.findings import did_you_mean
from tailrace.projections.definition.sql.postgres.contract import TranslatesExpressions
from tailrace.projections.definition.sql.postgres.expressions import operators, ordered_aggregates, syntax
from tailrace.projections.definition.sql.postgres.expressions.windows import WindowText
from tailrace.projections.definition.sql.postgres.functions import TABLE
from tailrace.projections.definition.sql.postgres.functions.table import Row, choose
from tailrace.projections.definition.sql.postgres.names import words_of
from tailrace.projections.definition.sql.postgres.refusal import NotInTable
from tailrace.projections.definition.sql.postgres.scope import folded
from tailrace.projections.definition.sql.postgres.types.types import INT8, UNKNOWN, VOID
from tailrace.projections.definition.sql.postgres.types.values import Value

_OF_ONE_TYPE = ("coalesce", "greatest", "least", "nullif")
_BEGIN = re.compile(r"\w+\(")
_COUNT = Row("count", (), INT8, "count(*)", "aggregate")


@dataclass(frozen=True, slots=True)
class _Call:
    """One call and what stands around it."""

    name: str
    node: exp.Anonymous
    where: exp.Expr | None
    window: exp.Window | None

    @property
    def is_plain(self) -> bool:
        return self.where is None and self.window is None


class Calls:
    """Translates those of one SELECT."""

    def __init__(self, expressions: TranslatesExpressions, windows: WindowText) -> None:
        self._expressions, self._windows = expressions, windows

    def value(self, node: exp.Expr, where: exp.Expr | None, window: exp.Window | None) -> Value:
        """A function with the conditions of FILTER and the window of OVER. Raises Refused and NotInTable."""
        if not isinstance(node, exp.Anonymous):
            raise NotInTable(words_of(node), "")
        name = folded(node.this) if isinstance(node.this, exp.Identifier) else str(node.this).lower()
        call = _Call(name, node, where, window)
        if name in _OF_ONE_TYPE and call.is_plain:
            return self._of_one_type(call)
        if name in ordered_aggregates.NAMES and window is None:
            return self._ordered_aggregate(call)
        return self._of_table(call)

    def _of_table(self, call: _Call) -> Value:
        name, given, distinct = call.name, list(call.node.expressions), False
        if len(given) == 1 and isinstance(given[0], exp.Distinct) and not given[0].args.get("on"):
            given, distinct = list(given[0].expressions), True
        if name == "count" and len(given) == 1 and isinstance(given[0], exp.Star) and not distinct:
            return self._with_clauses(_COUNT, Value("count(*)", INT8), call, distinct=False)
        if name not in TABLE:
            raise NotInTable(f"the function {name}()", did_you_mean(name, TABLE))
        if name == "count" and distinct and len(given) == 1 and isinstance(given[0], exp.Tuple):
            arguments = [syntax.row(self._expressions, given[0])]
        else:
            arguments = self._plain(given)
        chosen = choose(TABLE[name], arguments)
        if chosen is None and any(each.type == VOID for each in arguments):
            return Value(f"{name}({', '.join(each.sql for each in arguments)})", VOID)
        if chosen is None:
            types = ", ".join(str(each.type) for each in arguments)
            takes = "; ".join(f"{name}({', '.join(row.takes)})" for row in TABLE[name])
            raise NotInTable(f"{name}({types})", f"there is {takes}: cast its arguments")
        row, fitting = chosen
        if row.kind == "scalar" and (distinct or not call.is_plain):
            raise NotInTable(f"DISTINCT, FILTER or OVER of {name}(), which is no aggregate,", "leave it out")
        if row.kind == "window" and call.window is None:
            raise NotInTable(f"{name}() without OVER", "say over which rows: OVER (ORDER BY …)")
        return self._with_clauses(row, row.result(fitting, self._expressions.zone), call, distinct=distinct)

    def _plain(self, given: list[exp.Expr]) -> list[Value]:
        return [self._expressions.plain(self._expressions.value(each), each) for each in given]

    def _with_clauses(self, row: Row, value: Value, call: _Call, *, distinct: bool) -> Value:
        text = value.sql
        if distinct:
            begin = _BEGIN.match(text)
            assert begin is not None, text
            text = f"{begin[0]}DISTINCT {text[begin.end() :]}"
        if call.where is not None:
            text += f" FILTER (WHERE {self._condition(call)})"
        if call.window is not None:
            text += f" OVER ({self._windows.text(call.window)})"
        return Value(row.around.replace("{0}", text), value.type)

    def _condition(self, call: _Call) -> str:
        where = call.where
        return (
            ""
            if where is None
            else self._expressions.boolean(self._expressions.value(where.this), where.this)
        )

    def _ordered_aggregate(self, call: _Call) -> Value:
        given, keys, distinct = list(call.node.expressions), [], False
        if given and isinstance(given[-1], exp.Order):
            order = given.pop()
            given.append(order.this)
            keys = [self._key(each) for each in order.expressions]
        if given and isinstance(given[0], exp.Distinct):
            given, distinct = [*given[0].expressions, *given[1:]], True
        return ordered_aggregates.ordered_aggregate(
            call.name, self._plain(given), keys, distinct=distinct, where=self._condition(call)
        )

    def _key(self, node: exp.Ordered) -> ordered_aggregates.Key:
        value = self._expressions.plain(self._expressions.value(node.this), node)
        return ordered_aggregates.Key(value, bool(node.args.get("desc")), bool(node.args.get("nulls_first")))

    def _of_one_type(self, call: _Call) -> Value:
        name, values = call.name, self._plain(list(call.node.expressions))
        if name == "nullif":
            one, other = operators.comparable("=", values, self._expressions.zone)
            first = values[0] if values[0].type != UNKNOWN else one
            return Value(f"(CASE WHEN {one.sql} = {other.sql} THEN NULL ELSE {first.sql} END)", first.type)
        found, kind = self._expressions.unify(values, call.node)
        if name != "coalesce" and kind.element is not None:
            raise NotInTable(f"{name}() of arrays", "")
        if len(found) == 1:
            return found[0]
        return Value(f"{name}({', '.join(each.sql for each in found)})", kind)
