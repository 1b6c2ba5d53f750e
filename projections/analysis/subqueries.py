"""The scalar subqueries of a projection that name no column around them, in words for its author: a refresh by keys
asks whether their values changed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tailrace.projections.compute.scalar_subqueries import ScalarSubquery, scalar_subqueries
from tailrace.projections.definition.model import Projection
from tailrace.projections.definition.sql_query import SqlQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_VIEW = re.compile(r"`?(_pyspark_[0-9a-f]{32})`?( AS)?", re.I)
_COMMENT = re.compile(r"--[^\n]*")
_AROUND_PARENTHESES = re.compile(r"(?<=\() | (?=\))")
_CHARACTERS_MAX = 90


def describe_subqueries(projection: Projection, result: DataFrame) -> dict[str, tuple[str, ...]]:
    """Each with the inputs that it reads. ``result`` is of inputs that are ``marked``."""
    found: dict[str, set[str]] = {}
    for subquery in scalar_subqueries(result):
        found.setdefault(words_of(projection, subquery), set()).update(subquery.inputs)
    return {words: tuple(name for name in projection.inputs if name in read) for words, read in found.items()}


def any_of(subqueries: Iterable[str]) -> str:
    """``the value of (SELECT …) or (SELECT …)``."""
    return f"the value of {' or '.join(subqueries)}"


def words_of(projection: Projection, subquery: ScalarSubquery) -> str:
    """A subquery as its author wrote it, on one line and not too long. The projection's function gave it last."""
    source = subquery.source
    if source is None:
        return f"a scalar subquery over {' and '.join(sorted(subquery.inputs)) or 'no input'}"
    text, line = source
    query = projection.function
    if isinstance(query, SqlQuery):
        text = query.written(text, line)
    views = {view: name for view, name in subquery.readings if view}
    named = _VIEW.sub(lambda match: "" if match[2] else views.get(match[1], "a table"), text)
    words = _AROUND_PARENTHESES.sub("", " ".join(_COMMENT.sub("", named).split()))
    return words if len(words) <= _CHARACTERS_MAX else f"{words[:_CHARACTERS_MAX].rstrip()} …)"
