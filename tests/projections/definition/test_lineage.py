"""What the lineages of a projection's inputs have in common, and by which columns each input's rows are found."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.projections import PostgresTable, Projection, State, Through
from tailrace.projections.definition.lineage import Direct, Lineage, Link, lineage_of
from tailrace.projections.definition.model import Affects


def of(key: Sequence[str], **affects: Affects) -> Lineage:
    inputs = {name: State(f"shop.public.{name}", affects=given) for name, given in affects.items()}
    return lineage_of(Projection("p", tuple(key), PostgresTable("mart", "p"), inputs, lambda **_: None))


def test_inputs_name_the_keys_columns_or_their_own() -> None:
    found = of(["customer_id"], customers={"customer_id": "id"}, orders="customer_id", notes="customer")
    assert found.key == ("customer_id",)
    assert found.paths == {
        "customers": Direct(("id",)),
        "orders": Direct(("customer_id",)),
        "notes": Direct(("customer",)),
    }
    assert not found.unknown


def test_only_what_every_lineage_gives_tells_rows_apart() -> None:
    found = of(["shop", "day", "item"], a=("item", "shop", "day"), b={"item": "id", "shop": "s"}, c=None)
    assert found.key == ("shop", "item")
    assert found.paths == {"a": Direct(("shop", "item")), "b": Direct(("s", "id"))}
    assert found.unknown == ("c",)
    assert of(["x", "y"], a={"x": "x"}, b={"y": "y"}).key == ()
    assert of(["x", "y"], a=("p", "q")).paths == {"a": Direct(("p", "q"))}
    assert of(["x"], a=None).paths == {}


def test_a_row_goes_where_the_row_goes_that_it_belongs_to() -> None:
    found = of(
        ["customer_id"],
        notes=Through("lines", {"order": "order_id", "line": "number"}),
        lines=Through("orders", {"order_id": "id"}),
        orders="customer_id",
    )
    assert found.key == ("customer_id",)
    assert list(found.paths) == ["orders", "lines", "notes"], "those that others go through come first"
    assert found.paths["notes"] == Link("lines", ("order", "line"), ("order_id", "number"))
    assert found.columns_of("orders") == ("customer_id", "id")
    assert found.columns_of("lines") == ("order_id", "number")
    assert found.columns_of("notes") == ("order", "line")
