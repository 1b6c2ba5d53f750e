"""Values of every type that a server knows: hand-picked edges of the base types, and what the server itself makes of
them (arrays, ranges, multiranges, composites, domains, and values whose binary form was changed at random).

A value is a parameter: its text or its binary form, as the type's input or receive function takes it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import psycopg
from psycopg import pq, sql
from psycopg.pq import Format

LONG_TEXT = 300  # longer values are not built into arrays, ranges and composites, nor changed at random

WORDS = ["", " ", "YES", "NULL", "null", "a", "ab ,{}\"\\\t\n'", "\\N", "\\.", "\r", "\r\n", "x\r", '"', '""', "'",
         "äß€漢😀\u0301\u200b", "\u00a0", "\u2003x\u2003", "\ufeff", "\u0085", "\x01\x1f\x7f", "t", "f", "{}", "{a}",
         "-0", "x" * 5000, "ä" * 3000]  # fmt: skip
JSONS = ['{}', '[]', 'null', '"\\u00e4\\n\\"\\\\\\/\\b\\f\\r\\t"', '{"b" : 1,"b":2,  "a": [null, "ä", 1e400]}', '1e2',
         '"\\ud83d\\ude00"', '-0.0', '[1.0, 100000000000000000000.00000000000001]', '{"": {"\\"": "\\\\"}}',
         '"%s"' % ("y" * 9000)]  # fmt: skip
FLOATS = ["0", "-0", "NaN", "Infinity", "-Infinity", "0.1", "1e-30", "123456.789", "1.1754944e-38", "3.4028235e+38",
          "1e-45", "16777217", "1000000", "100000"]  # fmt: skip
NUMERICS = ["0", "-1", "0.00", "NaN", "Infinity", "-Infinity", "1e100", "-0.000000000000000000000000000000000000001",
            "99999999999999999999999999999999999999", "100000000000000000000000000000000000000", "0.1", "1.50",
            "12345678901234567890.123456789", "9" * 100_000, "0." + "0" * 16_000 + "1"]  # fmt: skip
DAYS = ["infinity", "-infinity", "4713-11-24 BC", "0044-03-15 BC", "0001-12-31 BC", "0001-01-01", "9999-12-31",
        "10000-01-01", "5874897-12-31", "1969-12-31", "1970-01-01", "2000-02-29", "2000-01-01"]  # fmt: skip
CLOCKS = ["00:00:00", "24:00:00", "23:59:59.999999", "12:34:56.5", "00:00:00.000001"]
MOMENTS = ["infinity", "-infinity", "4713-11-24 00:00:00 BC", "0044-03-15 12:00:00.5 BC", "0001-01-01 00:00:00",
           "9999-12-31 23:59:59.999999", "10000-01-01 00:00:00", "294276-12-31 23:59:59.999999",
           "1969-12-31 23:59:59.999999", "2000-01-01 00:00:00", "1883-11-18 12:03:58"]  # fmt: skip
INTERVALS = ["0", "1 year 2 mons -3 days 04:05:06.7", "-1 year -2 mons +3 days -04:05:06.000001", "-00:00:00.000001",
             "178956970 years 7 mons", "-178956970 years -8 mons", "2147483647 days", "-2147483648 days",
             "2562047788:00:54.775807", "-2562047788:00:54.775807", "infinity", "-infinity", "1 day -1 hour",
             "-1 mon 1 day"]  # fmt: skip

EDGES: dict[str, Sequence[str]] = {
    "boolean": ["t", "f"],
    "bytea": ["", "\\x", "\\x00", "\\x5c27220a0d", "\\xdeadbeef", "\\x" + "00ff" * 40_000],
    '"char"': ["", " ", "a", "\\", '"', "\\377", "\n"],
    "name": ["", "a", "ä", 'a "b"', "x" * 63, "{}"],
    "bigint": ["0", "-9223372036854775808", "9223372036854775807", "1"],
    "smallint": ["0", "-32768", "32767"],
    "integer": ["0", "-2147483648", "2147483647"],
    "int2vector": ["", "1 2 3", "-1"],
    "oidvector": ["", "1 2 4294967295"],
    "oid": ["0", "4294967295"],
    "text": WORDS,
    "character varying": WORDS,
    "character": WORDS,
    "bpchar": WORDS,
    "refcursor": ["", "c 1"],
    "json": [*JSONS, ' { "a":\n1 } ', '"\\u0000"', '"\\ud800"'],
    "jsonb": JSONS,
    "jsonpath": ["$", '$."a b"[*] ? (@.x > 1.50 && @ like_regex "^a\\"" flag "i")', "strict $.**{2 to 3}"],
    "tid": ["(0,0)", "(4294967295,65535)"],
    "xid": ["0", "4294967295"],
    "cid": ["0", "4294967295"],
    "xid8": ["0", "18446744073709551615"],
    "pg_lsn": ["0/0", "FFFFFFFF/FFFFFFFF"],
    "pg_snapshot": ["10:20:10,14,15", "1:1:"],
    "txid_snapshot": ["10:20:10,14,15", "1:1:"],
    "real": FLOATS,
    "double precision": [*FLOATS, "5e-324", "1.7976931348623157e+308", "41965269646720784", "1e15"],
    "numeric": NUMERICS,
    "money": ["0", "-92233720368547758.08", "92233720368547758.07", "-0.01", "1234567.89"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "date": DAYS,
    "time without time zone": CLOCKS,
    "time with time zone": [f"{clock}{zone}" for clock in CLOCKS for zone in ("+00", "+15:59:59", "-15:59:59")],
    "timestamp without time zone": MOMENTS,
    "timestamp with time zone": [*MOMENTS, "2026-03-29 02:30:00+05:45"],
    "interval": INTERVALS,
    "bit": ["0", "1"],
    "bit varying": ["", "0", "10110", "1" * 1000],
    "inet": ["0.0.0.0/0", "10.0.0.1/8", "255.255.255.255", "::", "::ffff:1.2.3.4/96", "2001:db8::1"],
    "cidr": ["10.0.0.0/8", "::/0", "2001:db8::/32"],
    "macaddr": ["00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"],
    "macaddr8": ["00:00:00:00:00:00:00:00", "08:00:2b:01:02:03:04:05"],
    "point": ["(0,-0)", "(NaN,Infinity)", "(1e-300,0.1)"],
    "lseg": ["[(0,0),(1,1)]"],
    "box": ["(1,1),(0,0)", "(Infinity,2),(-0,1)"],
    "path": ["((0,0),(1,1),(2,0))", "[(0,0),(1,0.1)]"],
    "polygon": ["((0,0),(1,1),(2,0))"],
    "line": ["{1,-1,0}", "{0,1e-300,2}"],
    "circle": ["<(0,0),0>", "<(1,2.5),Infinity>"],
    "tsvector": ["", "'a':1A,2 'b c':3B '''\\\\':65535", "ä"],
    "tsquery": ["", "'a' & !( 'b':*AB <2> 'c d' | '''' )"],
    "aclitem": ["postgres=arwdDxt/postgres", "=r*/postgres"],
    "regproc": ["-", "pg_catalog.now", "12345678"],
    "regprocedure": ["-", "pg_catalog.abs(integer)", "12345678"],
    "regoper": ["0", "12345678"],
    "regoperator": ["0", "pg_catalog.+(integer,integer)", "12345678"],
    "regclass": ["-", "pg_catalog.pg_class", "12345678", 'public."odd ""table"""'],
    "regtype": ["-", "integer", "timestamp with time zone[]", "12345678"],
    "regrole": ["-", "postgres", "12345678"],
    "regnamespace": ["-", "pg_catalog", "12345678"],
    "regcollation": ["-", 'pg_catalog."C"', "12345678"],
    "regconfig": ["-", "pg_catalog.simple", "12345678"],
    "regdictionary": ["-", "pg_catalog.simple", "12345678"],
    "regdatabase": ["-", "postgres", "12345678"],
    "xml": ["", "a &amp; b", "<a b=\"c\">ä<!-- x --><![CDATA[<]]></a>", "<a/><b/>",
            '<?xml version="1.0" encoding="ISO-8859-1" standalone="yes"?><a>ä</a>'],
    # What extensions bring.
    "hstore": ["", '"a"=>NULL, "b"=>"NULL", ""=>"", "\\"\\\\ ä"=>"x,=>y"'],
    "citext": WORDS,
    "ltree": ["", "a.B.c_1", "Top.Science"],
    "lquery": ["a.*{1,2}.!b@*|c%", "*"],
    "ltxtquery": ["a & !(b@ | c*%)"],
    "cube": ["(6378168, 0, 0)", "(0)", "(1, 2, 3)", "(0, -0, NaN),(1, 2, 3)", "()"],
    "seg": ["1.0", "1.500 .. 2e3", "< 5", "~7.00", ".. 3", "1 .."],
    "query_int": ["1", "1&(2|!3)"],
    "lo": ["0", "4294967295"],
    "ean13": ["978-0-11-000533-4", "978-0-11-000533-4!"],
    "isbn13": ["978-0-393-04002-9"],
    "ismn13": ["979-0-2306-7118-7"],
    "issn13": ["977-1436-452-00-8"],
    "isbn": ["0-393-04002-X"],
    "ismn": ["M-2306-7118-7"],
    "issn": ["1436-4522"],
    "upc": ["220356483481"],
    "vector": ["[1,2.5,-0]", "[1e-30]", "[3.4028235e+38]"],
    "halfvec": ["[1,2.5,-0]", "[65504]"],
    "sparsevec": ["{1:1,3:2.5}/5", "{}/3"],
    "own_integer": ["0", "-2147483648"],
}  # fmt: skip
EDGES_BY_TYPMOD: dict[str, Sequence[str]] = {
    "numeric(12,2)": [*NUMERICS[:4], "-9999999999.99", "9999999999.99"],
    "numeric(38,38)": ["NaN", "0", "-0." + "9" * 38],
    "numeric(38,0)": ["9" * 38, "-1"],
    "numeric(39,2)": ["9" * 37 + ".99"],
    "numeric(1000,500)": ["1" * 500 + "." + "7" * 500],
    "character(10)": ["", "a", "ä", "  x", "0123456789"],
    "character varying(3)": ["", "ä€漢", "   "],
    "bit(3)": ["101", "000"],
    "bit varying(5)": ["", "10101"],
    "time(2) without time zone": ["24:00:00", "12:34:56.78"],
    "timestamp(0) without time zone": ["2026-11-20 12:34:56", "infinity"],
    "timestamp(3) with time zone": ["2026-11-20 12:34:56.789+00", "0044-03-15 00:00:00+00 BC"],
    "interval year to month": ["1 year 2 mons"],
    "interval day to second(2)": ["1 day 02:03:04.05"],
}
EDGES_SINCE_15: dict[str, Sequence[str]] = {
    "numeric(5,-2)": ["12300", "-9999900", "NaN"],
    "numeric(2,5)": ["0.00099"],
}
EDGES_OF_VECTORS: dict[str, Sequence[str]] = {
    "public.vector(3)": ["[1,2.5,-0]", "[1e-30,3.4028235e+38,1e-45]"],
    "public.halfvec(3)": ["[1,2.5,-0]", "[65504,6e-8,0.1]"],
    "public.sparsevec(5)": ["{1:1,3:2.5}/5", "{}/5"],
}
NO_INPUT = frozenset({
    "cstring", "pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list", "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary", "gtsvector", "gtrgm", "ghstore", "ltree_gist", "intbig_gkey", "gbtreekey2",
    "gbtreekey4", "gbtreekey8", "gbtreekey16", "gbtreekey32", "gbtreekey_var",
})  # fmt: skip
"""Types whose input function refuses every text, or that no column may have."""

USER_TYPES = r'''
CREATE TYPE public."Mood ""x""" AS ENUM ('glad', 'so, so', E'ä"\\', '', 'NULL');
CREATE DOMAIN public.positive AS integer CHECK (VALUE > 0);
CREATE DOMAIN public.more_positive AS public.positive CHECK (VALUE > 1);
CREATE DOMAIN public.numbers AS integer[];
CREATE DOMAIN public.amount AS numeric(9,2);
CREATE DOMAIN public.words AS text;
CREATE TYPE public.pair AS (a integer, "B ""b""" text);
CREATE TYPE public.nested AS
  (p public.pair, many public.pair[], day date, gone text, m public."Mood ""x""", r int4range);
ALTER TYPE public.nested DROP ATTRIBUTE gone;
CREATE DOMAIN public.valid_pair AS public.pair CHECK ((VALUE).a IS DISTINCT FROM 0);
CREATE TYPE public.float_range AS RANGE (subtype = float8);
CREATE TYPE public.text_range AS RANGE (subtype = text, collation = "C");
CREATE TYPE public.own_integer;
CREATE FUNCTION public.own_in(cstring) RETURNS public.own_integer IMMUTABLE STRICT LANGUAGE internal AS 'int4in';
CREATE FUNCTION public.own_out(public.own_integer) RETURNS cstring IMMUTABLE STRICT LANGUAGE internal AS 'int4out';
CREATE TYPE public.own_integer (INPUT = public.own_in, OUTPUT = public.own_out, LIKE = integer);
CREATE TABLE public."odd ""table""" (a integer, b public.pair);
'''

_TYPES = """
SELECT t.oid::bigint, pg_catalog.format_type(t.oid, -1), t.typname, t.typtype::text, t.typbasetype::bigint,
       coalesce((SELECT e.oid FROM pg_catalog.pg_type e WHERE e.typarray = t.oid), 0)::bigint,
       coalesce((SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid), 0)::bigint,
       coalesce((SELECT r.rngtypid FROM pg_catalog.pg_range r WHERE r.rngmultitypid = t.oid), 0)::bigint,
       ARRAY(SELECT ARRAY[a.atttypid::bigint, a.atttypmod] FROM pg_catalog.pg_attribute a
             WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
       coalesce(c.relkind, 'c') <> 'c' AND c.relname <> 'odd "table"'
FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN pg_catalog.pg_type e ON e.typarray = t.oid
LEFT JOIN pg_catalog.pg_class c ON c.oid = CASE WHEN t.typrelid <> 0 THEN t.typrelid ELSE e.typrelid END
WHERE t.typtype IN ('b', 'c', 'd', 'e', 'r', 'm') AND t.typisdefined
ORDER BY t.oid
"""


@dataclass(frozen=True, slots=True)
class Value:
    """A parameter of its type."""

    data: bytes
    binary: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    """A type as a column may have it, and values of it."""

    name: str
    oid: int
    values: tuple[Value, ...]
    system: bool = False
    """A row of a table or view of the system's."""


@dataclass
class Catalog:
    """The types of a server's database, and values of each. The session must have capture's settings."""

    connection: psycopg.Connection[Any]
    seed: int
    changed: int
    """How many values whose binary form was changed at random are made of each type."""
    system_rows: bool = False
    """Also the row types of tables and views, of which the system and extensions have hundreds."""
    without_values: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        rows = self.connection.execute(_TYPES).fetchall()
        self._types = {
            row[0]: row for row in rows if not row[-1] or (self.system_rows and self._stored(row[1]))
        }
        self._texts: dict[int, list[str]] = {}

    def _stored(self, name: str) -> bool:
        """Whether a table may have such a column: not of rows that hold an anyarray somewhere, as pg_statistic's do."""
        made = self.connection.pgconn.exec_(f"CREATE TEMP TABLE probe (c {name}); DROP TABLE probe".encode())
        return made.status == pq.ExecStatus.COMMAND_OK

    def kinds(self) -> list[Kind]:
        """Every type of which there are values, then some with type modifiers."""
        found = []
        for oid, row in self._types.items():
            texts = self.texts(oid)
            if texts:
                found.append(self._kind(row[1], oid, texts, system=bool(row[-1])))
            else:
                self.without_values.append(row[2].removeprefix("_"))
        for name, edges in self._with_typmod().items():
            (oid,) = self.connection.execute(
                sql.SQL("SELECT %s::regtype::oid::bigint"), [name]
            ).fetchone() or (0,)
            found.append(Kind(name, oid, _as_values(edges)))
            elements = [f"{_literal(edge)}::{name}" for edge in edges]
            arrays = self._evaluate([f"{expression}::{name}[]" for expression in _arrays(elements)])
            found.append(Kind(f"{name}[]", self._array_of(oid), _as_values(arrays)))
        return found

    def _with_typmod(self) -> dict[str, Sequence[str]]:
        found = dict(EDGES_BY_TYPMOD)
        if self.connection.info.server_version >= 150_000:
            found |= EDGES_SINCE_15
        if any(row[2] == "vector" for row in self._types.values()):
            found |= EDGES_OF_VECTORS
        return found

    def _array_of(self, oid: int) -> int:
        return next(int(number) for number, row in self._types.items() if row[5] == oid)

    def _kind(self, name: str, oid: int, texts: list[str], *, system: bool) -> Kind:
        short = [text for text in texts if len(text) < LONG_TEXT]
        return Kind(name, oid, (*_as_values(texts), *self._changed(name, oid, short)), system)

    def texts(self, oid: int) -> list[str]:
        """Values of a type as texts of its output function."""
        if oid not in self._texts:
            self._texts[oid] = []  # a type inside itself ends there
            self._texts[oid] = list(dict.fromkeys(self._evaluate(self._expressions(oid))))
        return self._texts[oid]

    def _short(self, oid: int) -> list[str]:
        if oid not in self._types:  # a pseudo-type
            return []
        name = self._types[oid][1]
        return [f"{_literal(text)}::{name}" for text in self.texts(oid) if len(text) < LONG_TEXT]

    def _expressions(self, oid: int) -> list[str]:
        row = self._types.get(oid)
        if row is None:
            return []
        _, name, bare, kind, base, element, subtype, of_range, fields, *_ = row
        if element:
            return [f"{expression}::{name}" for expression in _arrays(self._short(element))]
        if kind == "r":
            return [*_ranges(name, self._short(subtype))]
        if kind == "m":
            ranges = self._short(of_range)
            return [f"{name}()", *(f"{name}({one})" for one in ranges), f"{name}({', '.join(ranges[:6])})"]
        if kind == "d":  # twice: timestamptz(2) rounds the last second up to what its input function refuses
            texts = self._evaluate(f"{_literal(text)}::{name}" for text in self.texts(base))
            return [f"{_literal(text)}::{name}" for text in texts]
        if kind == "e":
            labels = self.connection.execute(sql.SQL("SELECT unnest(enum_range(NULL::" + name + "))::text"))
            return [f"{_literal(label)}::{name}" for (label,) in labels.fetchall()]
        if kind == "c":
            return [*_composites(name, [self._short(number) for number, _ in fields])]
        if bare not in NO_INPUT and name not in EDGES and bare not in EDGES:
            raise AssertionError(f"no edge values of type {name}")
        return [f"{_literal(text)}::{name}" for text in EDGES.get(name, EDGES.get(bare, ()))]

    def _evaluate(self, expressions: Iterable[str]) -> list[str]:
        """Output texts of those expressions that the server takes."""
        texts = []
        for expression in expressions:
            result = self.connection.pgconn.exec_(f"SELECT {expression}".encode())
            if result.status == pq.ExecStatus.TUPLES_OK:
                text = result.get_value(0, 0)
                if text is not None:
                    texts.append(text.decode())
        return texts

    def _changed(self, name: str, oid: int, texts: Sequence[str]) -> Iterator[Value]:
        """Binary forms with a few bits or bytes changed that the type's receive function takes."""
        rng = random.Random(f"{name} {self.seed}")
        forms = []
        for text in texts:
            query = f"SELECT {_literal(text)}::{name}".encode()
            result = self.connection.pgconn.exec_params(query, None, result_format=Format.BINARY)
            if result.status != pq.ExecStatus.TUPLES_OK:
                return  # the type has no send function
            forms.append(result.get_value(0, 0) or b"")
        found = set(forms)
        for _ in range(self.changed if forms else 0):
            form = _changed(rng, rng.choice(forms))
            if form in found:
                continue
            found.add(form)
            result = self.connection.pgconn.exec_params(b"SELECT $1", [form], [oid], [Format.BINARY])
            if result.status == pq.ExecStatus.TUPLES_OK:
                yield Value(form, binary=True)


def _as_values(texts: Iterable[str]) -> tuple[Value, ...]:
    return tuple(Value(text.encode()) for text in texts)


def _literal(text: str) -> str:
    return sql.Literal(text).as_string(None)


def _arrays(elements: Sequence[str]) -> Iterator[str]:
    if not elements:
        return
    first, last = elements[0], elements[-1]
    yield "'{}'"
    yield "ARRAY[NULL]"
    yield f"ARRAY[{', '.join(elements[:8])}, NULL]"
    yield from (f"ARRAY[{one}]" for one in elements)
    yield f"ARRAY[[{first}, {last}], [NULL, {first}]]"
    yield f"ARRAY[[[{last}]]]"
    yield f"array_fill({first}, ARRAY[2], ARRAY[-3])"
    yield f"array_fill({last}, ARRAY[1, 2, 1], ARRAY[0, 5, -1])"


def _ranges(name: str, bounds: Sequence[str]) -> Iterator[str]:
    yield f"'empty'::{name}"
    yield f"{name}(NULL, NULL)"
    for low, high in pairwise(bounds):
        yield f"{name}(least({low}, {high}), greatest({low}, {high}))"
    for one in bounds:
        yield f"{name}({one}, {one}, '[]')"
        yield f"{name}({one}, NULL, '()')"
        yield f"{name}(NULL, {one}, '(]')"


def _composites(name: str, fields: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"ROW({', '.join(['NULL'] * len(fields))})::{name}"
    for number in range(max(map(len, fields), default=0) and 4):
        cells = [values[number % len(values)] if values else "NULL" for values in fields]
        yield f"ROW({', '.join(cells)})::{name}"


def _changed(rng: random.Random, form: bytes) -> bytes:
    data = bytearray(form)
    for _ in range(rng.choice([1, 1, 2, 4, 8])):
        if data:
            at = rng.randrange(len(data))
            data[at] = rng.choice([rng.randrange(256), data[at] ^ 1 << rng.randrange(8), 0, 0xFF])
    return bytes(data)
