"""Functions of regular expressions. Their patterns are constants: ``patterns.py`` reads them."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.projections.definition.sql.postgres.functions.patterns import (
    Pattern,
    read_pattern,
    read_replacement,
)
from tailrace.projections.definition.sql.postgres.functions.table import Absent, Row
from tailrace.projections.definition.sql.postgres.refusal import NotInTable
from tailrace.projections.definition.sql.postgres.types.types import BOOL, INT4, TEXT, array_of
from tailrace.projections.definition.sql.postgres.types.values import Value, quoted


def _flags(arguments: Sequence[Value], at: int) -> str:
    flags = arguments[at].constant or "" if len(arguments) > at else ""
    if unknown := set(flags) - set("gi"):
        raise NotInTable(f"the flag {min(unknown)!r} of a regular expression", "the flags are g and i")
    return flags


def _pattern(value: Value, flags: str, *, exact: bool = True) -> Pattern:
    found = read_pattern(value.constant or "", ignores_case="i" in flags)
    if exact and not found.exact:
        raise NotInTable(
            f"the match of the regular expression {value.constant!r}, the longest in Postgres and the first in Spark,",
            "write alternatives as texts of which none begins with another, and groups without * + ?",
        )
    return found


def matches(text: Value, pattern: Value, *, ignores_case: bool = False) -> str:
    """``~`` and ``~*``. Raises NotInTable."""
    if pattern.constant is None:
        raise NotInTable("a regular expression that is no constant", "write it as a constant")
    java = _pattern(pattern, "i" if ignores_case else "", exact=False).java
    return f"({text.sql} RLIKE {quoted(java)})"


def _like(arguments: Sequence[Value]) -> str:
    return matches(arguments[0], arguments[1], ignores_case="i" in _flags(arguments, 2))


def _replaced(arguments: Sequence[Value]) -> str:
    """The first match, or with the flag g all."""
    flags = _flags(arguments, 3)
    pattern = _pattern(arguments[1], flags)
    new = arguments[2].constant or ""
    if "g" in flags:
        java, replacement = pattern.java, read_replacement(new, pattern.groups, shifted=0)
    else:
        options, _, body = pattern.java.partition(")")
        java = rf"{options})\A(.*?)({body})"
        replacement = "$1" + _parted(read_replacement(new, pattern.groups, shifted=2))
    return f"regexp_replace({arguments[0].sql}, {quoted(java)}, {quoted(replacement)})"


def _parted(replacement: str) -> str:
    return f"\\{replacement}" if replacement[:1].isdecimal() else replacement


def _counted(arguments: Sequence[Value]) -> str:
    return f"regexp_count({arguments[0].sql}, {quoted(_pattern(arguments[1], '').java)})"


def _first(arguments: Sequence[Value]) -> str:
    pattern = _pattern(arguments[1], "")
    if pattern.may_be_empty:
        raise NotInTable(
            "the first match, which may be empty", "write a pattern that has a character at least"
        )
    return f"regexp_substr({arguments[0].sql}, {quoted(pattern.java)})"


def _groups(arguments: Sequence[Value]) -> str:
    text, pattern = arguments[0].sql, _pattern(arguments[1], _flags(arguments, 2))
    java = quoted(pattern.java)
    numbers = range(1, pattern.groups + 1) if pattern.groups else (0,)
    parts = ", ".join(f"regexp_extract({text}, {java}, {number})" for number in numbers)
    return f"CASE WHEN {text} RLIKE {java} THEN array({parts}) END"


def _split(arguments: Sequence[Value]) -> str:
    pattern = _pattern(arguments[1], _flags(arguments, 2))
    if pattern.may_be_empty:
        raise NotInTable(
            "a split at matches that may be empty", "write a pattern that has a character at least"
        )
    return f"split({arguments[0].sql}, {quoted(pattern.java)}, -1)"


_TEXTS = array_of(TEXT)
_PATTERN = ("text", "text constant")
ROWS = (
    Row("regexp_like", _PATTERN, BOOL, _like),
    Row("regexp_like", (*_PATTERN, "text constant"), BOOL, _like),
    Row("regexp_replace", (*_PATTERN, "text constant"), TEXT, _replaced),
    Row("regexp_replace", (*_PATTERN, "text constant", "text constant"), TEXT, _replaced),
    Row("regexp_count", _PATTERN, INT4, _counted),
    Row("regexp_substr", _PATTERN, TEXT, _first),
    Row("regexp_match", _PATTERN, _TEXTS, _groups),
    Row("regexp_match", (*_PATTERN, "text constant"), _TEXTS, _groups),
    *(
        Row(
            name,
            ("text", "text"),
            TEXT,
            Absent("write regexp_match() or regexp_split_to_array() and unnest()"),
        )
        for name in ("regexp_matches", "regexp_split_to_table")
    ),
    Row("regexp_instr", ("text", "text"), INT4, Absent("write strpos(x, regexp_substr(x, …))")),
    Row("regexp_split_to_array", _PATTERN, _TEXTS, _split),
)
