"""What a query or a table gives, as far as it is known: its columns, and where their values come from. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from tailrace.projections.definition.model import KeyColumn

Place = tuple[int, KeyColumn]
"""A column of one reading of an input, or what is computed of its columns; a constant is of none (``ANYWHERE``)."""
ANYWHERE = -1


@dataclass(slots=True)
class QueryOutput:
    """The output of a query or a table. ``columns`` are those with known names, in order, each with the places its
    value comes from (none: it is computed); ``stars`` are outputs that are passed on whole and of which not all columns
    are known. If it ``is_open``, there may be others; those of a ``reading`` are the input's."""

    columns: list[tuple[str, frozenset[Place]]] = field(default_factory=list)
    stars: list[QueryOutput] = field(default_factory=list)
    reading: int | None = None
    is_open: bool = False

    def has(self, name: str) -> bool | None:
        """Whether there is such a column; None when that is not known."""
        if any(column == name for column, _ in self.columns):
            return True
        known = [star.has(name) for star in self.stars]
        if True in known:
            return True
        return None if self.is_open or None in known else False

    @property
    def is_known(self) -> bool:
        """Whether ``columns`` are all columns."""
        return not self.is_open and not self.stars

    def places(self, name: str) -> frozenset[Place]:
        """Where a column's value comes from."""
        for column, places in self.columns:
            if column == name:
                return places
        if self.reading is not None and self.is_open:
            return frozenset({(self.reading, name)})
        chosen = one_with(self.stars, name)
        return chosen.places(name) if chosen else frozenset()


def one_with(outputs: Sequence[QueryOutput], name: str) -> QueryOutput | None:
    """The only output that has a column; None when that is not certain."""
    known = [(output, output.has(name)) for output in outputs]
    for certain in (True, None):
        found = [output for output, has in known if has is certain]
        if found:
            return found[0] if len(found) == 1 else None
    return None


Same = Callable[[frozenset[Place], frozenset[Place]], frozenset[Place]]
"""The places of a value that is of either."""


class UnionOutput(QueryOutput):
    """The columns of a set operation's sides by name, where these are not known beforehand."""

    def __init__(self, same: Same, left: QueryOutput, right: QueryOutput) -> None:
        super().__init__()
        self._same, self._left, self._right = same, left, right

    def has(self, name: str) -> bool | None:
        return self._left.has(name)

    def places(self, name: str) -> frozenset[Place]:
        return self._same(self._left.places(name), self._right.places(name))


def renamed(output: QueryOutput, source: exp.Expr) -> QueryOutput:
    """With the names that ``AS t(a, b)`` gives."""
    alias = source.args.get("alias")
    names = [column.name.lower() for column in alias.columns] if isinstance(alias, exp.TableAlias) else []
    if not names:
        return output
    if not output.is_known or len(names) > len(output.columns):
        return QueryOutput([(name, frozenset()) for name in names])
    columns = [(name, places) for name, (_, places) in zip(names, output.columns, strict=False)]
    return QueryOutput(columns + output.columns[len(names) :])
