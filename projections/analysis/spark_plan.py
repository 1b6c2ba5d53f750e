"""What Spark itself says of a DataFrame's analysed plan: its text, the rows in it, and what is not deterministic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def plan_json(result: DataFrame) -> str:
    """The plan in one call, for ``plan_tree`` to read."""
    return str(_analysed(result).toJSON())


def holds_rows(result: DataFrame) -> bool:
    """Has its plan rows that another plan gives, which it does not show? So it is behind ``checkpoint`` and ``rdd``;
    ``createDataFrame`` of Python's values has none but those."""
    for part in _parts(result):
        for leaf in _listed(part.collectLeaves()):
            if leaf.getClass().getSimpleName() == "LogicalRDD":
                rows = leaf.rdd()
                if rows.checkpointData().isDefined() or "SQLExecutionRDD" in rows.toDebugString():
                    return True
    return False


def not_deterministic(result: DataFrame) -> frozenset[str]:
    """The classes of the expressions that Spark says are not deterministic, without those that are so for what is in
    them."""
    parts = [part for part in _parts(result) if not part.deterministic()]
    expressions = [each for part in parts for node in _below(part) for each in _listed(node.expressions())]
    return frozenset(made for each in expressions for made in _own(each))


def _analysed(result: DataFrame) -> Any:
    frame: Any = result
    return frame._jdf.queryExecution().analyzed()


def _parts(result: DataFrame) -> list[Any]:
    plan = _analysed(result)
    return [plan, *_listed(plan.subqueriesAll())]


def _below(node: Any) -> Iterator[Any]:
    yield node
    for child in _listed(node.children()):
        yield from _below(child)


def _own(expression: Any) -> Iterator[str]:
    if not expression.deterministic():
        inside = [name for child in _listed(expression.children()) for name in _own(child)]
        yield from inside or [str(expression.getClass().getSimpleName())]


def _listed(of_scala: Any) -> list[Any]:
    return [of_scala.apply(at) for at in range(of_scala.size())]
