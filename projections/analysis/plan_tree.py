"""A query plan as a small tree of our own, read from what Spark says of it: the guards walk it without Spark.

Spark gives a plan as JSON in one call (``TreeNode.toJSON``): nodes in preorder, each with its class, its number of
children and its constructor's arguments. An argument that is a child is the child's number; an expression is such a
list itself. Read here once; nothing else knows the shape. The functions at the end are all that is asked
of Spark itself: a plan's JSON, the rows in it, what is not deterministic.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HIDDEN = '"projections":null'


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """An operator of a plan or an expression in one. ``kind`` is Spark's class without its package
    (``Aggregate``, ``AttributeReference``); ``fields`` are its arguments as Spark gives them. The expressions in them
    are the same nodes each time."""

    kind: str
    fields: Mapping[str, Any]
    children: tuple[Node, ...]
    _read: dict[str, tuple[Node, ...]] = field(default_factory=dict, repr=False)

    def walk(self) -> Iterator[Node]:
        """This node and all below it, expressions in its fields left out."""
        yield self
        for child in self.children:
            yield from child.walk()

    def expressions(self, field: str) -> tuple[Node, ...]:
        """The expressions of a field; none when Spark gives none."""
        if field not in self._read:
            self._read[field] = self._expressions(field)
        return self._read[field]

    def _expressions(self, field: str) -> tuple[Node, ...]:
        value = self.fields.get(field)
        if not isinstance(value, list) or not value:
            return ()
        if isinstance(value[0], dict):
            return (_tree(value),)
        if isinstance(value[0], int):
            return tuple(self.children[at] for at in value)
        return tuple(_tree(nodes) for nodes in value if nodes)

    def lists(self, field: str) -> tuple[tuple[Node, ...], ...]:
        """The expressions of a field that is a list of lists of them."""
        value = self.fields.get(field)
        return tuple(tuple(map(_tree, each)) for each in value) if isinstance(value, list) else ()

    def expression(self, field: str) -> Node | None:
        """The one expression of a field."""
        value = self.fields.get(field)
        if isinstance(value, int) and not isinstance(value, bool):
            return self.children[value] if 0 <= value < len(self.children) else None
        found = self.expressions(field)
        return found[0] if found else None

    def all_expressions(self) -> Iterator[Node]:
        """The expressions of an operator's fields, whatever these are called."""
        for _, expression, _ in self.columns_made():
            yield expression

    def columns_made(self) -> Iterator[tuple[str, Node, int | None]]:
        """The same with the names of the fields, and with the column that each makes, if it makes one. Rollup and
        unpivot (Expand) make each row several times, so that there are several expressions of a column."""
        for name, value in self.fields.items():
            if (
                isinstance(value, list)
                and value
                and _is_tree(value[0][0] if isinstance(value[0], list) else value[0])
            ):
                for each in self.expressions(name):
                    is_new = "exprId" in each.fields and each.kind != "AttributeReference"
                    yield name, each, each.id if is_new else None
        rows = self.lists("projections")
        if self.kind == "Expand" and not rows:
            raise ValueError("Spark does not say what an unpivot in a subquery makes")
        for row in rows:
            for column, each in zip(self.expressions("output"), row, strict=True):
                yield "projections", each, column.id

    @property
    def id(self) -> int:
        """What tells the column of an attribute or alias apart. Raises KeyError for other nodes."""
        return int(self.fields["exprId"]["id"])

    @property
    def name(self) -> str:
        return str(self.fields.get("name", ""))

    @property
    def type(self) -> str:
        """The data type as Spark writes it (``long``, ``decimal(12,2)``), ``struct`` and so on for nested ones."""
        value = self.fields.get("dataType")
        return str(value.get("type", "")) if isinstance(value, dict) else str(value or "")

    def object_name(self, field: str) -> str:
        """The name of a Scala object in a field: ``LeftOuter`` for a join's type."""
        value = self.fields.get(field)
        if isinstance(value, dict):
            return _short(str(value.get("object") or value.get("product-class") or ""))
        return str(value or "")


def _is_tree(value: object) -> bool:
    return isinstance(value, dict) and "num-children" in value


def read(text: str) -> Node:
    """The tree that ``TreeNode.toJSON`` gave. Raises ValueError for anything else."""
    value = json.loads(text)
    if not isinstance(value, list) or not value:
        raise ValueError("a plan is a list of nodes in preorder")
    return _tree(value)


def plan_constants(result: DataFrame, text: str) -> list[str]:
    """The constants of a plan that ``plan_json`` gave, also of those inside it. Of binary ones the JSON has no value;
    Spark is asked for these."""
    found = literals(text)
    if '"binary"' in text:
        found += [
            str(leaf.sql())
            for part in _parts(result)
            for node in _walk(part)
            for each in _to_list(node.expressions())
            for leaf in _to_list(each.collectLeaves())
            if leaf.getClass().getSimpleName() == "Literal"
        ]
    return found


def literals(text: str) -> list[str]:
    """The constants of a plan that ``TreeNode.toJSON`` gives, also of those inside it, in its order; without binary
    ones, of which it has an address."""
    found: list[str] = []
    todo: list[Any] = [json.loads(text)]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            if str(value.get("class", "")).endswith(".Literal") and value.get("dataType") != "binary":
                found.append(str(value.get("value")))
            todo += value.values()
        elif isinstance(value, list):
            todo += value
    return found


def _tree(nodes: Sequence[Mapping[str, Any]]) -> Node:
    """Nodes in preorder, as a tree. Deep plans have thousands of levels, so that this is no recursion."""
    done: list[Node] = []
    for value in reversed(nodes):
        count = int(value["num-children"])
        children = tuple(done.pop() for _ in range(count))
        fields = {name: argument for name, argument in value.items() if name not in ("class", "num-children")}
        done.append(Node(_short(str(value["class"])), fields, children))
    if len(done) != 1:
        raise ValueError(f"{len(done)} trees in one plan")
    return done[0]


def _short(name: str) -> str:
    return name.rstrip("$").rpartition(".")[2].rpartition("$")[2]


def plan_json(result: DataFrame) -> str:
    """The plan in one call, for ``read``. Spark leaves out what ``unpivot`` makes; that is asked of its operator."""
    return json_of(analysed_plan(result))


def json_of(plan: Any) -> str:
    """``plan_json`` of a plan in the JVM."""
    text = str(plan.toJSON())
    if _HIDDEN not in text:
        return text
    nodes = json.loads(text)
    for value, node in zip(nodes, _walk(plan), strict=True):
        if value.get("projections", ()) is None:
            rows = map(_to_list, _to_list(node.projections()))
            value["projections"] = [[json.loads(each.toJSON()) for each in row] for row in rows]
    return json.dumps(nodes)


def holds_rows(result: DataFrame) -> bool:
    """Has its plan rows that another plan gives, which it does not show? So it is behind ``checkpoint`` and ``rdd``;
    ``createDataFrame`` of Python's values has none but those."""
    for part in _parts(result):
        for leaf in _to_list(part.collectLeaves()):
            if leaf.getClass().getSimpleName() == "LogicalRDD":
                rows = leaf.rdd()
                if rows.checkpointData().isDefined() or "SQLExecutionRDD" in rows.toDebugString():
                    return True
    return False


def nondeterministic_classes(result: DataFrame) -> frozenset[str]:
    """The classes of the expressions that Spark says are not deterministic, without those that are so for what is in
    them."""
    parts = [part for part in _parts(result) if not part.deterministic()]
    expressions = [each for part in parts for node in _walk(part) for each in _to_list(node.expressions())]
    return frozenset(made for each in expressions for made in _own_classes(each))


def analysed_plan(result: DataFrame) -> Any:
    """The plan in the JVM."""
    frame: Any = result
    return frame._jdf.queryExecution().analyzed()


def _parts(result: DataFrame) -> list[Any]:
    plan = analysed_plan(result)
    return [plan, *_to_list(plan.subqueriesAll())]


def _walk(node: Any) -> Iterator[Any]:
    yield node
    for child in _to_list(node.children()):
        yield from _walk(child)


def _own_classes(expression: Any) -> Iterator[str]:
    if not expression.deterministic():
        inside = [name for child in _to_list(expression.children()) for name in _own_classes(child)]
        yield from inside or [str(expression.getClass().getSimpleName())]


def _to_list(of_scala: Any) -> list[Any]:
    return [of_scala.apply(at) for at in range(of_scala.size())]
