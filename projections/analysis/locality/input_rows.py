"""Which rows a reading of an input has when the inputs are restricted to some keys: those that its lineage says."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.projections.analysis.spread import (
    AllRows,
    Attribute,
    Domain,
    InputFacts,
    Refusal,
    Rows,
    Spread,
    column_words,
)
from tailrace.projections.definition.computed import Computed
from tailrace.projections.definition.lineage import Direct, Lineage, Link, read_columns
from tailrace.projections.definition.model import KeyColumn


def rows_of_input(
    lineage: Lineage, facts: InputFacts, places: Mapping[KeyColumn, Attribute]
) -> Rows | Refusal:
    """``places`` are the attributes that hold its columns, and what parts of the key are computed of."""
    name = facts.name
    path = lineage.paths.get(name)
    match path:
        case None:
            return AllRows()
        case Direct(columns=columns):
            domain, own = Domain("", lineage.key), columns
        case Link(input=parent, own=own, theirs=theirs):
            domain = Domain(parent, theirs)
    if unseen := [each for each in read_columns(own) if each not in places]:
        return (
            f"affects of {name} names {', '.join(unseen)}, which the function is not given",
            "add it to columns=",
        )
    if unknown := [column_words(each) for each in own if each not in places]:
        return (
            f"affects of {name} is {', '.join(unknown)}, which cannot be followed",
            "a key is no float, no text with a collation, and computed of one row",
        )
    given = dict(zip(domain.columns, own, strict=True))
    never = {name_of_key for name_of_key, column in given.items() if _never_null(facts, column)}
    return Spread.of(domain, {name: places[column] for name, column in given.items()}, never)


def _never_null(facts: InputFacts, column: KeyColumn) -> bool:
    """Is a part of the key NULL in no row of an input?"""
    if isinstance(column, Computed):
        return facts.computed[column].never_null
    return facts.nested or column in set().union(*facts.unique)
