"""Texts of a plan that Spark reads as the time now, as ``date('today')``. Pure."""

from __future__ import annotations

import re

from tailrace.projections.analysis.plan_tree import Node

_TIMES = frozenset({"date", "timestamp", "timestamp_ntz"})
_SPOKEN = re.compile(r"(?<![a-z])(?:now|today|tomorrow|yesterday)(?![a-z])", re.I)
"""Texts that Spark's optimizer replaces by the time (SpecialDatetimeValues); its 'epoch' is always the same."""


def time_of(expression: Node) -> str:
    """The date or timestamp that an expression reads a text as, without a format; empty for others."""
    if expression.kind == "ParseToDate" and len(expression.children) == 1:
        return "date"
    reads = expression.kind == "Cast" or (
        expression.kind == "ParseToTimestamp" and len(expression.children) == 1
    )
    return expression.type if reads and expression.type in _TIMES else ""


def spoken(expression: Node) -> str | None:
    """The text of constants alone that is read as a time and names one. Spark takes no such name from a column."""
    if not time_of(expression):
        return None
    below = list(expression.children[0].walk())
    if any(time_of(each) or (not each.children and each.kind != "Literal") for each in below):
        return None
    texts = (
        str(each.fields.get("value") or "")
        for each in below
        if each.kind == "Literal" and each.type.startswith("string")
    )
    text = "".join(texts).strip()
    return text if _SPOKEN.search(text) else None
