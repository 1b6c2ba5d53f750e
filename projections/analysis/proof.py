"""What a walk of a plan has to know of the inputs, and what it finds. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


@dataclass(slots=True)
class Proof:
    """What was found. ``relations`` has every node of the plan; without ``obstacles`` it is local. ``again``: where a
    common table expression is read, its columns by their new ids. ``never_null``: rows whose inputs have NULL where
    ``affects`` says the key is are left out of the result."""

    relations: dict[Node, Relation] = field(default_factory=dict)
    again: dict[Node, Mapping[int, int]] = field(default_factory=dict)
    obstacles: list[Obstacle] = field(default_factory=list)
    never_null: bool = False

    def renames(self, node: Node) -> Iterator[tuple[int, int]]:
        """The columns that an operator gives another id, or one of several columns: the new id and the old one."""
        if node.kind == "Union":
            for first, *others in zip(*(self.relations[part].output for part in node.children), strict=False):
                yield from ((first.id, other.id) for other in others)
        elif node.kind == "Expand":  # rollup and its like: each row once for each list of columns
            for projected in node.lists("projections"):
                for made, held in zip(node.expressions("output"), projected, strict=False):
                    if held.kind == "AttributeReference":
                        yield made.id, held.id
        else:
            yield from self.again.get(node, {}).items()
