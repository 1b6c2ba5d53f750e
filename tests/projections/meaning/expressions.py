"""Random expressions in Postgres' SQL, typed so that Postgres takes most of them.

A *production* makes a value of one type out of values of others: ``"{0} + {1}"``. An expression is a tree of them, with
columns and constants as its leaves. Its depth and its words are decided by the generator's seed alone.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tailrace.projections.definition.sql.postgres.functions import TABLE
from tailrace.projections.definition.sql.postgres.functions.table import Row
from tailrace.projections.definition.sql.postgres.types.types import PgType
from tests.projections.meaning.expression_rows import COLUMNS
from tests.projections.meaning.function_cases import CONSTANTS as CONSTANTS_OF
from tests.projections.meaning.function_cases import INSTEAD, computed_rows

_OF_COLUMN = {
    "numeric(12,2)": "numeric",
    "numeric(20,6)": "numeric",
    "varchar(10)": "text",
    "char(5)": "char",
    "numeric": "bare",
}
"""What productions call the type of a column, where that is not its name."""
NUMBERS = ("int2", "int4", "int8", "numeric", "float4", "float8")
COMPARED = (*NUMBERS, "text", "char", "bool", "date", "time", "timestamp", "timestamptz", "bytea", "uuid")
"""Types with an order that a projection has, too."""
_EVERY = (*COMPARED, "int4[]", "text[]", "mood", "jsonb", "interval", "bare", "inet")
CONSTANTS: dict[str, tuple[str, ...]] = {
    "bool": ("true", "false", "NULL::boolean"),
    "int2": ("3::smallint", "(-1)::smallint"),
    "int4": ("0", "1", "2", "-3", "7", "100", "2147483647", "NULL::integer"),
    "int8": ("3000000000", "1::bigint", "(-9)::bigint"),
    "numeric": ("1.5", "0.05", "-2.50", "100.0", "1e3", "12::numeric(10,2)"),
    "float4": ("1.5::real", "'NaN'::real"),
    "float8": ("2.5::double precision", "1e10::float8", "'-Infinity'::float8", "0::float8"),
    "text": ("''", "'a'", "'Hello World'", "'ä%_'", r"'\'", "E'a\\tb'", "'o''neil'", "'12'", "NULL::text"),
    "date": ("date '2024-02-29'", "'2026-01-31'::date", "date '1900-03-01'"),
    "time": ("time '12:30:00'", "'00:00'::time"),
    "timestamp": ("timestamp '2024-02-29 12:30:00'", "'1999-12-31 23:59:59.75'::timestamp"),
    "timestamptz": ("timestamptz '2026-03-29 01:30:00+00'",),
    "interval": (
        "interval '1 month'",
        "interval '1 day 02:30:00'",
        "interval '-90 minutes'",
        "'1 year'::interval",
    ),
    "int4[]": ("ARRAY[1,2,3]", "'{4,NULL}'::integer[]"),
    "text[]": ("ARRAY['a','b']",),
    "uuid": ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid",),
    "mood": ("'ok'::mood",),
    "bytea": (r"'\x6162'::bytea",),
    "jsonb": ("""'{"a": [1, 2]}'::jsonb""",),
}
INEXACT = ("^", *(f"{row.name}(" for rows in TABLE.values() for row in rows if not row.exact))
"""Whose last digit depends on the machine's library: they are whole expressions only, compared with a tolerance."""


@dataclass(frozen=True, slots=True)
class Production:
    type: str
    text: str
    arguments: tuple[str, ...] = ()

    @property
    def is_inexact(self) -> bool:
        return any(each in self.text for each in INEXACT)


def _operators() -> Iterator[Production]:
    for one in NUMBERS:
        for other in NUMBERS:
            both = max(one, other, key=NUMBERS.index)
            kind = "float8" if both in ("float4", "float8") and one != other else both
            for operator in "+-*/":
                text = f"({{0}} {operator} {{1}})"  # quotients of numerics are rounded: check warns of the others
                rounded = f"round({text}, 3)" if operator == "/" and both == "numeric" else text
                yield Production(kind, rounded, (one, other))
            if both not in ("float4", "float8"):
                yield Production(kind, "({0} % {1})", (one, other))
        yield Production(one, "(- {0})", (one,))
    yield Production("float8", "({0} ^ {1})", ("float8", "int4"))
    for kind in COMPARED:
        for operator in ("=", "<>", "<", "<=", ">", ">="):
            yield Production("bool", f"({{0}} {operator} {{1}})", (kind, kind))
        yield Production("bool", "({0} IS DISTINCT FROM {1})", (kind, kind))
        yield Production("bool", "({0} BETWEEN {1} AND {2})", (kind, kind, kind))
        yield Production("bool", "({0} IN ({1}, {2}))", (kind, kind, kind))
        yield Production("bool", "({0} NOT IN ({1}, {2}))", (kind, kind, kind))
        if kind not in ("uuid", "bool", "char"):
            yield Production(kind, "greatest({0}, {1})", (kind, kind))
            yield Production(kind, "least({0}, {1}, {2})", (kind, kind, kind))
    for kind in _EVERY:
        yield Production("bool", "({0} IS NULL)", (kind,))
        yield Production(kind, "coalesce({0}, {1})", (kind, kind))
        yield Production(kind, "CASE WHEN {0} THEN {1} ELSE {2} END", ("bool", kind, kind))
        yield Production("text", "({0})::text", (kind,))
        yield Production("text", "concat({0}, {1})", (kind, "text"))
    for kind in ("mood", "jsonb", "inet", "int4[]", "text[]", "interval", "bare"):
        yield Production("bool", "({0} = {1})", (kind, kind))
        yield Production("bool", "({0} < {1})", (kind, kind))
    for kind in COMPARED:
        yield Production(kind, "nullif({0}, {1})", (kind, kind))
        yield Production(kind, "CASE {0} WHEN {1} THEN {2} END", ("int4", "int4", kind))


_CASTS = {
    "int2": ("int4", "int8", "numeric", "float4", "float8"),
    "int4": ("int2", "int8", "numeric", "float4", "float8", "bool", "text"),
    "int8": ("int2", "int4", "numeric", "float4", "float8", "text"),
    "numeric": ("int2", "int4", "int8", "text"),
    "float4": ("int2", "int4", "int8", "numeric", "float8", "text"),
    "float8": ("int2", "int4", "int8", "numeric", "float4", "text"),
    "bool": ("int4", "text"),
    "date": ("timestamp", "timestamptz", "text"),
    "timestamp": ("date", "timestamptz", "text"),
    "timestamptz": ("date", "timestamp"),
    "time": ("timestamp", "text"),
    "bytea": ("text",),
    "char": ("text",),
}
_ROWS = """
bool: ({0} AND {1}) bool bool ; ({0} OR {1}) bool bool ; (NOT {0}) bool ; ({0} IS TRUE) bool ; ({0} IS NOT FALSE) bool
bool: ({0} LIKE 'a%') text ; ({0} LIKE '%\\_%') text ; ({0} NOT LIKE 'a_%') text ; ({0} ILIKE 'A%') text
bool: ({0} LIKE {1}) text text ; ({0} ~ '^[a-z]+') text ; ({0} ~* 'A') text ; ({0} !~ '[0-9]') text
bool: ({0} ~ 'a|bc') text ; ({0} !~* '(x|Y)+$') text ; ({0} = ANY({1})) int4 int4[] ; ({0} > ALL({1})) int4 int4[]
text: ({0} || {1}) text text ; ({0} || {1}) text int4 ; ({0} || {1}) text date ; ({0} || {1}) char text
text: substring({0} from {1} for {2}) text int4 int4 ; trim({0}) text ; trim(both 'xa ' from {0}) text
text: trim(leading from {0}) text ; lpad({0}, {1} % 20) text int2 ; rpad({0}, {1} % 20, {2}) text int2 text
text: repeat({0}, {1} % 4) text int2 ; regexp_replace({0}, '([a-z])([0-9])', '\\2\\1', 'gi') text
text: overlay({0} placing {1} from {2}) text text int4 ; to_char({0}, 'DD.MM.YYYY') date
text: array_to_string({0}, ',') text[] ; concat({0}, {1}, {2}) bool float8 timestamp
text: concat_ws({0}, {1}, {2}) text text bool
text: ({0} ->> 'a') jsonb ; to_char({0}, 'FM999.00') numeric
text: concat_ws(', ', {0}, {1}) int4 numeric
text: ({0} || {1}) text bool ; ({0} || {1}) text float8 ; ({0})[1] text[] ; ({0} || {1}) int8 text
text: CASE {0} WHEN {1} THEN {2} ELSE 'none' END text text text
int4: char_length({0}) char ; position({0} in {1}) text text ; ({0} - {1}) date date ; array_length({0}, 1) int4[]
int4: cardinality({0}) text[] ; ({0})[1] int4[] ; ({0})[{1}] int4[] int4 ; array_position({0}, {1}) int4[] int4
int4: num_nulls({0}, {1}) text int4 ; num_nonnulls({0}, {1}, {2}) date bool jsonb
int4: ({0} & {1}) int4 int4 ; ({0} # {1}) int4 int4 ; (~ {0}) int4 ; ({0} << 2) int4 ; ({0} >> 1) int4
int8: ({0} & {1}) int8 int8 ; ({0} | {1}) int8 int8 ; ({0} << {1} % 8) int8 int2
numeric: ({0})::numeric(12,2) int4 ; ({0})::numeric(10,1) numeric ; ({0})::numeric int4 ; ({0})::numeric(14,2) float8
numeric: ({0})::numeric(10,2) text ; extract(year from {0}) date ; extract(month from {0}) timestamp
numeric: extract(dow from {0}) date ; extract(epoch from {0}) timestamp ; extract(second from {0}) timestamp
numeric: extract(week from {0}) timestamptz ; extract(isoyear from {0}) date ; extract(quarter from {0}) timestamptz
numeric: extract(doy from {0}) timestamp ; extract(hour from {0}) time ; extract(century from {0}) date
numeric: extract(day from {0}) date ; extract(epoch from {0}) date ; extract(milliseconds from {0}) time
numeric: extract(decade from {0}) timestamptz ; extract(minute from {0}) timestamptz ; trunc({0}, 1) numeric
date: ({0} + {1}) date int2 ; ({0} - {1}) date int2 ; make_date(2000 + {0} % 900, 2, 3) int2 ; ({1} + {0}) date int2
timestamp: ({0} + {1}) date interval ; ({0} + {1}) timestamp interval ; ({0} - {1}) timestamp interval
timestamp: ({0} + {1}) date time ; ({0} AT TIME ZONE 'Europe/Berlin') timestamptz ; ({0} - {1} * 2) timestamp interval
timestamptz: ({0} AT TIME ZONE 'UTC') timestamp ; ({0} + {1}) timestamptz interval ; to_timestamp({0}) int4
timestamptz: ({0} AT TIME ZONE 'Europe/Berlin') timestamp ; ({0} - {1}) timestamptz interval
interval: ({0} - {1}) timestamp timestamp ; ({0} * 2) interval ; (- {0}) interval ; ({0} + {1}) interval interval
time: ({0} + {1}) time interval
int4[]: ({0} || {1}) int4[] int4[] ; array_append({0}, {1}) int4[] int4 ; array_remove({0}, {1}) int4[] int4
int4[]: ({0})[1:2] int4[] ; ARRAY[{0}, {1}] int4 int4
text[]: string_to_array({0}, ',') text ; array_prepend({0}, {1}) text text[] ; ARRAY[{0}, {1}] text text
jsonb: ({0} -> 'a') jsonb ; ({0} #> '{{b,c}}') jsonb
bytea: ({0} || {1}) bytea bytea
text: encode({0}, 'base64') bytea ; encode({0}, 'hex') bytea
int4[]: array_replace({0}, {1}, {2}) int4[] int4 int4 ; array_cat({0}, {1}) int4[] int4[]
"""
"""``type: text arguments ; …``"""


def _rows(text: str) -> Iterator[Production]:
    for line in filter(None, text.splitlines()):
        kind, _, productions = line.partition(": ")
        for each in productions.split(" ; "):
            words = each.split(" ")
            count = len({word for word in ("{0}", "{1}", "{2}") if word in each})
            yield Production(kind, " ".join(words[: len(words) - count]), tuple(words[len(words) - count :]))


def productions() -> Iterator[Production]:
    yield from _operators()
    for kind, sources in _CASTS.items():
        for source in sources:
            yield Production(kind, f"({{0}})::{_WRITTEN.get(kind, kind)}", (source,))
    yield from _rows(_ROWS)
    for row in computed_rows():
        if row.kind == "scalar" and row.name not in INSTEAD and not any("any" in each for each in row.takes):
            yield from _of_row(row)


def _of_row(row: Row) -> Iterator[Production]:
    """A function of the translation's table."""
    takes = [each.rstrip("*") for each in row.takes]
    kinds = [each for each in takes if not each.endswith(" constant")]
    gives = (
        kinds[0] if row.gives == "same" else row.gives.name if isinstance(row.gives, PgType) else "numeric"
    )
    element = row.gives.element if isinstance(row.gives, PgType) else None
    wanted = len(takes) - len(kinds)
    for constants in CONSTANTS_OF[row.name] if wanted else [()]:
        if len(constants) == wanted:
            left, places = list(constants), iter(range(len(kinds)))
            words = [left.pop(0) if each.endswith(" constant") else f"{{{next(places)}}}" for each in takes]
            yield Production(
                f"{element.name}[]" if element else gives, f"{row.name}({', '.join(words)})", tuple(kinds)
            )


_WRITTEN = {
    "int2": "smallint",
    "int4": "integer",
    "float4": "real",
    "float8": "double precision",
    "char": "char(5)",
}


@dataclass(slots=True)
class Generator:
    """Expressions of every type, up to ``depth`` productions deep."""

    seed: int
    depth: int = 4
    _by_type: dict[str, list[Production]] = field(default_factory=lambda: defaultdict(list))
    _leaves: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    _rng: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self._rng.seed(self.seed)
        for each in productions():
            self._by_type[each.type].append(each)
        for kind, names in COLUMNS.items():
            self._leaves[_OF_COLUMN.get(kind, kind)] += names

    def expression(self) -> str:
        """One of a type that is drawn first, so that the many productions of one type hide no other. A projection shows
        ``char(n)`` without its padding, as its cast to text."""
        kind = self._rng.choice(list(self._by_type))
        found = self._of(self._rng.choice(self._by_type[kind]), self._rng.randint(1, self.depth))
        return f"({found})::text" if kind == "char" else found

    def _of(self, production: Production, depth: int) -> str:
        return production.text.format(*(self._value(kind, depth - 1) for kind in production.arguments))

    def _value(self, kind: str, depth: int) -> str:
        inner = [each for each in self._by_type[kind] if not each.is_inexact]
        if depth > 0 and inner and self._rng.random() < 0.8:
            return self._of(self._rng.choice(inner), depth)
        constants = CONSTANTS.get(kind, ())
        if constants and (kind not in self._leaves or self._rng.random() < 0.3):
            return self._rng.choice(constants)
        return self._rng.choice(self._leaves[kind])
