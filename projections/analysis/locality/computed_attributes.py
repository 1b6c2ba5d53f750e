"""What in a plan has the value of an expression that ``affects`` names.

Of each reading of an input, each such expression is one attribute more, a number below 0. It is there as long as
columns of that row are, and an expression of the plan that is spelled alike, of these columns, has its value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tailrace.projections.analysis.computed_columns import shape_of
from tailrace.projections.analysis.expressions import Equality, root
from tailrace.projections.analysis.plan_tree import Node
from tailrace.projections.analysis.spread import (
    Attribute,
    ComputedColumn,
    InputColumn,
    InputFacts,
    PlanRelation,
    column_words,
)
from tailrace.projections.definition.computed import Computed

_MOST = 1_000  # expressions of one reading


@dataclass(frozen=True, slots=True)
class ComputedAttributes:
    """Of these inputs."""

    inputs: Mapping[str, InputFacts]

    def of_reading(self, number: int, facts: InputFacts) -> dict[Computed, int]:
        """The attributes of one reading of an input."""
        return {each: -(number * _MOST + at) for at, each in enumerate(facts.computed)}

    def renumbered(self, relation: PlanRelation, readings: Mapping[int, int]) -> PlanRelation:
        """A common table expression that is read again: its ``readings`` have new numbers."""
        return relation.renumber({
            held: -(readings[relation.origins[held].reading] * _MOST + -held % _MOST)
            for held in relation.computed
        })  # fmt: skip

    def held_by(self, *below: PlanRelation) -> Callable[[Node], Attribute | None]:
        """Which attribute of these relations has an expression's value; also one that stands for what is computed."""
        origins = {held: origin for each in below for held, origin in each.origins.items()}
        computed = [held for each in below for held in sorted(each.computed)]

        def held_by(expression: Node) -> Attribute | None:
            found = root(expression)
            if found is not None or not computed:
                return found
            readings: set[int] = set()

            def name_of(column: Node) -> str:
                origin = origins.get(column.id)
                readings.add(origin.reading if origin else 0)
                return origin.column if origin else ""

            shape = shape_of(expression, name_of)
            for held in computed:
                if readings <= {origins[held].reading} and self._described(origins[held]).shape == shape:
                    return held
            return None

        return held_by

    def told(self, below: PlanRelation, held: frozenset[Attribute]) -> frozenset[Attribute]:
        """What is computed of these attributes alone: rows that differ in it differ in one of them."""
        columns: dict[int, set[str]] = {}
        for each in held:
            if (origin := below.origins.get(each)) is not None:
                columns.setdefault(origin.reading, set()).add(origin.column)
        return frozenset(
            each
            for each in below.computed
            if self._described(origin := below.origins[each]).columns <= columns.get(origin.reading, set())
        )

    def equal_constants(self, left: PlanRelation, right: PlanRelation) -> Iterator[Equality]:
        """The key of one total is the same in all rows."""
        for one in left.computed:
            for other in right.computed:
                shape = self._described(left.origins[one]).shape
                made = self._described(right.origins[other])
                if made.shape == shape and not made.columns:
                    yield Equality(one, other, nulls=False)

    def _described(self, origin: InputColumn) -> ComputedColumn:
        known = self.inputs[origin.input].computed
        return next(made for each, made in known.items() if column_words(each) == origin.column)
