"""What is said of a plan that does not keep keys apart, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tailrace.projections.analysis.expressions import names_in, root
from tailrace.projections.analysis.plan_tree import Node
from tailrace.projections.analysis.spread import (
    Attribute,
    OutputColumn,
    PlanRelation,
    Spread,
    column_words,
    key_words,
)
from tailrace.projections.definition.lineage import Direct, Lineage


def key_of(lineage: Lineage, relation: PlanRelation) -> str:
    """The columns that hold the key, as the author wrote them."""
    return key_words(relation) or ", ".join(lineage.key)


def window_hint(
    lineage: Lineage, below: PlanRelation, partition: Sequence[Node], held: Sequence[Attribute | None]
) -> str:
    """What to do about a window that spans keys: with the key among its columns it would compute something else."""
    key = key_of(lineage, below)
    if not partition or len(held) < len(partition):
        return f"partition it by the key ({key}), or follow no key: it is computed in full"
    columns = name_list(partition)
    whole = ", ".join(dict.fromkeys((*columns.split(", "), *lineage.key)))
    return (
        f"follow {columns}: key=({whole}), with affects that name {columns} alone;"
        f" to partition it by {key} as well would give another result"
    )


def foreign_key(lineage: Lineage, result: PlanRelation, column: OutputColumn) -> tuple[str, str]:
    """Of a key that is not what ``affects`` say."""
    rows = result.rows
    assert isinstance(rows, Spread)
    said = ", ".join(
        f"{name}.{column_words(path.columns[lineage.key.index(column.name)])}"
        for name, path in lineage.paths.items()
        if isinstance(path, Direct)
    )
    origin = result.origins.get(column.id)
    if column.id in rows.holders[column.name]:
        return (
            f"its key {column.name} is NULL in rows that an outer join keeps",
            "take it from the side of the join whose rows are kept, or coalesce both",
        )
    if origin is not None:
        return (
            f"its key {column.name} is {origin.input}.{origin.column}, while affects says {said}",
            "correct affects, or the key",
        )
    return (
        f"its key {column.name} is computed otherwise than affects says ({said})",
        "have affects say what it is computed of, Computed(…) over columns of one input,"
        " or say trust=True when it is the same value",
    )


_COMPUTED_KEY = (
    "the key is computed of {0}: say so, affects={{key: Computed(expression)}}, or"
    " do not say that affects is {0}; then each change has everything computed"
)


def computed_key_hint(below: PlanRelation, expressions: Iterable[Node]) -> str:
    """What to do where rows are grouped by something made of their key, which affects name; "" where they are not."""
    rows = below.rows
    holders = frozenset().union(*rows.holders.values()) if isinstance(rows, Spread) else frozenset()
    for each in expressions:
        if root(each) is None:
            for inner in each.walk():
                if inner.kind == "AttributeReference" and inner.id in holders:
                    return _COMPUTED_KEY.format(inner.name)
    return ""


def name_list(expressions: Iterable[Node]) -> str:
    return ", ".join(name for each in expressions for name in names_in(each)[:1]) or "nothing"


def group_words(grouping: Sequence[Node]) -> str:
    if not grouping:
        return "it aggregates over all rows"
    return f"it groups by {name_list(grouping)}, so that rows of different keys fall into one group"


_ANY_KEY = "may give rows any key", "say trust=True when it keeps the key"
_MANY_KEYS = "sees rows of different keys", "say trust=True when it looks at rows one by one"
_FILES = "it reads files or tables beside its inputs", "declare them as inputs"
UNPROVABLE = {
    "FlatMapGroupsInPandas": (f"applyInPandas {_ANY_KEY[0]}", _ANY_KEY[1]),
    "FlatMapGroupsInArrow": (f"applyInArrow {_ANY_KEY[0]}", _ANY_KEY[1]),
    "FlatMapCoGroupsInPandas": (f"applyInPandas {_ANY_KEY[0]}", _ANY_KEY[1]),
    "FlatMapCoGroupsInArrow": (f"applyInArrow {_ANY_KEY[0]}", _ANY_KEY[1]),
    "MapInPandas": (f"mapInPandas {_MANY_KEYS[0]}", _MANY_KEYS[1]),
    "MapInArrow": (f"mapInArrow {_MANY_KEYS[0]}", _MANY_KEYS[1]),
    "Sample": ("it takes a sample of the rows", "choose rows by a condition on their values"),
    "LogicalRelation": _FILES,
    "DataSourceV2Relation": _FILES,
    "HiveTableRelation": _FILES,
}
