"""Functions and operators that may give another result each time: what each depends on, what makes it harmless.

Spark itself tells the scalar functions that are not deterministic (``rand``, ``uuid``, …); they need no row here. An
aggregate that is neither here nor among the ``EXACT`` ones is not proved to be the same for any order of rows. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal[
    "clock", "session", "random", "order", "python", "float", "text", "collation", "digits", "fewer digits"
]
Cleared = Literal["never", "constant in its group", "sorted", "a unique order", "exact numbers", "tolerance"]


@dataclass(frozen=True, slots=True)
class Unstable:
    """``words`` say what it depends on, behind its name; ``cleared`` is what makes it harmless. ``calls`` are its names
    in a source, the usual one first."""

    kind: Kind
    words: str
    hint: str
    cleared: Cleared = "never"
    calls: tuple[str, ...] = ()


_CLOCK = Unstable(
    "clock", "is another time in each refresh",
    "give the function a parameter named now: it is the commit time of the position",
)  # fmt: skip
TIME_TEXT = replace(_CLOCK, calls=(
    "cast", "astype", "date", "timestamp", "to_date", "to_timestamp", "try_cast", "try_to_date", "try_to_timestamp",
))  # fmt: skip
RANDOM = Unstable(
    "random", "gives another value in each refresh",
    "compute it of the row's values, for example with sha2 or xxhash64",
)  # fmt: skip
BY_PLACE = Unstable(
    "order", "in which rows may be equal and then come in any order",
    "end its orderBy with a column that is unique in the partition, such as the table's key", "a unique order",
)  # fmt: skip
UNKNOWN_AGGREGATE = Unstable(
    "order", "may depend on the order of rows: not proved, so computed in full",
    "use exact aggregates: count, sum, min, max, percentile, sort_array(collect_list(…))",
)  # fmt: skip
_SUM = Unstable(
    "float", "adds floating-point numbers, whose sum depends on the order of rows",
    "sum decimals (cast the argument)", "tolerance",
)  # fmt: skip
_ROWS: Sequence[tuple[Unstable, Mapping[str, tuple[str, ...]]]] = (
    (_CLOCK, {
        "CurrentDate": ("current_date", "curdate"),
        "CurrentTime": ("current_time",),
        "CurrentTimestamp": ("current_timestamp", "now", "unix_timestamp"),
        "LocalTimestamp": ("localtimestamp",),
        "Now": ("now",),
    }),
    (Unstable("session", "is another value where somebody else runs the refresh", "write the value itself"), {
        "CurrentCatalog": ("current_catalog",),
        "CurrentDatabase": ("current_database", "current_schema"),
        "CurrentUser": ("current_user", "session_user", "user"),
    }),
    (Unstable(
        "order", "takes whichever row comes, and rows come in any order",
        "say which: max_by(value, order) with a unique order, or min or max", "constant in its group",
    ), {"AnyValue": ("any_value",), "First": ("first", "first_value"), "Last": ("last", "last_value")}),
    (Unstable(
        "order", "has its elements in any order", "sort them: sort_array(collect_list(…))", "sorted",
    ), {"CollectList": ("collect_list", "array_agg"), "CollectSet": ("collect_set",)}),
    (Unstable(
        "order", "takes whichever row comes when several have that value",
        "order by a struct that ends with the key: max_by(value, struct(order, id))", "a unique order",
    ), {"MaxBy": ("max_by",), "MaxMinByK": ("max_by", "min_by"), "MinBy": ("min_by",)}),
    (Unstable(
        "order", "takes whichever of several values that are equally frequent",
        "say which: mode(…, True), or mode() WITHIN GROUP (ORDER BY …)", "a unique order",
    ), {"Mode": ("mode",)}),
    (replace(_SUM, cleared="exact numbers"), {"Average": ("avg", "mean"), "Sum": ("sum",)}),
    (_SUM, {  # always of doubles
        "Corr": ("corr",), "CovPopulation": ("covar_pop",), "CovSample": ("covar_samp",),
        "StddevPop": ("stddev_pop",), "StddevSamp": ("stddev", "std", "stddev_samp"), "VariancePop": ("var_pop",),
        "VarianceSamp": ("variance", "var_samp"),
    }),
    (UNKNOWN_AGGREGATE, {
        "ApproximatePercentile": ("percentile_approx", "approx_percentile"), "ListAgg": ("listagg", "string_agg"),
    }),
    (Unstable(
        "order", "holds different texts to be equal: not proved, so computed in full", "compare lower(…) instead",
    ), {"Collate": ("collate",)}),
    (Unstable(
        "order", "begins with random bytes unless it is given an iv: not proved, so computed in full",
        "encrypt what is read from the result; a hash (sha2) is the same each time",
    ), {"AesEncrypt": ("aes_encrypt",)}),
    (Unstable("random", "takes other rows in each refresh", "choose rows by a condition on their values"), {
        "Sample": ("sample", "sampleBy", "randomSplit"),
    }),
    (Unstable(
        "order", "takes whichever rows come first, and rows come in any order",
        "order by columns that end with a unique one before it", "a unique order",
    ), dict.fromkeys(("GlobalLimit", "Offset", "Tail"), ("limit", "offset", "tail"))),
    (Unstable(
        "order", "keeps whichever row comes first, and rows come in any order",
        "say which: row_number() over a window with a unique order, or max_by", "a unique order",
    ), {"Deduplicate": ("dropDuplicates", "drop_duplicates")}),
)  # fmt: skip
UNSTABLE: Mapping[str, Unstable] = {
    kind: replace(known, calls=calls) for known, kinds in _ROWS for kind, calls in kinds.items()
}
"""By Spark's class of the function or operator."""
PLACED = frozenset({
    "AnyValue", "CollectList", "CollectSet", "First", "Lag", "Last", "Lead", "NTile", "NthValue", "RowNumber",
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


def calls_of(kind: str) -> tuple[str, ...]:
    """What a source calls the function that Spark's class is, the usual name first."""
    known = UNSTABLE.get(kind)
    return known.calls if known else (re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower(),)
