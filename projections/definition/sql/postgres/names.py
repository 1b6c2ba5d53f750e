"""The names that Postgres gives columns without one, and what messages call a part of a query."""

from __future__ import annotations

from sqlglot import exp

from tailrace.projections.definition.sql.postgres.scope import folded

_WORDS: dict[type[exp.Expr], str] = {
    exp.Exists: "exists", exp.Case: "case", exp.Extract: "extract", exp.Array: "array", exp.Substring: "substring",
    exp.Trim: "btrim", exp.StrPosition: "position", exp.Overlay: "overlay", exp.Boolean: "bool",
    exp.Interval: "interval", exp.CurrentDate: "current_date",
    exp.CurrentTimestamp: "current_timestamp", exp.AtTimeZone: "timezone",
}  # fmt: skip
_UNNAMED = "?column?"


def result_name(node: exp.Expr) -> str:
    """The name of a column of a result."""
    match node:
        case exp.Column():
            return folded(node.this)
        case exp.Dot():
            return folded(node.expression)
        case exp.Anonymous():
            return folded(node.this) if isinstance(node.this, exp.Identifier) else str(node.this).lower()
        case exp.Filter() | exp.Window() | exp.Paren() | exp.Bracket():
            return result_name(node.this)
        case exp.Cast():
            return result_name(node.this)
        case exp.Case(args={"default": exp.Expr() as default}):
            inner = result_name(default)
            return inner if inner != _UNNAMED else "case"
        case exp.Subquery(this=exp.Select() as inner):
            first = inner.expressions[0]
            return folded(first.args["alias"]) if isinstance(first, exp.Alias) else result_name(first)
    return _WORDS.get(type(node), _UNNAMED)


def words_of(node: exp.Expr) -> str:
    """What to call a node in a message."""
    if isinstance(node, exp.Operator):
        return str(node.args["operator"])
    words = node.key.upper().replace("_", " ")
    return _NAMES.get(type(node), words)


_NAMES: dict[type[exp.Expr], str] = {
    exp.SimilarTo: "SIMILAR TO",
    exp.Bracket: "a subscript", exp.Array: "ARRAY[…]", exp.AtTimeZone: "AT TIME ZONE", exp.Tuple: "a row",
    exp.Concat: "two quoted texts side by side", exp.CurrentDate: "CURRENT_DATE", exp.CurrentTime: "CURRENT_TIME",
    exp.CurrentTimestamp: "CURRENT_TIMESTAMP", exp.Localtime: "LOCALTIME", exp.Localtimestamp: "LOCALTIMESTAMP",
}  # fmt: skip
_CLOCKS = (exp.CurrentDate, exp.CurrentTime, exp.CurrentTimestamp, exp.Localtime, exp.Localtimestamp)


def instead_of(node: exp.Expr) -> str:
    """What to write for a kind of node without a translation; "" where nothing is known."""
    return "write :now, the time of the position; its date is :now::date" if isinstance(node, _CLOCKS) else ""
