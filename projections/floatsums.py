"""Functions of rows that add floating-point numbers: the same rows in another order give another number. Pure."""

from __future__ import annotations

from projections.plantree import Node

SUMS = {"Sum": "sum", "Average": "avg", "RegrAvgX": "regr_avgx", "RegrAvgY": "regr_avgy"}
"""Of what they are given; of decimals they are exact."""
MOMENTS = {
    "Corr": "corr", "CovPopulation": "covar_pop", "CovSample": "covar_samp", "Kurtosis": "kurtosis",
    "Skewness": "skewness", "StddevPop": "stddev_pop", "StddevSamp": "stddev", "VariancePop": "var_pop",
    "VarianceSamp": "variance", "Product": "product", "RegrIntercept": "regr_intercept", "RegrR2": "regr_r2",
    "RegrSXX": "regr_sxx", "RegrSXY": "regr_sxy", "RegrSYY": "regr_syy", "RegrSlope": "regr_slope",
}  # fmt: skip
"""Always of doubles."""


def sum_of_floats(inner: Node) -> str | None:
    """What the function is called, when an expression is one."""
    name = SUMS.get(inner.kind) if any(map(_is_float, inner.children)) else None
    return name or MOMENTS.get(inner.kind)


def _is_float(expression: Node) -> bool:
    """Does the expression compute with floats? A cast decides; everything else is as what it is made of."""
    if expression.kind == "Cast" and expression.children[0].type == "void":
        return False  # NULL, and nothing else
    if expression.kind in ("Cast", "AttributeReference", "Literal"):
        return expression.type in ("float", "double")
    return any(_is_float(child) for child in expression.children)
