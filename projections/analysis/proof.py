"""What a walk of a plan is told of the inputs, and what it finds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tailrace.projections.analysis.plan_tree import Node
from tailrace.projections.analysis.spread import Relation


@dataclass(frozen=True, slots=True)
class InputFacts:
    """What the walk has to know of an input. ``unique`` are sets of columns that no two of its rows share and that are
    never NULL; ``nested``: its columns are fields of the struct column ``key`` (Changes), which no change lacks."""

    name: str
    unique: tuple[tuple[str, ...], ...] = ()
    nested: bool = False


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a plan is not local: ``node`` is where."""

    node: Node
    what: str
    hint: str


@dataclass(frozen=True, slots=True)
class Again:
    """A common table expression where it is read: its columns by their new ids, and the readings of inputs in it, which
    are others at each place: rows of two places are not the same."""

    columns: Mapping[int, int]
    readings: Mapping[int, int]


@dataclass(slots=True)
class Proof:
    """What was found. ``relations`` has every node of the plan, ``again`` those that read a common table expression;
    without ``obstacles`` it is local. ``never_null``: rows whose inputs have NULL where ``affects`` says the key is are
    left out of the result."""

    relations: dict[Node, Relation] = field(default_factory=dict)
    again: dict[Node, Again] = field(default_factory=dict)
    obstacles: list[Obstacle] = field(default_factory=list)
    never_null: bool = False
