"""Expressions: a method for each kind of node that has a translation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from sqlglot import exp

from tailrace.projections.definition.sql.postgres.contract import Query, TranslatesQueries
from tailrace.projections.definition.sql.postgres.expressions import arrays, operators, syntax
from tailrace.projections.definition.sql.postgres.expressions.bits import bits, inverted
from tailrace.projections.definition.sql.postgres.expressions.calls import Calls
from tailrace.projections.definition.sql.postgres.expressions.json import json_value
from tailrace.projections.definition.sql.postgres.expressions.windows import WindowText
from tailrace.projections.definition.sql.postgres.expressions.word_calls import WITH_WORDS, plain_call
from tailrace.projections.definition.sql.postgres.functions.extract import extract
from tailrace.projections.definition.sql.postgres.functions.patterns import like_pattern
from tailrace.projections.definition.sql.postgres.functions.regexps import matches
from tailrace.projections.definition.sql.postgres.names import instead_of, words_of
from tailrace.projections.definition.sql.postgres.refusal import (
    OTHER_DIALECT,
    NotInTable,
    Refusals,
    Refused,
    first_character,
)
from tailrace.projections.definition.sql.postgres.scope import Scope, fields_of, folded
from tailrace.projections.definition.sql.postgres.source_map import marked
from tailrace.projections.definition.sql.postgres.types.casts import cast, named_type
from tailrace.projections.definition.sql.postgres.types.intervals import interval
from tailrace.projections.definition.sql.postgres.types.types import (
    BOOL,
    FLOAT4,
    TEXT,
    TIMESTAMPTZ,
    UNKNOWN,
    VOID,
    PgType,
)
from tailrace.projections.definition.sql.postgres.types.values import (
    NULL,
    Value,
    common_type,
    implicit,
    number,
    of_column,
    quoted,
)

_ARITHMETIC = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%", exp.Pow: "^"}
_BITS = {
    exp.BitwiseAnd: "&", exp.BitwiseOr: "|", exp.BitwiseXor: "#", exp.BitwiseLeftShift: "<<",
    exp.BitwiseRightShift: ">>",
}  # fmt: skip
_COMPARISONS = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=", exp.NullSafeEQ: "<=>",
}  # fmt: skip


class Expressions:
    """Translates the expressions of one SELECT, whose names ``scope`` knows."""

    def __init__(
        self, queries: TranslatesQueries, scope: Scope, windows: Mapping[str, exp.Window] | None = None
    ) -> None:
        self.queries, self.scope, self.zone = queries, scope, queries.zone
        self.windows = WindowText(self, windows or {})
        self._calls = Calls(self, self.windows)

    def value(self, node: exp.Expr) -> Value:
        """An expression. Raises Refused."""
        way = _WAYS.get(type(node))
        if way is None:
            self.refuse(f"{words_of(node)} is not translated", instead_of(node), node)
        try:
            found = way(self, node)
        except NotInTable as error:
            what = error.what if error.what.startswith("there ") else f"{error.what} is not translated"
            self.refuse(what, error.hint, node)
        if found.interval is not None or isinstance(node, exp.Literal | exp.Paren):
            return found
        return Value(marked(found.sql, first_character(node)), found.type, found.constant)

    def refuse(self, what: str, hint: str, node: exp.Expr) -> NoReturn:
        raise Refused(what, hint or OTHER_DIALECT.removeprefix("or "), node)

    def condition(self, node: exp.Expr) -> str:
        """What is true, false or NULL: of WHERE, ON, HAVING, WHEN and FILTER."""
        if isinstance(node, exp.In) and node.args.get("query") is not None:
            return self._in_rows(node)
        if isinstance(node, exp.Not) and isinstance(node.this.unnest(), exp.In):
            return f"(NOT {self.condition(node.this.unnest())})"
        if isinstance(node, exp.Paren):
            return self.condition(node.this)
        if isinstance(node, exp.And | exp.Or):
            word = "AND" if isinstance(node, exp.And) else "OR"
            return "(" + f" {word} ".join(Refusals.of_each(self.condition, (node.left, node.right))) + ")"
        return self.boolean(self.value(node), node)

    def boolean(self, value: Value, node: exp.Expr) -> str:
        found = implicit(value, BOOL)
        if found is None:
            self.refuse(f"{value.type} where true or false is expected", "compare it with something", node)
        return found.sql

    def unify(self, values: Sequence[Value], node: exp.Expr) -> tuple[list[Value], PgType]:
        """The values as their common type."""
        kind = common_type(values)
        if kind is None:
            words = ", ".join(dict.fromkeys(str(each.type) for each in values))
            self.refuse(f"these have no common type: {words}", "cast them", node)
        return [operators.as_type(each, kind, self.zone) for each in values], kind

    def plain(self, value: Value, node: exp.Expr) -> Value:
        """A value that is something by itself; a constant interval is not."""
        if value.interval is not None:
            self.refuse("an interval by itself is not translated", "add it to a time", node)
        return value

    def query(self, node: exp.Expr) -> Query:
        """A subquery, without the parentheses that stand around it anyway: in two pairs it would be one value."""
        bare = isinstance(node, exp.Subquery) and [name for name, given in node.args.items() if given] == [
            "this"
        ]
        return self.queries.query(node.this if bare else node, self.scope)

    # one method for each kind of node

    def column(self, node: exp.Column) -> Value:
        return self.scope.column(node)

    def dot(self, node: exp.Dot) -> Value:
        inner = self.value(node.this)
        found = fields_of(inner, [folded(node.expression)], node) if inner.type.fields else None
        if found is None:
            self.refuse(f"there is no field {node.expression.name}", "", node)
        return found

    def literal(self, node: exp.Literal) -> Value:
        return Value(quoted(node.name), UNKNOWN, node.name) if node.is_string else number(node.name)

    def text_literal(self, node: exp.Expr) -> Value:
        return Value(quoted(node.name), UNKNOWN, node.name)

    def null(self, _: exp.Expr) -> Value:
        return NULL

    def truth(self, node: exp.Boolean) -> Value:
        return Value("TRUE" if node.this else "FALSE", BOOL)

    def paren(self, node: exp.Paren) -> Value:
        return self.value(node.this)

    def placeholder(self, node: exp.Placeholder) -> Value:
        if node.name != "now":
            self.refuse(
                f"there is no parameter :{node.name}", "the only one is :now, the position's time", node
            )
        return Value(":now", TIMESTAMPTZ)

    def arithmetic(self, node: exp.Binary) -> Value:
        return operators.arithmetic(
            _ARITHMETIC[type(node)], self.value(node.left), self.value(node.right), self.zone
        )

    def bits(self, node: exp.Binary) -> Value:
        return bits(_BITS[type(node)], self.value(node.left), self.value(node.right))

    def inverted(self, node: exp.BitwiseNot) -> Value:
        return inverted(self.value(node.this))

    def comparison(self, node: exp.Binary) -> Value:
        if isinstance(node.right, exp.Any | exp.All | exp.Anonymous) and syntax.quantified(node.right):
            return syntax.with_any(self, _COMPARISONS[type(node)], node)
        if isinstance(node.left, exp.Tuple) or isinstance(node.right, exp.Tuple):
            return syntax.rows(self, _COMPARISONS[type(node)], node)
        return operators.comparison(
            _COMPARISONS[type(node)], self.value(node.left), self.value(node.right), self.zone
        )

    def distinct_from(self, node: exp.Binary) -> Value:
        same = operators.comparison("<=>", self.value(node.left), self.value(node.right), self.zone)
        return Value(f"(NOT {same.sql})", BOOL)

    def negative(self, node: exp.Neg) -> Value:
        inner = self.value(node.this)
        if inner.interval is not None:
            return Value.of_interval(-inner.interval)
        if not inner.type.is_number and inner.type != VOID:
            raise NotInTable(f"- {inner.type}", operators.CAST_IT)
        constant = inner.constant and f"-{inner.constant}".removeprefix("--")
        return Value(f"(- {inner.sql})", inner.type, constant)

    def connective(self, node: exp.Connector) -> Value:
        word = "AND" if isinstance(node, exp.And) else "OR"
        parts = Refusals.of_each(lambda each: self.boolean(self.value(each), each), (node.left, node.right))
        return Value(f"({parts[0]} {word} {parts[1]})", BOOL)

    def negation(self, node: exp.Not) -> Value:
        return Value(f"(NOT {self.boolean(self.value(node.this), node.this)})", BOOL)

    def is_(self, node: exp.Is) -> Value:
        inner, word = self.value(node.this), "IS NOT" if node.args.get("negate") else "IS"
        if isinstance(node.expression, exp.Boolean):
            return Value(
                f"({self.boolean(inner, node)} {word} {'TRUE' if node.expression.this else 'FALSE'})", BOOL
            )
        if not isinstance(node.expression, exp.Null) or inner.type.name == "record":
            self.refuse(f"{words_of(node)} is not translated", "", node)
        return Value(f"({inner.sql} {word} NULL)", BOOL)

    def between(self, node: exp.Between) -> Value:
        if node.args.get("symmetric"):
            self.refuse("BETWEEN SYMMETRIC is not translated", "write the smaller bound first", node)
        parts = [self.value(node.args[name]) for name in ("this", "low", "high")]
        one, low, high = operators.comparable("<=", parts, self.zone)
        return _negated(node, f"({one.sql} BETWEEN {low.sql} AND {high.sql})")

    def in_(self, node: exp.In) -> Value:
        if node.args.get("query") is not None:
            return _negated(node, syntax.in_query(self, node).sql)
        if isinstance(node.this, exp.Tuple) and node.expressions:
            return _negated(node, syntax.in_rows(self, node).sql)
        if not node.expressions:
            self.refuse(f"{words_of(node)} is not translated", "", node)
        values = [self.value(each) for each in (node.this, *node.expressions)]
        if any(each.type == FLOAT4 for each in values) and len({each.type for each in values}) > 1:
            raise NotInTable("IN of real and other numbers", "cast them to one type")
        one, *others = operators.comparable("=", values, self.zone)
        return _negated(node, f"({one.sql} IN ({', '.join(each.sql for each in others)}))")

    def _in_rows(self, node: exp.In) -> str:
        if isinstance(node.this, exp.Tuple):
            return syntax.rows_in_query(self, node)
        query = self.query(node.args["query"])
        if len(query.columns) != 1:
            self.refuse("IN with several columns is not translated", "write EXISTS", node)
        left, right = self.value(node.this), of_column("", query.columns[0][1])
        kind = common_type([left, right])
        if kind is None or (kind.name != right.type.name and not kind.is_number):
            self.refuse(f"{left.type} IN a SELECT of {right.type}", "cast one of them", node)
        one = operators.as_type(left, kind, self.zone)
        text = f"({one.sql} IN ({query.sql}))"
        return f"(NOT {text})" if node.args.get("negate") else text

    def like(self, node: exp.Expr) -> Value:
        escape = "\\"
        inner = node
        if isinstance(node, exp.Escape):
            inner = node.this
            if not node.expression.is_string or len(node.expression.name) != 1:
                self.refuse("this ESCAPE is not translated", "it is one character", node)
            escape = node.expression.name
        if not isinstance(inner, exp.Like | exp.ILike):
            self.refuse(f"{words_of(node)} is not translated", "", node)
        if isinstance(inner.expression, exp.Any | exp.All):
            self.refuse("LIKE ANY is not translated", "write it with OR", node)
        one, pattern = (implicit(self.value(each), TEXT) for each in (inner.this, inner.expression))
        if one is None or pattern is None:
            self.refuse("LIKE of what is no text", "cast it to text", node)
        word = "LIKE" if isinstance(inner, exp.Like) else "ILIKE"
        text = like_pattern(pattern.sql, pattern.constant, escape)
        said = "" if escape == "\\" else f" ESCAPE {quoted(escape)}"
        return _negated(inner, f"({one.sql} {word} {text}{said})")

    def matches(self, node: exp.Binary) -> Value:
        if isinstance(node.expression, exp.DPipe | exp.Operator):
            raise NotInTable("~ beside another operator", "put what stands behind it into parentheses")
        one, pattern = (implicit(self.value(each), TEXT) for each in (node.this, node.expression))
        if one is None or pattern is None:
            self.refuse("~ of what is no text", "cast it to text", node)
        return Value(matches(one, pattern, ignores_case=isinstance(node, exp.RegexpILike)), BOOL)

    def joined_text(self, node: exp.DPipe) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        return syntax.joined(self, left, right) or operators.joined_text(left, right, self.zone)

    def case(self, node: exp.Case) -> Value:
        ifs = node.args["ifs"]
        subject = node.args.get("this")
        if subject is not None:
            whens = [self.value(each.this) for each in ifs]
            first, *others = operators.comparable("=", [self.value(subject), *whens], self.zone)
            conditions, head = [each.sql for each in others], f"CASE {first.sql}"
        else:
            conditions, head = [self.boolean(self.value(each.this), each.this) for each in ifs], "CASE"
        default = node.args.get("default")
        thens = [self.plain(self.value(each.args["true"]), node) for each in ifs]
        thens.append(self.plain(self.value(default), node) if default is not None else NULL)
        values, kind = self.unify(thens, node)
        pairs = " ".join(f"WHEN {one} THEN {then.sql}" for one, then in zip(conditions, values, strict=False))
        return Value(f"({head} {pairs} ELSE {values[-1].sql} END)", kind)

    def cast(self, node: exp.Cast) -> Value:
        if node.to.this == exp.DType.INTERVAL and isinstance(node.this, exp.Literal) and node.this.is_string:
            return Value.of_interval(interval(node.this.name))
        type_, length = named_type(node.to)
        if type_.element is not None and isinstance(node.this, exp.Literal) and node.this.is_string:
            return arrays.array_literal(node.this.name, type_)
        if type_.element is not None and isinstance(node.this, exp.Array) and not node.this.expressions:
            return arrays.array_literal("{}", type_)
        return cast(self.plain(self.value(node.this), node), type_, length, self.zone)

    def interval(self, node: exp.Interval) -> Value:
        unit = node.args.get("unit")
        if not isinstance(node.this, exp.Literal) or isinstance(unit, exp.IntervalSpan):
            raise NotInTable(
                "this interval", "write a constant, interval '1 day', or multiply one by a constant"
            )
        return Value.of_interval(interval(node.this.name, unit.name if unit is not None else ""))

    def extract(self, node: exp.Extract) -> Value:
        return extract(node.this.name.lower(), self.value(node.expression), self.zone)

    def scalar_query(self, node: exp.Subquery) -> Value:
        if node.args.get("alias"):
            self.refuse("a name for this subquery", "leave it out", node)
        query = self.queries.query(node.this, self.scope)
        if len(query.columns) != 1:
            self.refuse(f"a subquery with {len(query.columns)} columns as a value", "select one", node)
        return of_column(f"({query.sql})", query.columns[0][1])

    def exists(self, node: exp.Exists) -> Value:
        return Value(f"EXISTS ({self.queries.query(node.this, self.scope).sql})", BOOL)

    # functions

    def with_words(self, node: exp.Expr) -> Value:
        """A function with words between its arguments, by the name that it has without them."""
        name, arguments = plain_call(node)
        call = exp.Anonymous(this=name, expressions=[each.copy() for each in arguments])
        call.meta.update(node.meta)
        return self._calls.value(call, None, None)

    def call(self, node: exp.Anonymous) -> Value:
        return self._calls.value(node, None, None)

    def filtered(self, node: exp.Filter) -> Value:
        return self._calls.value(node.this, node.expression, None)

    def windowed(self, node: exp.Window) -> Value:
        inner, where = node.this, None
        if isinstance(inner, exp.Filter):
            inner, where = inner.this, inner.expression
        return self._calls.value(inner, where, node)


def _negated(node: exp.Expr, text: str) -> Value:
    return Value(f"(NOT {text})" if node.args.get("negate") else text, BOOL)


_WAYS: dict[type[exp.Expr], Callable[[Expressions, Any], Value]] = {
    exp.Column: Expressions.column,
    exp.Dot: Expressions.dot,
    exp.Literal: Expressions.literal,
    exp.ByteString: Expressions.text_literal,
    exp.RawString: Expressions.text_literal,
    exp.Null: Expressions.null,
    exp.Boolean: Expressions.truth,
    exp.Paren: Expressions.paren,
    exp.Placeholder: Expressions.placeholder,
    **dict.fromkeys(_ARITHMETIC, Expressions.arithmetic),
    **dict.fromkeys(_BITS, Expressions.bits),
    exp.BitwiseNot: Expressions.inverted,
    **dict.fromkeys(_COMPARISONS, Expressions.comparison),
    exp.NullSafeNEQ: Expressions.distinct_from,
    exp.Neg: Expressions.negative,
    exp.And: Expressions.connective,
    exp.Or: Expressions.connective,
    exp.Not: Expressions.negation,
    exp.Is: Expressions.is_,
    exp.Between: Expressions.between,
    exp.In: Expressions.in_,
    exp.Like: Expressions.like,
    exp.ILike: Expressions.like,
    exp.Escape: Expressions.like,
    exp.RegexpLike: Expressions.matches,
    exp.RegexpILike: Expressions.matches,
    exp.DPipe: Expressions.joined_text,
    exp.Array: syntax.array,
    exp.Bracket: syntax.bracket,
    exp.ArrayContainsAll: syntax.contains,
    exp.ArrayContainedBy: syntax.contained,
    exp.ArrayOverlaps: syntax.overlaps,
    exp.AtTimeZone: syntax.at_time_zone,
    exp.Collate: syntax.collate,
    exp.Operator: json_value,
    exp.Case: Expressions.case,
    exp.Cast: Expressions.cast,
    exp.Interval: Expressions.interval,
    exp.Extract: Expressions.extract,
    exp.Subquery: Expressions.scalar_query,
    exp.Exists: Expressions.exists,
    exp.Anonymous: Expressions.call,
    **dict.fromkeys(WITH_WORDS, Expressions.with_words),
    exp.Filter: Expressions.filtered,
    exp.Window: Expressions.windowed,
}
"""The whitelist of nodes."""
