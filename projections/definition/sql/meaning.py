"""What a name without its table means in a query. Pure.

Postgres reads a query anew each time it runs, but binds the names of a view once. A projection is both: its words stay,
and its result goes on from what it was. A column that takes a name over is therefore refused, not followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a ``name`` stands for, in ``words``; ``around`` counts how many queries further out that is. ``instead`` is
    what can be written in its place and means the same for ever."""

    name: str
    words: str
    instead: str
    around: int = 0

    @classmethod
    def of_table(cls, table: str, name: str) -> Meaning:
        return cls(name, f"{table}.{name}", f"write {table}.{name}")

    @classmethod
    def of_both(cls, name: str) -> Meaning:
        return cls(name, "the one column of USING", "write it with its table")

    @classmethod
    def of_result(cls, name: str) -> Meaning:
        return cls(name, "a column of the result", "give that another name")

    @classmethod
    def of_natural_join(cls, names: Sequence[str]) -> Meaning:
        listed = ", ".join(names)
        return cls("NATURAL JOIN", f"one by {listed or 'nothing'}", f"write JOIN … USING ({listed})")

    def outside(self) -> Meaning:
        """The same, seen from a query inside."""
        return replace(self, around=self.around + 1)

    def __str__(self) -> str:
        return f"{self.words} of the query around it" if self.around else self.words
