"""Functions with words between their arguments: ``substring(a FROM 2 FOR 3)`` is ``substring(a, 2, 3)``. The table of
functions knows the second form only."""

from __future__ import annotations

from sqlglot import exp

WITH_WORDS = (exp.Overlay, exp.StrPosition, exp.Substring, exp.Trim)
_TRIMS = {"LEADING": "ltrim", "TRAILING": "rtrim"}


def plain_call(node: exp.Expr) -> tuple[str, list[exp.Expr]]:
    """The name and the arguments of one of ``WITH_WORDS``."""
    given = node.args
    match node:
        case exp.Substring():
            start = given.get("start") or exp.Literal.number(1)
            return "substring", _given(node.this, start, given.get("length"))
        case exp.Trim():
            return _TRIMS.get(str(given.get("position") or ""), "btrim"), _given(
                node.this, given.get("expression")
            )
        case exp.StrPosition():
            return "strpos", _given(node.this, given.get("substr"))
    return "overlay", _given(node.this, node.expression, given.get("from_"), given.get("for_"))


def _given(*arguments: exp.Expr | None) -> list[exp.Expr]:
    return [each for each in arguments if each is not None]
