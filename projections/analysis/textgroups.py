"""Where rows are told apart by numeric text: groups, partitions, rows that are the same. 1.0 and 1.00 are two there.

Text beside the key of the row that it is of does no harm: rows that have the key in common have one text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tailrace.projections.analysis.expressions import root
from tailrace.projections.analysis.numerictext import Held, NumericTexts, Origin, any_of
from tailrace.projections.analysis.plan_tree import Node
from tailrace.projections.analysis.spread import Attribute, Relation

_COMPARED = {
    "Aggregate": ("groupingExpressions", "groupBy"),
    "Window": ("partitionSpec", "partitionBy"),
    "Deduplicate": ("keys", "dropDuplicates"),
}


@dataclass(frozen=True, slots=True)
class _Compared:
    """A value that rows are told apart by. ``readings`` are those whose rows it is of, None when that is not known."""

    attribute: Attribute | None
    held: Held
    readings: frozenset[int] | None


@dataclass(frozen=True, slots=True)
class TextGroups:
    """``keys`` are sets of columns that no two rows of an input share."""

    texts: NumericTexts
    keys: Mapping[str, Sequence[Sequence[str]]]

    def uses(self, node: Node, below: Sequence[Relation]) -> list[tuple[Origin, str]]:
        """The numeric text by which an operator tells rows apart, and in words."""
        if not any(self.texts.told.values()) or not below:
            return []
        if node.kind in ("Except", "Intersect"):
            return [(origin, node.kind.lower()) for origin in self._of_sides(*below)]
        relation = below[0]
        if node.kind == "Distinct":
            compared = [self._column(column.id, relation) for column in relation.output]
            return [(origin, "distinct") for origin in self._unsettled(compared, relation)]
        field, words = _COMPARED.get(node.kind, ("", ""))
        compared = [self._expression(each, relation) for each in node.expressions(field)] if field else []
        if node.kind == "Deduplicate" and len(compared) == len(relation.output):
            words = "distinct"
        return [(origin, words) for origin in self._unsettled(compared, relation)]

    def _column(self, attribute: Attribute, relation: Relation) -> _Compared:
        held = self.texts.of_column(attribute, relation)
        return _Compared(attribute, held, self.texts.readings_of_column(attribute, relation))

    def _expression(self, expression: Node, relation: Relation) -> _Compared:
        held = self.texts.held(expression, relation)
        return _Compared(root(expression), held, self.texts.readings_of(expression, relation))

    def _unsettled(self, compared: Sequence[_Compared], relation: Relation) -> Iterator[Origin]:
        known = [each.attribute for each in compared if each.attribute is not None]
        if relation.is_unique(known):
            return
        whole = self._readings_with_key(known, relation)
        for each in compared:
            if each.readings is None or not each.readings <= whole:
                yield from sorted(any_of(each.held))

    def _readings_with_key(self, attributes: Sequence[Attribute], relation: Relation) -> set[int]:
        """The readings of inputs whose key is among these attributes."""
        columns: dict[tuple[int, str], set[str]] = {}
        for attribute in attributes:
            if (origin := relation.origins.get(attribute)) is not None:
                columns.setdefault((origin.reading, origin.input), set()).add(origin.column)
        return {
            reading
            for (reading, name), held in columns.items()
            if any(held.issuperset(key) for key in self.keys.get(name, ()))
        }

    def _of_sides(self, left: Relation, right: Relation) -> Iterator[Origin]:
        """Text that is compared with that of other rows. Of the same rows of one input it is the same."""
        places = list(zip(left.output, right.output, strict=False))
        same: dict[str, set[str]] = {}
        for one, other in places:
            mine, theirs = left.origins.get(one.id), right.origins.get(other.id)
            if mine and theirs and (mine.input, mine.column) == (theirs.input, theirs.column):
                same.setdefault(mine.input, set()).add(mine.column)
        keyed = {
            name
            for name, held in same.items()
            if any(held.issuperset(key) for key in self.keys.get(name, ()))
        }
        for one, other in places:
            mine = left.origins.get(one.id)
            if mine is not None and mine.input in keyed and mine.column in same[mine.input]:
                continue
            held = any_of(self.texts.of_column(one.id, left)) | any_of(self.texts.of_column(other.id, right))
            yield from sorted(held)
