"""What is said of a query that has no faithful translation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlglot import exp

_Part = TypeVar("_Part")
_Made = TypeVar("_Made")

OTHER_DIALECT = 'or write the file in Spark\'s SQL, with dialect = "spark" in its header'


class NotInTable(Exception):
    """Nothing in the table fits; ``hint`` is what to write instead."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what, self.hint = what, hint


class Refused(Exception):
    """``offset`` is the first character of what is refused, None when that is not known. ``others``: what else of the
    query is refused, whatever becomes of this."""

    def __init__(self, what: str, hint: str, at: exp.Expr | None) -> None:
        super().__init__(what)
        self.what, self.hint = what, hint
        self.offset = first_character(at) if at is not None else None
        self.others: tuple[Refused, ...] = ()


class Refusals:
    """Of parts of a query that are translated apart, so that all that is refused is said at once."""

    def __init__(self) -> None:
        self._found: list[Refused] = []

    @contextmanager
    def apart(self) -> Iterator[None]:
        """One part; what is refused of it is raised in the end."""
        try:
            yield
        except Refused as error:
            self._found += [error, *error.others]

    def end(self) -> None:
        """Raises the first that was found in the text, with the others."""
        if not self._found:
            return
        first, *others = sorted(self._found, key=lambda each: -1 if each.offset is None else each.offset)
        first.others = tuple(others)
        raise first

    @classmethod
    def of_each(cls, translate: Callable[[_Part], _Made], parts: Iterable[_Part]) -> list[_Made]:
        """What each part is translated to. Raises Refused, for all that are refused."""
        refusals, made = cls(), []
        for part in parts:
            with refusals.apart():
                made.append(translate(part))
        refusals.end()
        return made


def first_character(node: exp.Expr) -> int | None:
    """Where a node begins in the text; None when the parser has kept nothing of it."""
    own = node.meta.get("start")
    if own is not None:
        return int(own)
    starts = [int(each.meta["start"]) for each in node.walk() if "start" in each.meta]
    return min(starts, default=None)
