"""Calls of every function of the translation's table, over the columns of ``x``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tailrace.projections.definition.sql.postgres.functions import GROUPS
from tailrace.projections.definition.sql.postgres.functions.table import Absent, Row
from tests.projections.meaning.expression_rows import COLUMNS

_COLUMNS = {
    **COLUMNS, "numeric": ("n1", "m2"), "any": ("t2", "d1"),
}  # fmt: skip
CONSTANTS: Mapping[str, Sequence[tuple[str, ...]]] = {
    "date_part": [
        (f"'{field}'",)
        for field in ("year", "dow", "week", "century", "hour", "second", "milliseconds", "epoch")
    ],
    "date_trunc": [
        *((f"'{field}'",) for field in ("second", "hour", "day", "week", "month", "quarter", "year")),
        ("'day'", "'Europe/Berlin'"),
        ("'hour'", "'Asia/Kolkata'"),
    ],
    "lag": [("2",)],
    "lead": [("1",)],
    "nth_value": [("2",)],
    "ntile": [("3",)],
    "regexp_count": [("'a'",), ("'[a-z]+'",)],
    "regexp_like": [("'^H'",), ("'a|bc'", "'i'")],
    "regexp_match": [("'([a-z])([0-9])'",), ("'[A-Z]+'", "'i'")],
    "regexp_replace": [
        ("'[aeiou]'", r"'<\&>'"),
        (r"'(\w+) (\w+)'", r"'\2 \1'"),
        ("'a|bc'", "''", "'gi'"),
        (r"'\s'", "'$1'", "'g'"),
    ],
    "regexp_split_to_array": [("'[ ,]'",)],
    "regexp_substr": [("'[A-Z][a-z]*'",)],
    "round": [("1",), ("-2",)],
    "trunc": [("1",), ("-2",)],
    "to_char": [
        ("'YYYY-MM-DD HH24:MI:SS.US'",),
        ("'Dy DD Mon YY, HH12:MI AM'",),
        ("'FMDay FMDD FMMonth Q'",),
    ],
}
"""What stands where a function takes a constant alone, in order."""
INSTEAD: Mapping[str, Sequence[str]] = {
    "encode": ["encode(y1, 'hex')", "encode(y1, 'base64')", "encode(sha512(y1) || sha512(y2), 'base64')"],
    "array_length": ["array_length(ia1, 1)"],
    "array_lower": ["array_lower(ta1, 1)"],
    "array_to_string": ["array_to_string(ta1, '-')", "array_to_string(ta1, ', ', '?')"],
    "array_upper": ["array_upper(ta2, 1)"],
    "cardinality": ["cardinality(ta1)", "cardinality(ia2)"],
    "array_append": ["array_append(ia1, i1)", "array_append(ta1, t1)", "array_append(ia1, NULL)"],
    "array_cat": ["array_cat(ia1, ia2)"],
    "array_position": ["array_position(ia1, 1)", "array_position(ta1, NULL)", "array_position(ta1, t1)"],
    "array_prepend": ["array_prepend(t1, ta1)", "array_prepend(s1, ia1)"],
    "array_remove": ["array_remove(ia1, 1)", "array_remove(ta1, NULL)"],
    "array_replace": ["array_replace(ta1, 'a', 'ä')", "array_replace(ia1, NULL, 7)"],
    "string_to_array": ["string_to_array(t1, ' ')", "string_to_array(t1, '.', 'b')"],
    "atan2": ["atan2(f1, f2)", "atan2(f2, f2)"],
    "avg": [
        *(f"round(avg({column}) OVER (PARTITION BY b1), 2)" for column in ("s1", "i1", "l1", "n1")),
        "avg(f1) OVER (PARTITION BY b1)",
    ],
    "lpad": ["lpad(t1, s1 % 20)", "lpad(t1, s1 % 20, t2)"],
    "make_date": ["make_date(2000 + s1 % 900, 1 + abs(s2 % 12), 3)"],
    "pow": ["pow(f1, f2)", "pow(sign(f1), f2)"],
    "repeat": ["repeat(t1, s1 % 4)"],
    "rpad": ["rpad(t1, s1 % 20)", "rpad(t1, s1 % 20, t2)"],
    "to_timestamp": ["to_timestamp(i1)"],
}
"""Functions whose arguments have to be small or of one type, or whose result has to be rounded."""


ELSEWHERE = frozenset({"grouping"})
"""What only clauses give a meaning: with cases of its own."""


def computed_rows() -> list[Row]:
    """Those that Spark computes, by themselves."""
    every = [row for rows in GROUPS.values() for row in rows]
    return [row for row in every if not isinstance(row.spark, Absent) and row.name not in ELSEWHERE]


def calls(row: Row) -> list[str]:
    """A call for each way to fill its constants. Raises KeyError where none is known."""
    if row.name in INSTEAD:
        return list(INSTEAD[row.name])
    takes = [each.rstrip("*") for each in row.takes]
    wanted = sum(each.endswith(" constant") for each in takes)
    ways = [each for each in CONSTANTS[row.name] if len(each) == wanted] if wanted else [()]
    assert ways, f"{row.name} with {wanted} constants has no case"
    return [_behind(row, f"{row.name}({', '.join(_arguments(takes, way))})") for way in ways]


def _arguments(takes: Sequence[str], constants: Sequence[str]) -> list[str]:
    left = list(constants)
    used: dict[str, int] = {}
    found = []
    for each in takes:
        if each.endswith(" constant"):
            found.append(left.pop(0))
            continue
        columns = _COLUMNS[each]
        found.append(columns[used.get(each, 0) % len(columns)])
        used[each] = used.get(each, 0) + 1
    return found


def _behind(row: Row, call: str) -> str:
    """Aggregates over groups, functions of windows over all rows in order."""
    if row.kind == "scalar":
        return call
    return f"{call} OVER ({'ORDER BY id' if row.kind == 'window' else 'PARTITION BY b1'})"
