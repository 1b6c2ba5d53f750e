"""What is said of a query that has no faithful translation."""

from __future__ import annotations

from sqlglot import exp

OTHER_DIALECT = 'or write the file in Spark\'s SQL, with dialect = "spark" in its header'


class NotInTable(Exception):
    """Nothing in the table fits; ``hint`` is what to write instead."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what, self.hint = what, hint


class Refused(Exception):
    """``offset`` is the first character of what is refused, None when that is not known."""

    def __init__(self, what: str, hint: str, at: exp.Expr | None) -> None:
        super().__init__(what)
        self.what, self.hint = what, hint
        self.offset = first_character(at) if at is not None else None


def first_character(node: exp.Expr) -> int | None:
    """Where a node begins in the text; None when the parser has kept nothing of it."""
    own = node.meta.get("start")
    if own is not None:
        return int(own)
    starts = [int(each.meta["start"]) for each in node.walk() if "start" in each.meta]
    return min(starts, default=None)
