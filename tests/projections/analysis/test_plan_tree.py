"""Plans as Spark tells them, and the proof on them, without Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace.projections.analysis.locality.walk import prove
from tailrace.projections.analysis.plan_tree import read
from tailrace.projections.analysis.spread import InputFacts
from tailrace.projections.compute.scalar_subqueries import MARK
from tailrace.projections.definition.lineage import Direct, Lineage

PACKAGE = "org.apache.spark.sql.catalyst."


def node(kind: str, count: int = 0, /, **fields: Any) -> dict[str, Any]:
    return {"class": f"{PACKAGE}{kind}", "num-children": count, **fields}


def column(id_: int, name: str) -> dict[str, Any]:
    return node("expressions.AttributeReference", name=name, dataType="long", exprId={"id": id_})


def reading(name: str, *columns: dict[str, Any]) -> list[dict[str, Any]]:
    """An input as the analysis marks it."""
    mark = {"name": MARK + name, "qualifier": []}
    return [
        node("plans.logical.SubqueryAlias", 1, identifier=mark, child=0),
        node("plans.logical.LocalRelation", output=[[each] for each in columns]),
    ]


ORDERS = reading("orders", column(1, "id"), column(2, "customer_id"))
CUSTOMERS = reading("customers", column(3, "id"))
LINEAGE = Lineage(
    ("customer_id",), {"orders": Direct(("customer_id",)), "customers": Direct(("id",))}, unknown=()
)
FACTS = {name: InputFacts(name, (("id",),)) for name in ("orders", "customers")}


def joined(kind: str, *condition: dict[str, Any]) -> list[dict[str, Any]]:
    join = node("plans.logical.Join", 2, left=0, right=1, joinType={"object": f"{PACKAGE}{kind}$"},
                condition=list(condition))  # fmt: skip
    return [join, *CUSTOMERS, *ORDERS]


def named(id_: int, of: dict[str, Any], plan: list[dict[str, Any]]) -> list[dict[str, Any]]:
    alias = node("expressions.Alias", 1, child=0, name="customer_id", exprId={"id": id_})
    return [node("plans.logical.Project", 1, projectList=[[alias, of]], child=0), *plan]


EQUAL = (node("expressions.EqualTo", 2, left=0, right=1), column(3, "id"), column(2, "customer_id"))


def obstacles(plan: list[dict[str, Any]]) -> list[str]:
    return [each.what for each in prove(read(json.dumps(plan)), LINEAGE, FACTS).obstacles]


@pytest.mark.parametrize(
    ("kind", "left", "right"),
    [
        ("Inner", True, True),
        ("LeftOuter", True, False),
        ("RightOuter", False, True),
        ("FullOuter", False, False),
    ],
)
def test_the_key_is_on_the_side_of_a_join_that_is_never_null(kind: str, left: bool, right: bool) -> None:
    of_left = obstacles(named(9, column(3, "id"), joined(kind, *EQUAL)))
    of_right = obstacles(named(9, column(2, "customer_id"), joined(kind, *EQUAL)))
    assert (of_left == [], of_right == []) == (left, right)


def test_a_full_join_has_its_key_in_the_first_that_is_not_null() -> None:
    first = node("expressions.Alias", 1, child=0, name="customer_id", exprId={"id": 9})
    both = [
        first,
        node("expressions.Coalesce", 2, children=[0, 1]),
        column(2, "customer_id"),
        column(3, "id"),
    ]
    one = [first, node("expressions.Coalesce", 1, children=[0]), column(3, "id")]
    project = node("plans.logical.Project", 1, child=0)
    full = joined("FullOuter", *EQUAL)
    assert obstacles([project | {"projectList": [both]}, *full]) == []
    assert obstacles([project | {"projectList": [one]}, *full]) == [
        "its key customer_id is NULL in rows that an outer join keeps"
    ]


def test_a_join_that_does_not_demand_the_key_is_an_obstacle_and_the_only_one() -> None:
    other = (node("expressions.EqualTo", 2, left=0, right=1), column(3, "id"), column(1, "id"))
    (what,) = obstacles(named(9, column(3, "id"), joined("Inner", *other)))
    assert "does not demand customers.id = orders.customer_id" in what


def test_an_operator_that_nobody_knows_is_an_obstacle() -> None:
    (what,) = obstacles([node("plans.logical.Fold", 1, child=0), *ORDERS])
    assert what == "it goes through Fold, of which nobody knows whether it keeps keys apart"


@pytest.mark.parametrize(
    "wrong", ["{}", "[]", json.dumps([node("a.B", 1)]), json.dumps([node("a.B"), node("a.C")])]
)
def test_what_is_no_plan_is_refused(wrong: str) -> None:
    with pytest.raises((ValueError, IndexError)):
        read(wrong)


def test_a_plan_of_a_thousand_levels_is_read() -> None:
    deep = [node("plans.logical.Sort", 1, child=0)] * 1_000 + ORDERS
    assert read(json.dumps(deep)).kind == "Sort"
