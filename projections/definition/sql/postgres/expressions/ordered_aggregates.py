"""Aggregates with an ORDER BY inside: ``string_agg`` and ``array_agg``.

The values are gathered beside what they are ordered by, and sorted as structs. The value is the last field: rows
that are equal in ORDER BY have one order, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.projections.definition.sql.postgres.refusal import NotInTable
from tailrace.projections.definition.sql.postgres.source_map import unmarked
from tailrace.projections.definition.sql.postgres.types.types import TEXT, array_of
from tailrace.projections.definition.sql.postgres.types.values import Value, implicit

NAMES = ("array_agg", "string_agg")


@dataclass(frozen=True, slots=True)
class Key:
    """One of ORDER BY's."""

    value: Value
    descending: bool
    nulls_first: bool

    def fields(self, *, descending: bool) -> tuple[str, str]:
        """What an order in this direction sorts by. First comes whether it is NULL: NULLs are where they belong.
        Raises NotInTable."""
        text = self.value.sql
        if self.descending != descending:
            if not self.value.type.is_number:
                raise NotInTable("ASC beside DESC inside an aggregate", "order by one direction")
            exact = self.value.type.is_integer
            text = f"(- CAST({text} AS DECIMAL(20,0)))" if exact else f"(- {text})"
        null_is_larger = self.nulls_first == descending
        return f"{self.value.sql} IS {'' if null_is_larger else 'NOT '}NULL", text


def ordered_aggregate(
    name: str, given: Sequence[Value], keys: Sequence[Key], *, distinct: bool, where: str
) -> Value:
    """``where``: the condition of its FILTER, or "". Raises NotInTable."""
    value = given[0] if given else Value("", TEXT)
    if distinct and any(unmarked(key.value.sql) != unmarked(value.sql) for key in keys):
        raise NotInTable(f"{name}(DISTINCT …) ordered by something else", "order by the value")
    if name == "string_agg":
        return _string_agg(given, keys, distinct=distinct, where=where)
    if len(given) != 1 or value.type.element is not None or value.type.name == "record":
        raise NotInTable("array_agg() of this", "it takes one plain value")
    array = _sorted(value.sql, keys, where, distinct=distinct)
    return Value(f"(CASE WHEN {_count('1', where)} > 0 THEN {array} END)", array_of(value.type))


def _string_agg(given: Sequence[Value], keys: Sequence[Key], *, distinct: bool, where: str) -> Value:
    texts = [implicit(each, TEXT) for each in given]
    if len(texts) != 2 or texts[0] is None or texts[1] is None or given[1].constant is None:
        raise NotInTable("string_agg() of these", "it takes a text and a constant between the texts")
    value = texts[0].sql
    array = _sorted(value, keys, where, distinct=distinct)
    return Value(f"(CASE WHEN {_count(value, where)} > 0 THEN array_join({array}, {texts[1].sql}) END)", TEXT)


def _count(text: str, where: str) -> str:
    return f"count({text})" + (f" FILTER (WHERE {where})" if where else "")


def _sorted(value: str, keys: Sequence[Key], where: str, *, distinct: bool) -> str:
    """An array of the values. Without an order it has that of the values: any is right."""
    descending = bool(keys) and keys[0].descending
    texts = [text for key in keys for text in key.fields(descending=descending)]
    texts += [f"{value} IS NULL", value]
    fields = ", ".join(f"'f{at}', {text}" for at, text in enumerate(texts))
    gathered = f"{'collect_set' if distinct else 'collect_list'}(named_struct({fields}))"
    if where:
        gathered += f" FILTER (WHERE {where})"
    ascending = "false" if descending else "true"
    return f"transform(sort_array({gathered}, {ascending}), each -> each.f{len(texts) - 1})"
