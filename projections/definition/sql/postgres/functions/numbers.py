"""Functions of numbers. Those of floats that a library of the machine computes may differ in their last digit, as they
do between two servers."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.projections.definition.sql.postgres.functions.table import Absent, Row
from tailrace.projections.definition.sql.postgres.refusal import NotInTable
from tailrace.projections.definition.sql.postgres.types.types import FLOAT8, INT4, NUMERIC, PgType, numeric
from tailrace.projections.definition.sql.postgres.types.values import Value

FLOOR = "CASE WHEN rint({0}) > {0} THEN rint({0}) - 1 ELSE rint({0}) END"
"""Spark's floor of a double is a bigint, and has no -0."""
CEIL = "(- CASE WHEN rint(- {0}) > - {0} THEN rint(- {0}) - 1 ELSE rint(- {0}) END)"
TRUNC = f"if({{0}} < 0, {CEIL}, {FLOOR})"
SIGN = "CASE WHEN {0} > 0 AND NOT isnan({0}) THEN 1D WHEN {0} < 0 THEN -1D WHEN {0} IS NOT NULL THEN 0D END"
_INTEGERS = ("int2", "int4", "int8")
_NUMBERS = ("int2", "int4", "int8", "numeric", "float4", "float8")


def _digits(value: Value) -> int:
    assert value.constant is not None
    digits = int(value.constant)
    if not -38 <= digits <= 38:
        raise NotInTable(f"{digits} digits behind the point", "at most 38 are kept")
    return digits


def _of_scale(arguments: Sequence[Value]) -> PgType:
    """Of a numeric whose scale is not smaller: Spark adds no zeros."""
    scale, wanted = arguments[0].type.scale, _digits(arguments[1])
    return numeric(None, max(wanted, 0) if scale is not None and wanted <= scale else None)


def _truncated(arguments: Sequence[Value]) -> str:
    value, digits = arguments[0].sql, _digits(arguments[1])
    scale = arguments[0].type.scale
    if scale is None:
        raise NotInTable("trunc of a numeric of unknown digits", "cast it to numeric(p,s) first")
    if digits >= scale:
        return value
    return f"if({value} < 0, ceil({value}, {digits}), floor({value}, {digits}))"


def _rounded(arguments: Sequence[Value]) -> str:
    return f"round({arguments[0].sql}, {_digits(arguments[1])})"


def _counted(arguments: Sequence[Value], what: str) -> str:
    return "(" + " + ".join(f"cast({each.sql} {what} as int)" for each in arguments) + ")"


def _defined(call: str, *wrong: tuple[str, str]) -> str:
    """A call that fails where Postgres does: ``wrong`` are conditions and its words."""
    whens = " ".join(f"WHEN {condition} THEN raise_error('{words}')" for condition, words in wrong)
    return f"CASE {whens} ELSE {call} END"


_LOGARITHM = (
    ("{0} = 0", "cannot take logarithm of zero"),
    ("{0} < 0", "cannot take logarithm of a negative number"),
)
_INFINITE = "{0} IN (double('infinity'), double('-infinity'))"
_OVERFLOW = "value out of range: overflow"
EXP = _defined("exp({0})", ("{0} > 709.782712893384 AND {0} < double('infinity')", _OVERFLOW),
               ("{0} < -745.1332191019411 AND {0} > double('-infinity')", "value out of range: underflow"))  # fmt: skip
_OUTSIDE = "input is out of range"
_NO_DIGITS = "cast its arguments to double precision: Spark has no such function of numerics"
_FINITE = "abs({0}) < double('infinity') AND abs({1}) < double('infinity')"
_ONE = "{0} = 1 AND isnan({1}) OR abs({0}) = 1 AND abs({1}) = double('infinity')"
POWER = _defined(
    f"if({_ONE}, 1D, power({{0}}, {{1}}))",  # as C has it; in Java they are NaN
    ("{0} = 0 AND {1} < 0", "zero raised to a negative power is undefined"),
    (
        "{0} < 0 AND abs({1}) < double('infinity') AND rint({1}) <> {1}",
        "a negative number raised to a non-integer power yields a complex result",
    ),
    (f"{_FINITE} AND abs(power({{0}}, {{1}})) = double('infinity')", _OVERFLOW),
    (f"{_FINITE} AND {{0}} <> 0 AND power({{0}}, {{1}}) = 0", "value out of range: underflow"),
)
"""Also of the operator ^."""


def _floats() -> list[Row]:
    plain = {
        "degrees": "({0} / 0.017453292519943295D)",
        "radians": "({0} * 0.017453292519943295D)",
        "sqrt": _defined("sqrt({0})", ("{0} < 0", "cannot take square root of a negative number")),
        "cbrt": "cbrt({0})",
        "exp": EXP,
        "ln": _defined("ln({0})", *_LOGARITHM),
        "log": _defined("log10({0})", *_LOGARITHM),
        "log10": _defined("log10({0})", *_LOGARITHM),
        "asin": _defined("asin({0})", ("abs({0}) > 1 AND NOT isnan({0})", _OUTSIDE)),
        "acos": _defined("acos({0})", ("abs({0}) > 1 AND NOT isnan({0})", _OUTSIDE)),
        "atan": "atan({0})", "tanh": "tanh({0})", "asinh": "asinh({0})",
        "sin": _defined("sin({0})", (_INFINITE, _OUTSIDE)),
        "cos": _defined("cos({0})", (_INFINITE, _OUTSIDE)),
        "tan": _defined("tan({0})", (_INFINITE, _OUTSIDE)),
        "floor": FLOOR, "ceil": CEIL, "ceiling": CEIL, "trunc": TRUNC, "round": "rint({0})", "sign": SIGN,
    }  # fmt: skip
    exact = ("degrees", "radians", "sqrt", "floor", "ceil", "ceiling", "trunc", "round", "sign")
    return [Row(name, ("float8",), FLOAT8, text, exact=name in exact) for name, text in plain.items()]


_LEFT = "{1} < 0 OR cast({1} as string) = '-0.0'"
_ATAN2 = (  # Spark takes -0 for 0
    f"CASE WHEN {{0}} = 0 AND NOT isnan({{1}}) AND ({_LEFT}) THEN if(cast({{0}} as string) = '-0.0', -pi(), pi())"
    " ELSE atan2({0}, {1}) END"
)
ROWS = (
    *(Row("abs", (name,), "same", "abs({0})") for name in _NUMBERS),
    *_floats(),
    *(Row(name, ("numeric",), NUMERIC, Absent(_NO_DIGITS)) for name in ("sqrt", "exp", "ln", "log", "log10")),
    *(Row(name, ("numeric", "numeric"), NUMERIC, Absent(_NO_DIGITS)) for name in ("power", "pow", "log")),
    Row("sign", ("numeric",), numeric(1, 0), "cast(signum({0}) as decimal(1,0))"),
    Row("round", ("numeric",), numeric(None, 0), "round({0}, 0)"),
    Row("round", ("numeric", "int4 constant"), _of_scale, _rounded),
    Row("trunc", ("numeric",), numeric(None, 0), "if({0} < 0, ceil({0}), floor({0}))"),
    Row("trunc", ("numeric", "int4 constant"), _of_scale, _truncated),
    Row("floor", ("numeric",), numeric(None, 0), "floor({0})"),
    Row("ceil", ("numeric",), numeric(None, 0), "ceil({0})"),
    Row("ceiling", ("numeric",), numeric(None, 0), "ceil({0})"),
    *(Row("mod", (name, name), "same", "({0} % {1})") for name in _INTEGERS),
    Row("mod", ("numeric", "numeric"), NUMERIC, "({0} % {1})"),
    Row("atan2", ("float8", "float8"), FLOAT8, _ATAN2, exact=False),
    *(Row(name, ("float8", "float8"), FLOAT8, POWER, exact=False) for name in ("power", "pow")),
    *(Row(name, (kind, kind), "same", Absent("write it with mod() for numbers that are known"))
      for name in ("gcd", "lcm") for kind in ("int4", "int8", "numeric")),
    Row("div", ("numeric", "numeric"), NUMERIC, Absent("write trunc(a / b) of numerics of known digits")),
    Row("random", (), FLOAT8, Absent("a projection gives the same rows each time: keep the number in a column")),
    Row("pi", (), FLOAT8, "pi()"),
    Row("num_nulls", ("any", "any*"), INT4, lambda given: _counted(given, "IS NULL")),
    Row("num_nonnulls", ("any", "any*"), INT4, lambda given: _counted(given, "IS NOT NULL")),
)  # fmt: skip
