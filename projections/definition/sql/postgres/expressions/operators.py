"""Operators: which types they take, and what Spark computes the same with."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.projections.definition.sql.postgres.functions.numbers import POWER
from tailrace.projections.definition.sql.postgres.functions.table import NotInTable, filled
from tailrace.projections.definition.sql.postgres.types.casts import cast
from tailrace.projections.definition.sql.postgres.types.intervals import Interval
from tailrace.projections.definition.sql.postgres.types.types import (
    BOOL,
    BYTEA,
    DATE,
    FLOAT4,
    FLOAT8,
    INT4,
    TEXT,
    TIME,
    TIMESTAMP,
    UNKNOWN,
    VOID,
    PgType,
    numeric,
    spark_ddl,
)
from tailrace.projections.definition.sql.postgres.types.values import Value, common_type, implicit, quoted
from tailrace.projections.definition.sql.postgres.types.zones import UTC, instant, wall_clock

CAST_IT = "cast it: its type decides what is meant"
_TIMES = ("date", "timestamp", "timestamptz")


def _no_operator(name: str, left: Value, right: Value) -> NotInTable:
    return NotInTable(
        f"{left.type} {name} {right.type}", CAST_IT if UNKNOWN in (left.type, right.type) else ""
    )


def arithmetic(name: str, left: Value, right: Value, zone: str) -> Value:
    """``+ - * / % ^``. Raises NotInTable."""
    if VOID in (left.type, right.type):
        return Value(f"({left.sql} {name} {right.sql})", VOID)
    if _is_time(left) or _is_time(right):
        return _moved_time(name, left, right, zone)
    left, right = _same_as_other(left, right), _same_as_other(right, left)
    if not (left.type.is_number and right.type.is_number):
        raise _no_operator(name, left, right)
    names = {left.type.name, right.type.name}
    if names & {"float4", "float8"} or name == "^":
        return _float(name, left, right)
    if "numeric" in names:
        text = f"({_as_decimal(left)} {name} {_as_decimal(right)})"
        return Value(_no_large(text) if name == "/" else text, _numeric_result(name, left.type, right.type))
    kind = common_type([left, right])
    assert kind is not None
    if name == "/":
        return Value(f"CAST(({left.sql} DIV {right.sql}) AS {spark_ddl(kind)})", kind)
    one, other = implicit(left, kind), implicit(right, kind)
    assert one is not None and other is not None
    return Value(f"({one.sql} {name} {other.sql})", kind)


def _as_decimal(value: Value) -> str:
    """A whole number as it is written has its own digits beside a decimal. Spark knows that; Sail takes it for any
    integer, and gives the result more digits than Spark does."""
    return (
        f"{value.constant}BD"
        if value.constant == value.sql.removesuffix("L") and value.type.is_integer
        else value.sql
    )


def _no_large(quotient: str) -> str:
    """Postgres keeps sixteen significant digits (numeric.c, select_div_scale): of a quotient from here on not one
    behind the point, where Spark has six or more. To round it does not help, so it is an error when it is computed."""
    words = "a quotient of 10^16 or more, of which Postgres keeps no digit behind the point: divide floats"
    return f"if(abs({quotient}) >= 10000000000000000BD, raise_error({quoted(words)}), {quotient})"


def _is_time(value: Value) -> bool:
    return value.type.name in _TIMES or value.interval is not None


def _same_as_other(value: Value, other: Value) -> Value:
    """A quoted constant is of the type that it stands beside."""
    if value.type != UNKNOWN or other.type == UNKNOWN:
        return value
    found = implicit(value, other.type)
    return value if found is None else found


def _float(name: str, left: Value, right: Value) -> Value:
    if name == "%" or (name == "^" and "numeric" in (left.type.name, right.type.name)):
        raise NotInTable(
            f"{left.type} {name} {right.type}", "cast both to double precision" if name == "^" else ""
        )
    kind = FLOAT4 if left.type == right.type == FLOAT4 and name != "^" else FLOAT8
    one, other = implicit(left, kind), implicit(right, kind)
    assert one is not None and other is not None
    if name == "^":
        is_natural = right.constant is not None and right.constant.isdecimal()
        return Value(filled("power({0}, {1})" if is_natural else POWER, [one.sql, other.sql]), FLOAT8)
    ddl = "FLOAT" if kind == FLOAT4 else ""
    text = f"({one.sql} {name} {other.sql})"
    if name == "/" and not (right.constant and any(digit in right.constant for digit in "123456789")):
        text = f"if(isnan({one.sql}) AND {other.sql} = 0, {one.sql}, {text})"
    return Value(f"CAST({text} AS {ddl})" if ddl and name == "/" else text, kind)


def _numeric_result(name: str, left: PgType, right: PgType) -> PgType:
    """The scale that both databases give it, if that is the same."""
    one, other = (0 if each.is_integer else each.scale for each in (left, right))
    if one is None or other is None or name == "/":
        return numeric(None, None)
    return numeric(None, one + other if name == "*" else max(one, other))


def _moved_time(name: str, left: Value, right: Value, zone: str) -> Value:
    if left.type == DATE and right.type.is_integer and right.type.name != "int8" and name in ("+", "-"):
        return Value(f"{'date_add' if name == '+' else 'date_sub'}({left.sql}, {right.sql})", DATE)
    if name == "+" and right.type == DATE and left.type.name in ("int2", "int4"):
        return Value(f"date_add({right.sql}, {left.sql})", DATE)
    if name == "-" and left.type == DATE and right.type in (DATE, UNKNOWN):
        other = implicit(right, DATE)
        if other is not None:
            return Value(f"datediff({left.sql}, {other.sql})", INT4)
    if name == "+" and left.interval is not None and right.type.name in _TIMES:
        left, right = right, left
    if right.interval is not None and left.type.name in _TIMES and name in ("+", "-"):
        return moved(left, right.interval if name == "+" else -right.interval, zone)
    if name == "*":
        for one, other in ((left, right), (right, left)):
            if one.interval is not None and other.type.is_integer and other.constant is not None:
                return Value.of_interval(one.interval.times(int(other.constant)))
    if name in ("+", "-") and left.interval is not None and right.interval is not None:
        return Value.of_interval(left.interval.plus(right.interval if name == "+" else -right.interval))
    if name == "+" and {left.type, right.type} == {DATE, TIME}:
        day, clock = (left, right) if left.type == DATE else (right, left)
        return Value(f"make_timestamp_ntz({day.sql}, {clock.sql})", TIMESTAMP)
    if name == "-" and left.type.name in _TIMES and right.type.name in _TIMES:
        raise NotInTable(f"{left.type} - {right.type}", "subtract dates, or extract(epoch FROM …) of both")
    raise _no_operator(name, left, right)


def moved(value: Value, by: Interval, zone: str) -> Value:
    """A date (which becomes a timestamp) or time moved by an interval; instants by the clocks of the zone."""
    if value.type == DATE:
        return Value(by.added_to(f"CAST({value.sql} AS TIMESTAMP_NTZ)"), TIMESTAMP)
    if value.type == TIMESTAMP or zone == UTC:
        return Value(by.added_to(value.sql), value.type)
    whole = Interval(by.months, by.days)
    text = instant(whole.added_to(wall_clock(value.sql, zone)), zone) if by.months or by.days else value.sql
    return Value(Interval(micros=by.micros).added_to(text), value.type)


def comparison(name: str, left: Value, right: Value, zone: str) -> Value:
    """``= <> < <= > >=``, and ``<=>`` for IS NOT DISTINCT FROM. Raises NotInTable."""
    one, other = comparable(name, [left, right], zone)
    return Value(f"({one.sql} {name} {other.sql})", BOOL)


def comparable(name: str, values: Sequence[Value], zone: str) -> list[Value]:
    """Values of one type, for which Spark's comparison is Postgres'. Raises NotInTable."""
    kind = common_type(values)
    names = {each.type.name for each in values}
    if "float4" in names and names & {"int2", "int4", "int8", "numeric", "float8"}:
        kind = FLOAT8  # for which Postgres has an operator; CASE and the like would take real
    if kind is None or kind.name in ("record", "interval") or any(each.interval for each in values):
        words = f" {name} ".join(str(each.type) for each in values)
        raise NotInTable(words, "" if kind else "cast one of them: Postgres compares values of one type")
    if kind.element is not None and name not in ("=", "<>", "<=>"):
        raise NotInTable(
            f"{kind} {name} {kind}, which Spark orders otherwise", "compare its elements, or its size"
        )
    return [as_type(each, kind, zone) for each in values]


def as_type(value: Value, type_: PgType, zone: str) -> Value:
    """The value as the type that CASE, UNION, a comparison or a column gives it. Raises NotInTable."""
    if value.type.name == "timestamp" and type_.name == "timestamptz":
        return Value(instant(value.sql, zone), type_)
    if value.type.name == "date" and type_.name == "timestamptz":
        return cast(value, type_, None, zone)
    if value.type == UNKNOWN and value.constant is not None:
        return cast(value, type_, None, zone)
    found = implicit(value, type_)
    if found is None:
        raise NotInTable(f"{value.type} as {type_}", "cast it")
    return found


def joined_text(left: Value, right: Value, zone: str) -> Value:
    """``||`` of texts; what is beside a text is printed. Raises NotInTable."""
    if left.type == right.type == BYTEA:
        return Value(f"({left.sql} || {right.sql})", BYTEA)
    kinds = {left.type.name, right.type.name}
    if not kinds & {"text", "unknown"} or kinds & {"array", "record"} or VOID in (left.type, right.type):
        raise _no_operator("||", left, right)
    one, other = cast(left, TEXT, None, zone), cast(right, TEXT, None, zone)
    return Value(f"({one.sql} || {other.sql})", TEXT)
