"""Functions of texts and bytes. Positions count from 1; upper, lower and initcap change each letter by itself, as every
locale of Postgres but C and ICU's do."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.projections.definition.sql.postgres.functions.table import Absent, InZone, Row, filled
from tailrace.projections.definition.sql.postgres.refusal import NotInTable
from tailrace.projections.definition.sql.postgres.types.casts import cast
from tailrace.projections.definition.sql.postgres.types.types import BOOL, BYTEA, INT4, TEXT
from tailrace.projections.definition.sql.postgres.types.values import Value, quoted

UPPER = (
    "if(length({0}) = octet_length({0}), upper({0}), array_join(transform(split({0}, ''),"
    " c -> if(length(upper(c)) = 1, upper(c), c)), ''))"
)
"""A letter that Java would make two of (ß) stays."""
LOWER = (
    "if(length({0}) = octet_length({0}), lower({0}),"
    " array_join(transform(split({0}, ''), c -> left(lower(c), 1)), ''))"
)
_WORDS = quoted(r"[\p{L}\p{M}\p{Nd}]+|[^\p{L}\p{M}\p{Nd}]+")
INITCAP = (
    f"array_join(transform(regexp_extract_all({{0}}, {_WORDS}, 0), w -> concat(UPPER1, LOWER1)), '')".replace(
        "UPPER1", UPPER.replace("{0}", "left(w, 1)")
    ).replace("LOWER1", LOWER.replace("{0}", "substring(w, 2)"))
)
_LESS = "cast(if(length({0}) + cast({1} as bigint) < 0, 0L, length({0}) + cast({1} as bigint)) as int)"
LEFT = f"left({{0}}, if({{1}} >= 0, {{1}}, {_LESS}))"
RIGHT = f"right({{0}}, if({{1}} >= 0, {{1}}, if({{1}} < -2147483647, length({{0}}), {_LESS})))"
"""-2147483648 has no positive counterpart, so Postgres takes everything."""
FROM = "substring({0}, if({1} < 1, 1, {1}))"
_END = "cast({1} as bigint) + {2}"
FROM_FOR = (
    f"CASE WHEN {{2}} >= 0 THEN if({{1}} < 1, left({{0}}, cast(if({_END} < 1, 1L, {_END}) - 1 as int)),"
    " substring({0}, {1}, {2})) WHEN {2} < 0 AND {1} IS NOT NULL AND {0} IS NOT NULL"
    " THEN raise_error('negative substring length not allowed') END"
)


def _is_natural(value: Value, least: int = 0) -> bool:
    return value.constant is not None and value.constant.isdecimal() and int(value.constant) >= least


def _left(arguments: Sequence[Value]) -> str:
    template = "left({0}, {1})" if _is_natural(arguments[1]) else LEFT
    return filled(template, [each.sql for each in arguments])


def _right(arguments: Sequence[Value]) -> str:
    template = "right({0}, {1})" if _is_natural(arguments[1]) else RIGHT
    return filled(template, [each.sql for each in arguments])


def _from(arguments: Sequence[Value]) -> str:
    template = "substring({0}, {1})" if _is_natural(arguments[1], 1) else FROM
    return filled(template, [each.sql for each in arguments])


def _from_for(arguments: Sequence[Value]) -> str:
    easy = _is_natural(arguments[1], 1) and _is_natural(arguments[2])
    return filled("substring({0}, {1}, {2})" if easy else FROM_FOR, [each.sql for each in arguments])


def _encode(arguments: Sequence[Value]) -> str:
    value, form = arguments
    match form.constant:
        case "hex":
            return f"lower(hex({value.sql}))"
        case "base64":  # in lines of 76 letters, which Spark ends otherwise, or not at all
            letters = f"regexp_replace(base64({value.sql}), {quoted('[^A-Za-z0-9+/=]')}, '')"
            return f"regexp_replace({letters}, {quoted('(.{76})(?=.)')}, {quoted('$1' + chr(10))})"
    raise NotInTable(f"encode to {form.constant}", "the forms are 'hex' and 'base64'")


def _printed(arguments: Sequence[Value], zone: str) -> list[str]:
    """The arguments of concat by their output functions, which print true and false otherwise than a cast does."""
    return [
        f"CASE WHEN {each.sql} THEN 't' WHEN NOT {each.sql} THEN 'f' END"
        if each.type == BOOL
        else each.sql
        if each.type == TEXT
        else cast(each, TEXT, None, zone).sql
        for each in arguments
    ]


def _concat(arguments: Sequence[Value], zone: str) -> str:
    return f"concat_ws('', {', '.join(_printed(arguments, zone))})"


def _concat_ws(arguments: Sequence[Value], zone: str) -> str:
    return f"concat_ws({arguments[0].sql}, {', '.join(_printed(arguments[1:], zone))})"


_OF_TEXT = ("text",)
ROWS = (
    *(
        Row(name, _OF_TEXT, INT4, "char_length({0})")
        for name in ("length", "char_length", "character_length")
    ),
    *(Row(name, ("bytea",), INT4, "octet_length({0})") for name in ("length", "octet_length")),
    Row("octet_length", _OF_TEXT, INT4, "octet_length({0})"),
    Row("bit_length", _OF_TEXT, INT4, "bit_length({0})"),
    Row("lower", _OF_TEXT, TEXT, LOWER),
    Row("upper", _OF_TEXT, TEXT, UPPER),
    Row("initcap", _OF_TEXT, TEXT, INITCAP),
    Row("reverse", _OF_TEXT, TEXT, "reverse({0})"),
    Row("left", ("text", "int4"), TEXT, _left),
    Row("right", ("text", "int4"), TEXT, _right),
    *(Row(name, ("text", "int4"), TEXT, _from) for name in ("substr", "substring")),
    *(Row(name, ("text", "int4", "int4"), TEXT, _from_for) for name in ("substr", "substring")),
    Row("lpad", ("text", "int4"), TEXT, "lpad({0}, {1}, ' ')"),
    Row("lpad", ("text", "int4", "text"), TEXT, "lpad({0}, {1}, {2})"),
    Row("rpad", ("text", "int4"), TEXT, "rpad({0}, {1}, ' ')"),
    Row("rpad", ("text", "int4", "text"), TEXT, "rpad({0}, {1}, {2})"),
    Row("btrim", _OF_TEXT, TEXT, "trim({0})"),
    Row("btrim", ("text", "text"), TEXT, "trim(BOTH {1} FROM {0})"),
    Row("ltrim", _OF_TEXT, TEXT, "ltrim({0})"),
    Row("ltrim", ("text", "text"), TEXT, "ltrim({1}, {0})"),
    Row("rtrim", _OF_TEXT, TEXT, "rtrim({0})"),
    Row("rtrim", ("text", "text"), TEXT, "rtrim({1}, {0})"),
    Row("repeat", ("text", "int4"), TEXT, "repeat({0}, {1})"),
    Row("replace", ("text", "text", "text"), TEXT, "replace({0}, {1}, {2})"),
    Row("translate", ("text", "text", "text"), TEXT, "translate({0}, {1}, {2})"),
    Row("split_part", ("text", "text", "int4"), TEXT, "split_part({0}, {1}, {2})"),
    Row("strpos", ("text", "text"), INT4, "instr({0}, {1})"),
    Row("starts_with", ("text", "text"), BOOL, "startswith({0}, {1})"),
    Row("ascii", _OF_TEXT, INT4, "ascii({0})"),
    Row("md5", _OF_TEXT, TEXT, "md5({0})"),
    Row("md5", ("bytea",), TEXT, "md5({0})"),
    Row("sha256", ("bytea",), BYTEA, "unhex(sha2({0}, 256))"),
    Row("sha512", ("bytea",), BYTEA, "unhex(sha2({0}, 512))"),
    Row("encode", ("bytea", "text constant"), TEXT, _encode),
    Row("to_hex", ("int4",), TEXT, "lower(hex(cast({0} as bigint) & 4294967295L))"),
    Row("to_hex", ("int8",), TEXT, "lower(hex({0}))"),
    *(
        Row(name, takes, TEXT, Absent(hint))
        for name, takes, hint in (
            ("chr", ("int4",), "write the character itself, as E'\\u00e4'"),
            ("format", ("text", "any*"), "write it with || and casts to text"),
            ("quote_literal", ("text",), "a projection holds values; quote where a statement is written"),
            ("quote_ident", ("text",), "a projection holds values; quote where a statement is written"),
            ("decode", ("text", "text"), "keep it as text, or store bytea in the source"),
            ("to_ascii", ("text",), "write translate()"),
            ("normalize", ("text",), "normalise the text where it is written"),
            ("overlay", ("text", "text", "int4"), "write it with left(), || and substr()"),
            ("overlay", ("text", "text", "int4", "int4"), "write it with left(), || and substr()"),
            ("substr", ("bytea", "int4"), "write encode(…, 'hex') and substr() of that"),
            ("substr", ("bytea", "int4", "int4"), "write encode(…, 'hex') and substr() of that"),
            ("substring", ("text", "text"), "write regexp_substr() or regexp_match()"),
        )
    ),
    Row("concat", ("any", "any*"), TEXT, InZone(_concat)),
    Row("concat_ws", ("text", "any", "any*"), TEXT, InZone(_concat_ws)),
)
