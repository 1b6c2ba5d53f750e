"""Which column is which: the stream tells name and type of a relation's columns; attnums are known elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from tailrace.cdc.wire.pgoutput import Relation, RelationColumn
from tailrace.eventstore.model.schema import Column, TopicSchema


def identify(relation: Relation, described: TopicSchema, older: TopicSchema | None) -> list[Column]:
    """The relation's columns with their attnums.

    By name from the catalog; by name from the version before (renamed or dropped since); by place and type from either
    (renamed, and again since). A name with another type counts last: the column may have been dropped and its name
    given to another. Attnums rise from column to column; where they would not, the catalog is that much ahead, and the
    version before is asked first; those that break the order even then are other columns of the same name (dropped and
    added again since). A column that neither knows was dropped since: its attnum is one of the gaps after its left
    neighbour, and no other column will ever have it."""
    catalog_first = _known_columns(relation, described, older)
    if older is None:
        found = _longest_rising(catalog_first)
    elif _rises(catalog_first):
        found = catalog_first
    else:
        before_first = _known_columns(relation, older, described)
        found = before_first if _rises(before_first) else _longest_rising(catalog_first)
    used = {column.id for schema in (described, older) if schema for column in schema.columns}
    columns: list[Column] = []
    for at, sent in enumerate(relation.columns):
        column = found.get(at)
        if column is None:
            number = columns[-1].id + 1 if columns else 1
            while number in used:
                number += 1
            used.add(number)
            column = Column(number, sent.name, sent.type_oid, sent.typmod)
        columns.append(_with_sent_type(column, sent))
    return columns


def possible_places(count: int, before: Sequence[int], now: Collection[int], number: int) -> range:
    """Where the column ``number`` of ``before`` (the attnums of an earlier version, rising) may stand among ``count``
    columns that came between it and ``now``. What is in both was there all the time; others may have been dropped
    already, and columns that were added since stand behind all of them."""
    stayed = [each for each in before if each in now]
    room = count - len(stayed)  # for columns dropped, or added and not in ``before``
    first = sum(each < number for each in stayed)
    dropped = sum(each < number for each in before if each not in now)
    if number in now:
        return range(first, first + min(dropped, room) + 1)
    return range(first, first + min(dropped, room - 1) + 1)


def _known_columns(relation: Relation, first: TopicSchema, second: TopicSchema | None) -> dict[int, Column]:
    """Columns that one of two schemas knows, by their place in the relation."""
    named = [_match_names(relation, schema) for schema in (first, second)]
    sources = [
        *(_match_types(relation, columns) for columns in named),
        *named,
        _match_places(relation, second),
        _match_places(relation, first),
    ]
    found: dict[int, Column] = {}
    used: set[int] = set()
    for source in sources:
        for at, column in enumerate(source):
            if column is not None and at not in found and column.id not in used:
                found[at] = column
                used.add(column.id)
    return found


def _rises(columns: Mapping[int, Column]) -> bool:
    ids = [columns[at].id for at in sorted(columns)]
    return all(left < right for left, right in pairwise(ids))


def _longest_rising(columns: Mapping[int, Column]) -> dict[int, Column]:
    """The most columns whose attnums rise from place to place."""
    best: dict[int, list[int]] = {}  # by last place: the longest run that ends there
    for at in sorted(columns):
        runs = [run for before, run in best.items() if columns[before].id < columns[at].id]
        best[at] = [*max(runs, key=len, default=[]), at]
    return {at: columns[at] for at in max(best.values(), key=len, default=[])}


def _match_names(relation: Relation, schema: TopicSchema | None) -> list[Column | None]:
    return [schema.column(sent.name) if schema else None for sent in relation.columns]


def _match_types(relation: Relation, columns: Sequence[Column | None]) -> list[Column | None]:
    return [
        column if column is not None and column.type_oid == sent.type_oid else None
        for sent, column in zip(relation.columns, columns, strict=True)
    ]


def _match_places(relation: Relation, schema: TopicSchema | None) -> list[Column | None]:
    if schema is None or len(relation.columns) != len(schema.columns):
        return [None] * len(relation.columns)
    return [
        column if column.type_oid == sent.type_oid else None
        for sent, column in zip(relation.columns, schema.columns, strict=True)
    ]


def _with_sent_type(column: Column, sent: RelationColumn) -> Column:
    """The column with the stream's name and type. The fill of a column of another type is no value of this one."""
    if (column.type_oid, column.typmod) == (sent.type_oid, sent.typmod):
        return replace(column, name=sent.name)
    return Column(column.id, sent.name, sent.type_oid, sent.typmod, key=column.key, policy=column.policy)
