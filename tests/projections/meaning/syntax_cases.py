"""An expression for each operator and form that people write, over the columns of ``x``: computed, or refused with what
to write. The page of the manual shows them."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.projections.definition.sql.postgres.scope import Columns
from tailrace.projections.definition.sql.postgres.types.types import (
    BOOL,
    BYTEA,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    PgType,
    array_of,
    numeric,
)
from tests.projections.meaning.expression_rows import COLUMNS

_SHOWN: Mapping[str, PgType] = {
    "bool": BOOL, "int2": INT2, "int4": INT4, "int8": INT8, "float4": FLOAT4, "float8": FLOAT8,
    "numeric(12,2)": numeric(12, 2), "numeric(20,6)": numeric(20, 6), "date": DATE, "time": TIME,
    "timestamp": TIMESTAMP, "timestamptz": TIMESTAMPTZ, "bytea": BYTEA, "int4[]": array_of(INT4),
    "text[]": array_of(TEXT),
}  # fmt: skip
X: Columns = (
    ("id", INT8),
    *((name, _SHOWN.get(kind, TEXT)) for kind, names in COLUMNS.items() for name in names),
)
"""The columns of ``x`` as a query sees them."""

SYNTAX: Mapping[str, Mapping[str, str]] = {
    "Numbers": {
        "integer arithmetic, which fails when it overflows": "i1 % 1000 + s1 * 2 - 7",
        "integer division, without a remainder": "i1 / nullif(s2, 0)",
        "remainder, with the sign of the first": "i1 % nullif(s2, 0)",
        "arithmetic of numerics, with all digits": "n1 * m2 + 1.50",
        "division of numerics, rounded": "round(n1 / nullif(n2, 0), 3)",
        "arithmetic of floats": "f1 * 2 - r1",
        "NaN divided by zero, which is NaN": "'NaN'::float8 / 0",
        "power, of floats": "abs(f1) ^ 0.5::float8",
        "power, of numerics": "n1 ^ 2.0",
        "bits": "(i1 & 255) | (s1 # ~ s2)",
        "bits, shifted by a constant": "i1 << 3 >> 1",
        "operators of bits, from left to right": "i1 | i2 & 12 # 5",
        "numeric to integer, half away from zero": "(n1 % 1000)::integer",
        "float to integer, half to even": "CASE WHEN abs(f1) < 1e9 THEN f1::integer END",
        "text to a number": "CASE WHEN t1 ~ '^[0-9]{1,5}$' THEN t1::integer END",
        "a number to text": "i1::text || n1::text",
        "a float to text": "f1::text",
        "a float to numeric": "f1::numeric(12,2)",
    },
    "Truth and NULL": {
        "AND, OR, NOT with NULL": "b1 AND (b2 OR NOT b1)",
        "IS TRUE, IS NOT FALSE, IS NULL": "b1 IS TRUE OR b2 IS NULL",
        "IS DISTINCT FROM": "i1 IS DISTINCT FROM s2",
        "IN with NULL, as a value": "i1 IN (1, 2, NULL)",
        "BETWEEN": "d1 BETWEEN date '2000-01-01' AND d2",
        "BETWEEN SYMMETRIC": "i1 BETWEEN SYMMETRIC 5 AND 1",
        "CASE": "CASE WHEN i1 > 0 THEN 'more' WHEN i1 = 0 THEN 'none' ELSE 'less' END",
        "coalesce, nullif, greatest, least": "coalesce(nullif(i1, 1), greatest(s1, s2), least(1, i2))",
    },
    "Texts": {
        "|| with NULL": "t1 || '-' || t2",
        "|| with a number or a date": "t1 || i1 || d1",
        "LIKE, with \\ as escape": r"t1 LIKE '%\_%'",
        "LIKE with a computed pattern": "t1 LIKE left(t1, 1) || '%'",
        "LIKE with another escape": "t1 LIKE 'a!_%' ESCAPE '!'",
        "ILIKE": "t1 ILIKE 'H%'",
        "~, ~*, !~": "t1 ~ '^[A-Z]' OR t1 !~* 'x|y$'",
        "SIMILAR TO": "t1 SIMILAR TO '(a|b)%'",
        "substring FROM FOR": "substring(t1 FROM 2 FOR 3)",
        "trim BOTH, LEADING, TRAILING": "trim(BOTH 'x' FROM t1) || trim(LEADING FROM t2)",
        "position": "position('b' IN t1)",
        "E'…' and standard strings": r"E'a\tb' || '\'",
        "varchar(n) cuts": "t1::varchar(3)",
        "char(n)": "t1::char(3)",
    },
    "Dates and times": {
        "date and days": "d1 + 7 - s1",
        "date - date, in days": "d1 - d2",
        "a time and an interval": "p1 + interval '1 month' - interval '1 day 02:30'",
        "the month of a date as a timestamp": "d1 + interval '1 month'",
        "time - time": "p1 - p2",
        "date + time": "d1 + h1",
        "AT TIME ZONE": "z1 AT TIME ZONE 'Europe/Berlin'",
        "extract": "extract(dow FROM d1) + extract(epoch FROM p1)",
        "a timestamp as a date": "p1::date",
        "an instant as a date, in the declared time zone": "z1::date",
        "a timestamp as text": "p1::text || d1::text",
        "an instant as text": "z1::text",
        "the clock": "CURRENT_DATE",
    },
    "Arrays, JSON and the rest": {
        "ARRAY[…]": "ARRAY[i1, i2, 3]",
        "subscripts, NULL outside": "ia1[2]",
        "slices": "ia1[1:2]",
        "= ANY (array)": "i1 = ANY (ia1)",
        "|| of arrays": "ia1 || ia2",
        "-> and ->>": "j1 ->> 'a'",
        "#> and #>>, of a value": "j1 #>> '{a}'",
        "bytes to text": "encode(y1, 'hex')",
        "|| of bytes": "y1 || y2",
    },
}
"""By section: what it is, and one."""
