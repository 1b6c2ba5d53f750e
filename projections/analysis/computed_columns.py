"""Parts of a key that are computed of an input's columns, as a plan spells them: are two expressions the same?

What ``affects`` says is analysed by Spark like the function. Two expressions are the same if they are spelled alike in
the plan, of the same columns of one row. That is less than they might be equal: what is not found is computed in full.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tailrace.projections.analysis.expressions import is_float, root
from tailrace.projections.analysis.plan_tree import Node, nondeterministic_classes, plan_json, read
from tailrace.projections.analysis.spread import ComputedColumn, Shape
from tailrace.projections.analysis.unstable_functions import UNSTABLE
from tailrace.projections.definition.computed import Computed
from tailrace.projections.definition.model import Projection, ProjectionFailed
from tailrace.projections.definition.sql.computed_value import in_spark
from tailrace.projections.definition.sql.postgres.query import columns_of
from tailrace.projections.definition.sql.postgres.refusal import Refused
from tailrace.projections.spark.errors import translate_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_UNITS = frozenset({"TruncDate", "TruncTimestamp"})
"""Functions whose unit is written in either case."""


def describe_computed(
    projection: Projection, name: str, frame: DataFrame, wanted: Iterable[Computed]
) -> Mapping[Computed, ComputedColumn]:
    """What Spark makes of expressions over an input. Raises ProjectionFailed for those that it cannot read, or that are
    another value each time."""
    from pyspark.sql import functions as F  # noqa: N812

    found: dict[Computed, ComputedColumn] = {}
    for each in wanted:
        if not set(each.columns) <= set(frame.columns):  # the function is not given one of them
            continue
        try:
            text = in_spark(each, name, columns_of(frame))
        except Refused:  # as the query will be, at its place
            continue
        with translate_errors(projection, f"reading what affects of {name} says ({each.expression})"):
            made = frame.select(F.expr(text).alias("value"))
            (field,) = made.schema.fields
            plan = read(plan_json(made))
        if plan.kind != "Project":  # an aggregate
            continue
        (expression,) = plan.expressions("projectList")
        if nondeterministic_classes(made) or any(node.kind in UNSTABLE for node in expression.walk()):
            raise ProjectionFailed(
                f"projection {projection.name!r} ({projection.place}): affects of {name} is {each.expression}, which is"
                " another value each time",
                hint="compute the key of the row's values alone",
            )
        if is_float(expression) or field.dataType.typeName() in ("float", "double") or _is_collated(field):
            continue  # equal values differ: no key
        (column,) = _attributes(expression) if isinstance(root(expression), int) else [expression]
        shape = shape_of(column, lambda attribute: attribute.name)
        found[each] = ComputedColumn(
            shape, frozenset(node.name for node in _attributes(expression)), not field.nullable
        )
    return found


def spark_text(computed: Computed, name: str, frame: DataFrame) -> str:
    """An expression over an input's columns in Spark's SQL. Raises ProjectionFailed where it has no translation."""
    try:
        return in_spark(computed, name, columns_of(frame))
    except Refused as error:
        what = f"{computed.expression} of input {name!r}: {error.what}"
        raise ProjectionFailed(what, hint=error.hint) from error


def _is_collated(field: Any) -> bool:
    return " collate " in field.dataType.simpleString()


def _attributes(expression: Node) -> Iterable[Node]:
    return (node for node in expression.walk() if node.kind == "AttributeReference")


def shape_of(expression: Node, name_of: Callable[[Node], str]) -> Shape:
    """How an expression is spelled; ``name_of`` names the column that an attribute is."""
    if expression.kind == "AttributeReference":
        return ("column", name_of(expression))
    if expression.kind in ("Alias", "KnownNotNull", "KnownNullable"):
        return shape_of(expression.children[0], name_of)
    if "replacement" in expression.fields and len(expression.children) == 1:  # how Spark writes it otherwise
        return shape_of(expression.children[0], name_of)
    fields = {name: value for name, value in expression.fields.items() if name not in _OF_A_PLACE}
    parts = tuple(shape_of(child, name_of) for child in expression.children)
    if expression.kind in _UNITS:
        parts = tuple(_lower(part) for part in parts)
    return (expression.kind, json.dumps(fields, sort_keys=True), *parts)


_OF_A_PLACE = frozenset({"exprId", "qualifier", "metadata", "explicitMetadata", "nonInheritableMetadataKeys"})


def _lower(part: Shape) -> Shape:
    kind, *rest = part
    return (kind, *(each.lower() if kind == "Literal" and isinstance(each, str) else each for each in rest))
