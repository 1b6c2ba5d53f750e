"""The functions that may give another value each time: what each depends on, and what makes that harmless.

Spark itself tells the scalar functions that are not deterministic (``rand``, ``uuid``, …); they need no row here. An
aggregate that is neither here nor among the ``EXACT`` ones is not proved to be the same for any order of rows. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["clock", "session", "random", "order", "python", "float", "text"]
Cleared = Literal[
    "never", "constant in its group", "sorted", "its own order", "a unique order", "exact numbers",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unstable:
    """``words`` say what it depends on, behind its name; ``cleared`` is what makes it harmless. ``calls`` are its names
    in a source, the usual one first."""

    kind: Kind
    words: str
    hint: str
    cleared: Cleared = "never"
    calls: tuple[str, ...] = ()


NOW_HINT = "give the function a parameter named now: it is the commit time of the position"
RANDOM_HINT = "compute it of the row's values, for example with sha2 or xxhash64"
SUM_HINT = "sum decimals: cast the argument before it is summed"


def _clock(*calls: str) -> Unstable:
    return Unstable("clock", "is another time in each refresh", NOW_HINT, calls=calls)


def _session(*calls: str) -> Unstable:
    words = "is another value where somebody else runs the refresh"
    return Unstable("session", words, "write the value itself", calls=calls)


def _any_row(*calls: str) -> Unstable:
    hint = "say which: max_by(value, order) with a unique order, or min or max"
    words = "takes whichever row comes, and rows come in any order"
    return Unstable("order", words, hint, "constant in its group", calls)


def _list(cleared: Cleared, *calls: str) -> Unstable:
    hint = "sort them: sort_array(collect_list(…))"
    return Unstable("order", "has its elements in any order", hint, cleared, calls)


def _extreme(*calls: str) -> Unstable:
    hint = "order by a struct that ends with the key: max_by(value, struct(order, id))"
    words = "takes whichever row comes when several have that value"
    return Unstable("order", words, hint, "a unique order", calls)


def _floats(cleared: Cleared, *calls: str) -> Unstable:
    words = "adds floating-point numbers, whose sum depends on the order of rows"
    return Unstable("float", words, SUM_HINT, cleared, calls)


_MOMENTS: Mapping[str, tuple[str, ...]] = {
    "Corr": ("corr",), "CovPopulation": ("covar_pop",), "CovSample": ("covar_samp",), "Kurtosis": ("kurtosis",),
    "Product": ("product",), "RegrAvgX": ("regr_avgx",), "RegrAvgY": ("regr_avgy",),
    "RegrIntercept": ("regr_intercept",), "RegrR2": ("regr_r2",), "RegrSXX": ("regr_sxx",), "RegrSXY": ("regr_sxy",),
    "RegrSYY": ("regr_syy",), "RegrSlope": ("regr_slope",), "Skewness": ("skewness",), "StddevPop": ("stddev_pop",),
    "StddevSamp": ("stddev", "std", "stddev_samp"), "VariancePop": ("var_pop",),
    "VarianceSamp": ("variance", "var_samp"),
}  # fmt: skip
"""Always of doubles."""
UNSTABLE: Mapping[str, Unstable] = {
    "CurrentDate": _clock("current_date", "curdate"),
    "CurrentTime": _clock("current_time"),
    "CurrentTimestamp": _clock("current_timestamp", "now", "unix_timestamp"),
    "LocalTimestamp": _clock("localtimestamp"),
    "Now": _clock("now"),
    "CurrentCatalog": _session("current_catalog"),
    "CurrentDatabase": _session("current_database", "current_schema"),
    "CurrentUser": _session("current_user", "session_user", "user"),
    "AesEncrypt": Unstable(
        "order", "begins with random bytes unless it is given an iv: not proved, so computed in full",
        "say trust=True when it is given one", calls=("aes_encrypt",),
    ),
    "First": _any_row("first", "first_value"),
    "Last": _any_row("last", "last_value"),
    "AnyValue": _any_row("any_value"),
    "CollectList": _list("sorted", "collect_list", "array_agg"),
    "CollectSet": _list("sorted", "collect_set"),
    "ListAgg": _list("its own order", "listagg", "string_agg"),
    "Mode": Unstable(
        "order", "takes whichever of several values that are equally frequent",
        "say which: mode(…, True), or mode() WITHIN GROUP (ORDER BY …)", "its own order", ("mode",),
    ),
    "MaxBy": _extreme("max_by"), "MinBy": _extreme("min_by"), "MaxMinByK": _extreme("max_by", "min_by"),
    "ApproximatePercentile": Unstable(
        "order", "is estimated, another way for each order in which rows come",
        "compute it exactly: percentile(…)", calls=("percentile_approx", "approx_percentile"),
    ),
    "Sum": _floats("exact numbers", "sum"), "Average": _floats("exact numbers", "avg", "mean"),
    **{kind: _floats("never", *calls) for kind, calls in _MOMENTS.items()},
}  # fmt: skip
"""By Spark's class."""
PLACED = frozenset({
    "AnyValue", "CollectList", "CollectSet", "First", "Lag", "Last", "Lead", "ListAgg", "NTile", "NthValue",
    "RowNumber",
})  # fmt: skip
"""What goes by the place of rows in a window, and is cleared by an order in which no two of a partition are equal."""
SORTING = frozenset({
    "ArrayContains", "ArrayExists", "ArrayMax", "ArrayMin", "ArraySize", "ArraySort", "ArraysOverlap", "Explode",
    "IsNotNull", "IsNull", "Size", "SortArray",
})  # fmt: skip
"""What clears a list: it is the same of the same elements in any order."""
EXACT = frozenset({
    "BitAndAgg", "BitOrAgg", "BitXorAgg", "BitmapAndAgg", "BitmapConstructAgg", "BitmapOrAgg", "BoolAnd", "BoolOr",
    "Count", "CountIf", "HyperLogLogPlusPlus", "Max", "Median", "Min", "Percentile", "PercentileCont", "PercentileDisc",
    "PivotFirst", "RegrCount",
})  # fmt: skip
"""Aggregates that give the same for any order of rows."""


def name_of(kind: str) -> str:
    """What a source calls the function that Spark's class is."""
    known = UNSTABLE.get(kind)
    return known.calls[0] if known else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower()


def calls_of(kind: str) -> tuple[str, ...]:
    """All names by which a source calls it."""
    known = UNSTABLE.get(kind)
    return known.calls if known else (name_of(kind),)
