"""One table with two columns of every type, filled with values that are easily compared or sorted otherwise than
Postgres does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ROWS = 8
PREPARED = """
CREATE EXTENSION citext SCHEMA public;
CREATE EXTENSION hstore SCHEMA public;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy', 'Happy');
CREATE TYPE pair AS (a int, b text);
CREATE TYPE span AS RANGE (subtype = numeric);
CREATE DOMAIN counted AS int;
CREATE DOMAIN priced AS numeric(10,2);
CREATE DOMAIN weighed AS numeric;
CREATE DOMAIN coded AS char(4);
CREATE DOMAIN recounted AS counted CHECK (value < 1000000);
"""


@dataclass(frozen=True)
class Kind:
    """Two columns of a type, ``NAME`` and ``NAME_2``, with ``values`` one below the other. ``literal`` is how both
    databases write one that both columns are compared with; ``other`` one more."""

    name: str
    type: str
    values: Sequence[tuple[str | None, str | None]]
    literal: str
    other: str

    @property
    def printed(self) -> str:
        """A value as a projection shows it, in Postgres: without its padding."""
        casts = {"padded": "::text", "d_coded": "::text", "padded_list": "::text[]"}
        return self.name + casts.get(self.name, "")


def kind(name: str, type_: str, values: str, others: str, literal: str, other: str = "") -> Kind:
    """``values`` and ``others`` are separated by ``|``; ∅ is NULL."""
    left, right = (
        [None if text == "∅" else text for text in column.split("|")] for column in (values, others)
    )
    assert len(left) == len(right) == ROWS, (name, len(left), len(right))
    return Kind(name, type_, list(zip(left, right, strict=True)), literal, other or literal)


KINDS = [
    kind("small", "smallint", "-1|0|10|9|∅|32767|10|-32768", "0|0|9|10|1|1|∅|-1", "10"),
    kind("whole", "integer", "-1|0|10|9|∅|100|10|-2147483648", "0|0|9|10|1|1|∅|-1", "10"),
    kind("large", "bigint", "-1|0|10|9|∅|100|10|-9223372036854775808", "0|0|9|10|1|1|∅|-1", "10"),
    kind("flag", "boolean", "t|f|t|f|∅|t|f|t", "t|t|∅|f|f|f|f|t", "true", "false"),
    kind("words", "text", "a|B|A|ä||z|∅|a ", "a |b|A|ä|∅|Z|x|a", "'a'"),
    kind("short", "varchar(10)", "a|B|A|ä||z|∅|a ", "a |b|A|ä|∅|Z|x|a", "'a'"),
    kind("padded", "char(5)", "a|B|A|ä||z|∅|abcde", "a |b|A|ä|∅|Z|x|abcd", "'a'", "'abcde'"),
    kind("letter", '"char"', "a|B|A|1|0|z|∅|b", "a|b|A|2|∅|Z|x|b", "'a'"),
    kind("named", "name", "a|B|A|ä|0|z|∅|a ", "a|b|A|ä|∅|Z|x|a", "'a'"),
    kind("bytes", "bytea", r"\x|\x00|\xff|\x7f|∅|\x61|\x6100|\x80", r"\x|\x|\xff|\x80|\x00|\x61|\x61|∅", "'a'"),
    kind("single", "real", "-0|0|1.1|NaN|Infinity|-Infinity|∅|1e10", "0|-0|1.1|NaN|1|-1|2|1e10", "0.5", "1e10"),
    kind("double", "double precision", "-0|0|1.1|NaN|Infinity|-Infinity|∅|1e10", "0|-0|1.1|NaN|1|-1|2|1e10", "1.1"),
    kind("exact", "numeric(10,2)", "-1.00|0|10|9.9|∅|100|10.01|-99999999.99", "0|0|9|10|1|1|∅|-1", "10"),
    kind("fine", "numeric(38,20)", "0.00000000000000000001|1.5|3|-2|∅|0.1|0|100", "1|1.5|3|2|1|0.1|∅|99", "3", "1.5"),
    kind("huge", "numeric(38,0)", "1|2|3|99999999999999999999999999999999999999|∅|0|-7|100", "1|3|3|2|1|0|∅|99", "3"),
    kind("bare", "numeric", "1.0|1.00|10|9|∅|-2|-10|0.10", "1|1.0|9|10|1|1|∅|0.1", "1.0", "9"),
    kind("wide", "numeric(50,2)", "1.0|1.00|10|9|∅|-2|-10|0.10", "1|1.0|9|10|1|1|∅|0.1", "1.00", "9.00"),
    kind("rounded", "numeric(5,-2)", "100|1200|99900|0|∅|-100|100|900", "100|1200|900|0|1|0|∅|900", "100"),
    kind(
        "day", "date", "2026-01-01|1969-12-31|0001-01-01|9999-12-31|∅|2000-02-29|2026-01-01|1600-02-29",
        "2026-01-01|1970-01-01|0001-01-02|9999-12-31|2000-01-01|2000-02-29|∅|1600-03-01", "'2026-01-01'",
    ),
    kind(
        "clock", "time", "00:00|23:59:59.999999|12:00|09:30|∅|12:00:00.5|12:00|01:02:03",
        "00:00|23:59:59|12:00|10:00|00:00|12:00:00.5|∅|01:02:03", "time '12:00:00'",
    ),
    kind(
        "zoned", "timetz", "12:00+00|13:00+01|09:00+00|10:00-02|∅|12:00+00|11:59+00|23:00-12",
        "12:00+00|12:00+00|09:00+00|10:00-03|12:00+00|12:00+00|∅|23:00-12", "'12:00:00+00'", "'13:00:00+01'",
    ),
    kind(
        "moment", "timestamp",
        "2026-01-01 00:00|1969-12-31 23:59:59.5|0001-01-01|9999-12-31|∅|2000-02-29 12:00|2026-01-01"
        "|1883-11-18 12:03:58",
        "2026-01-01 00:00|1970-01-01|0001-01-02|9999-12-31|2000-01-01|2000-02-29 12:00|∅|1600-03-01",
        "'2026-01-01 00:00:00'",
    ),
    kind(
        "instant", "timestamptz",
        "2026-01-01 00:00+00|2026-01-01 01:00+01|1000-01-01 00:00+00|9999-12-31 00:00+00|∅|2000-02-29 12:00+00"
        "|2026-01-01 00:00-12|1883-11-18 12:03:58+00",
        "2026-01-01 00:00+00|2026-01-01 00:00+00|1000-01-02 00:00+00|9999-12-31 00:00+00|2000-01-01 00:00+00"
        "|2000-02-29 12:00+00|∅|1600-03-01 00:00+00",
        "'2026-01-01 00:00:00+00'",
    ),
    kind(
        "period", "interval", "1 mon|30 days|1 day|24:00:00|∅|-1 day|1 year|00:00:00.5",
        "30 days|30 days|24:00|1 day|0|1 day|12 mons|∅", "'1 mon'", "'24:00:00'",
    ),
    kind(
        "ident", "uuid",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11|A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11|00000000-0000-0000-0000-000000000000"
        "|ffffffff-ffff-ffff-ffff-ffffffffffff|∅|10000000-0000-0000-0000-000000000000"
        "|0fffffff-ffff-ffff-ffff-ffffffffffff|a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11|a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11|00000000-0000-0000-0000-000000000001"
        "|ffffffff-ffff-ffff-ffff-ffffffffffff|00000000-0000-0000-0000-000000000000|∅"
        "|0fffffff-ffff-ffff-ffff-fffffffffffe|a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12",
        "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'",
    ),
    kind("feel", "mood", "sad|ok|happy|Happy|∅|sad|ok|happy", "sad|happy|happy|happy|ok|ok|∅|ok", "'ok'", "'happy'"),
    kind("coins", "money", "1|-1|1000|999.99|∅|10|9|0", "1|1|1000.5|999.99|0|9|10|∅", "'$1,000.00'", "'$9.00'"),
    kind("number", "oid", "0|10|9|4294967295|∅|100|10|1", "0|9|10|4294967295|0|1|∅|1", "'10'", "'9'"),
    kind(
        "place", "pg_lsn", "0/0|0/10|0/9|1/0|∅|F/FFFFFFFF|10/0|0/A",
        "0/0|0/9|0/10|1/0|0/0|F/FFFFFFFF|∅|0/a", "'0/10'", "'F/FFFFFFFF'",
    ),
    kind(
        "address", "inet", "10.0.0.1|10.0.0.1/32|9.0.0.0/8|10.0.0.0/24|∅|::1|10.0.0.9|192.168.0.1",
        "10.0.0.1|10.0.0.1|9.0.0.0|10.0.0.0/24|::1|::1|∅|10.0.0.9", "'10.0.0.9'", "'10.0.0.1/32'",
    ),
    kind(
        "net", "cidr", "10.0.0.0/8|9.0.0.0/8|10.1.0.0/16|::/0|∅|10.0.0.1/32|9.0.0.0/9|192.168.0.0/16",
        "10.0.0.0/8|9.0.0.0/9|10.1.0.0/16|::/0|10.0.0.0/8|10.0.0.1|∅|192.168.0.0/17", "'10.0.0.0/8'", "'10/8'",
    ),
    kind(
        "card", "macaddr",
        "08:00:2b:01:02:03|08-00-2B-01-02-03|00:00:00:00:00:00|ff:ff:ff:ff:ff:ff|∅|10:00:00:00:00:00"
        "|0f:ff:ff:ff:ff:ff|08:00:2b:01:02:04",
        "08:00:2b:01:02:03|08:00:2b:01:02:03|00:00:00:00:00:01|ff:ff:ff:ff:ff:ff|∅|10:00:00:00:00:00"
        "|0f:ff:ff:ff:ff:fe|08:00:2b:01:02:04", "'08:00:2b:01:02:03'", "'08-00-2B-01-02-04'",
    ),
    kind("bits", "bit(4)", "0000|0001|1000|0111|∅|1111|0001|1010", "0000|1000|0001|0111|0000|1110|∅|1010", "'0001'"),
    kind("varying", "varbit", "|1|10|100000000|∅|01|0|11111111", "|1|1|10000000|0|01|∅|11111111", "'10'"),
    kind(
        "document", "jsonb", '{"a":1}|{"a":1.0}|[1,2]|"x"|∅|10|9|null',
        '{"a": 1.0}|{"a":1}|[1,2]|"y"|null|9|10|∅', "'{\"a\": 1}'", "'10'",
    ),
    kind("jsontext", "json", '{"a":1}|{"a": 1}|[1,2]|"x"|∅|10|9|null', '{"a":1}|{"a":1}|[1,2]|"y"|null|9|10|∅', "'10'"),
    kind("anycase", "citext", "a|A|B|b|∅|Z|ä|", "A|a|b|b|a|z|Ä|∅", "'a'", "'B'"),
    kind("keyed", "hstore", "a=>1|b=>2|a=>1,b=>2|b=>2,a=>1|∅||a=>NULL|z=>1",
         "a=>1|b=>1|b=>2,a=>1|a=>1,b=>2||∅|a=>NULL|z=>2", "'a=>1'", "'b=>2'"),
    kind("couple", "pair", '(1,a)|(10,a)|(9,a)|(1,)|∅|(,b)|(1,A)|(2,"b c")',
         '(1,a)|(9,a)|(10,a)|(1,)|(1,a)|(,b)|∅|(2,"b c")', "'(9,a)'"),
    kind("ints", "int4range", "[1,5]|[1,6)|[10,20)|[9,20)|∅|empty|(,5)|[3,3]",
         "[1,6)|[1,6)|[9,20)|[10,20)|empty|empty|∅|[3,4)", "'[1,6)'", "'[1,5]'"),
    kind("numbers", "numrange", "[1,5]|[1.0,5.0]|[10,20)|[9,20)|∅|empty|(,5)|[3,3]",
         "[1.0,5]|[1,5]|[9,20)|[10,20)|empty|empty|∅|[3,3.0]", "'[1,5]'"),
    kind("own_range", "span", "[1,5]|[1.0,5.0]|[10,20)|[9,20)|∅|empty|(,5)|[3,3]",
         "[1.0,5]|[1,5]|[9,20)|[10,20)|empty|empty|∅|[3,3.0]", "'[1,5]'"),
    kind("ints_list", "integer[]", "{1,2}|{1}|{10}|{9}|∅|{}|{NULL,1}|{1,NULL}",
         "{1,2}|{1,0}|{9}|{10}|{}|{}|{NULL,1}|∅", "array[1]", "array[9]"),
    kind("texts_list", "text[]", "{a,b}|{a}|{B}|{A}|∅|{}|{NULL}|{a,NULL}",
         "{a,b}|{a,b}|{b}|{A}|{}|{}|{NULL}|∅", "array['a']", "array['B']"),
    kind("bare_list", "numeric[]", "{1.0,2}|{1.00}|{10}|{9}|∅|{}|{NULL}|{1,NULL}",
         "{1,2}|{1.0}|{9}|{10}|{}|{}|{NULL}|∅", "'{1.0}'", "'{9}'"),
    kind("idents_list", "uuid[]",
         "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}|{}|{NULL}|{00000000-0000-0000-0000-000000000000}|∅|{}|{}|{}",
         "{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}|{}|{NULL}|{00000000-0000-0000-0000-000000000001}|∅|∅|{}|{}", "'{}'"),
    kind("padded_list", "char(3)[]", "{a,b}|{a}|{B}|{A}|∅|{}|{NULL}|{abc}",
         "{a,b}|{a,b}|{b}|{A}|{}|{}|{NULL}|∅", "array['a']::char(3)[]", "array['abc']::char(3)[]"),
    kind("spot", "point", "(0,0)|(1,2)|(10,0)|(9,0)|∅|(-0,0)|(1,1)|(2,2)",
         "(0,0)|(1,2)|(9,0)|(10,0)|(0,0)|(0,0)|∅|(2,2)", "'(1,2)'"),
    kind("lexemes", "tsvector", "a b|b a|a|B|∅||a:1|a:2", "b a|a b|a|b|∅||a:1|a:1", "'a b'", "'b a'"),
    kind("d_counted", "counted", "-1|0|10|9|∅|100|10|-2147483648", "0|0|9|10|1|1|∅|-1", "10"),
    kind("d_again", "recounted", "-1|0|10|9|∅|100|10|-2147483648", "0|0|9|10|1|1|∅|-1", "10"),
    kind("d_priced", "priced", "-1.00|0|10|9.9|∅|100|10.01|-99999999.99", "0|0|9|10|1|1|∅|-1", "10"),
    kind("d_weighed", "weighed", "1.0|1.00|10|9|∅|-2|-10|0.10", "1|1.0|9|10|1|1|∅|0.1", "1.0", "9"),
    kind("d_coded", "coded", "a|B|A|ä||z|∅|abcd", "a |b|A|ä|∅|Z|x|abc", "'a'", "'abcd'"),
]  # fmt: skip
