"""Functions of rows that add floating-point numbers: the same rows in another order give another number. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.projections.analysis.expressions import values_of
from tailrace.projections.analysis.plan_tree import Node

SUMS = {"Sum": "sum", "Average": "avg", "RegrAvgX": "regr_avgx", "RegrAvgY": "regr_avgy"}
"""Of what they are given; of decimals they are exact."""
MOMENTS = {
    "Corr": "corr", "CovPopulation": "covar_pop", "CovSample": "covar_samp", "Kurtosis": "kurtosis",
    "Skewness": "skewness", "StddevPop": "stddev_pop", "StddevSamp": "stddev", "VariancePop": "var_pop",
    "VarianceSamp": "variance", "Product": "product", "RegrIntercept": "regr_intercept", "RegrR2": "regr_r2",
    "RegrSXX": "regr_sxx", "RegrSXY": "regr_sxy", "RegrSYY": "regr_syy", "RegrSlope": "regr_slope",
}  # fmt: skip
"""Always of doubles."""
_PARTS = frozenset({
    "ElementAt", "GetArrayItem", "GetArrayStructFields", "GetMapValue", "GetStructField", "TryElementAt",
})  # fmt: skip
"""What takes a part of a nested value, which is its first child."""
_NEVER_FLOATS = frozenset({
    "And", "ArrayContains", "ArraySize", "BitLength", "Ceil", "Contains", "Crc32", "EndsWith", "EqualNullSafe",
    "EqualTo", "Exists", "Floor", "GreaterThan", "GreaterThanOrEqual", "In", "InSet", "IsNaN", "IsNotNull", "IsNull",
    "Length", "LessThan", "LessThanOrEqual", "Like", "Murmur3Hash", "Not", "Or", "RLike", "Size", "StartsWith",
    "XxHash64",
})  # fmt: skip
"""Truth values and whole numbers, whatever they are made of."""


def sum_of_floats(inner: Node) -> str | None:
    """What the function is called, when an expression is one."""
    name = SUMS.get(inner.kind) if any(map(_is_float, inner.children)) else None
    return name or MOMENTS.get(inner.kind)


def _is_float(expression: Node) -> bool:
    """Does the expression compute with floats? Its type decides where Spark tells it, or that of the field it takes;
    else it is as what it is made of, but for what only chooses between values."""
    if expression.kind == "Cast" and expression.children[0].type == "void":
        return False  # NULL, and nothing else
    told = _type_of(expression)
    if told is not None:
        return told in ("float", "double")
    return expression.kind not in _NEVER_FLOATS and any(
        map(_is_float, values_of(expression.kind, expression.children))
    )


def _type_of(expression: Node) -> object:
    """The data type as Spark's JSON has it, a word or an object; None where it is not told."""
    told = expression.fields.get("dataType")
    if told is not None:
        return told
    of = _type_of(expression.children[0]) if expression.kind in _PARTS else None
    if not isinstance(of, dict):
        return None
    if expression.kind == "GetStructField":
        return _field(of, expression)
    if expression.kind == "GetArrayStructFields":
        inner = of.get("elementType")
        field = _field(inner, expression) if isinstance(inner, dict) else None
        return None if field is None else {"type": "array", "elementType": field}
    return of.get("elementType") or of.get("valueType")


def _field(struct: Mapping[str, Any], expression: Node) -> object:
    fields, ordinal = struct.get("fields"), expression.fields.get("ordinal")
    if not isinstance(fields, list) or not isinstance(ordinal, int) or ordinal >= len(fields):
        return None
    return fields[ordinal].get("type")
