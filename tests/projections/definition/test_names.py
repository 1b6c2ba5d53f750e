"""What names without a table mean in a query in SQL, and which columns more or less would change that. No Spark, no
catalog."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.projections.definition.sql.load import load_sql

TABLES = {"customers": ["id", "city"], "orders": ["id", "customer_id", "amount"]}


def changed(
    folder: Path, query: str, now: dict[str, list[str]], dialect: str = "postgres"
) -> list[tuple[str, str]]:
    """What is said when the tables have other columns than at first, and the query from there on."""
    inputs = "\n".join(f'inputs.{name} = "shop.public.{name}"' for name in TABLES if name in query)
    head = f'key = "id"\ndialect = "{dialect}"\nsink = {{ kind = "parquet", sink = "lake" }}\n{inputs}'
    (folder / "view.sql").write_text(f"/* projection\n{head}\n*/\n{query}")
    defined = load_sql(folder / "view.sql").projection
    assert defined is not None and defined.names is not None
    found = list(defined.names.changed_names(defined, TABLES, TABLES | now))
    lines = len(head.splitlines()) + 3
    for each in found:
        assert each.level == "fail" and each.hint.endswith("or tailrace rebuild view for what it means now")
    said = [each.what.removesuffix(" since the columns of its inputs changed") for each in found]
    places = [each.place.split(":") for each in found]
    assert {int(line) for _, line, _ in places} <= {lines}
    return [(what, query[int(column) - 1 :]) for what, (_, _, column) in zip(said, places, strict=True)]


IN_ORDERS = {"orders": [*TABLES["orders"], "city"]}
CHANGED = {
    "a query around has it no more": (
        "SELECT id FROM customers WHERE EXISTS (SELECT 1 FROM orders WHERE customer_id = customers.id AND city <> 'x')",
        IN_ORDERS,
        [("city was customers.city of the query around it, and is orders.city", "city <>")],
    ),
    "in a value": (
        "SELECT id, (SELECT max(amount) FROM orders AS o WHERE customer_id = c.id AND city > '') AS n FROM customers c",
        IN_ORDERS,
        [("city was c.city of the query around it, and is o.city", "city >")],
    ),
    "the query inside has it no more": (
        "SELECT id FROM orders WHERE EXISTS (SELECT 1 FROM customers WHERE customer_id > 2 AND id > 3)",
        {"customers": ["city"]},
        [("id was customers.id, and is orders.id of the query around it", "id > 3")],
    ),
    "a group is no more by a column of the result": (
        "SELECT max(id) AS id, lower(city) AS word FROM customers GROUP BY word",
        {"customers": ["id", "city", "word"]},
        [("word was a column of the result, and is customers.word", "word")],
    ),
    "an order is still by a column of the result": (
        "SELECT id, lower(city) AS word FROM customers ORDER BY word",
        {"customers": ["id", "city", "word"]},
        [],
    ),
    "a natural join is by one more": (
        "SELECT id, amount FROM orders NATURAL JOIN customers",
        IN_ORDERS,
        [("NATURAL JOIN was one by id, and is one by id, city", "customers")],
    ),
    "an inner query of FROM sees nothing around": (
        "SELECT c.id FROM customers c, (SELECT customer_id FROM orders) o WHERE c.id = customer_id AND city > ''",
        IN_ORDERS,
        [],
    ),
    "what two tables have now is refused where it is read": (
        "SELECT customers.id, city FROM customers JOIN orders ON customers.id = customer_id",
        IN_ORDERS,
        [],
    ),
    "with its table it stays": (
        "SELECT c.id FROM customers c WHERE EXISTS (SELECT 1 FROM orders o WHERE o.id = c.id AND c.city <> 'x')",
        IN_ORDERS,
        [],
    ),
    "columns that nobody names": (
        "SELECT id, (SELECT max(amount) FROM orders WHERE customer_id = customers.id) AS most FROM customers",
        {"customers": ["note", "id", "city"], "orders": ["rank", *TABLES["orders"]]},
        [],
    ),
    "through a common table expression": (
        "WITH placed AS (SELECT * FROM orders) SELECT id FROM customers"
        " WHERE EXISTS (SELECT 1 FROM placed WHERE customer_id = customers.id AND city <> 'x')",
        IN_ORDERS,
        [("city was customers.city of the query around it, and is placed.city", "city <>")],
    ),
    "a value that becomes one of all rows": (
        "SELECT id, (SELECT max(amount) FROM orders WHERE city > 'x') AS n FROM customers",
        IN_ORDERS,
        [("city was customers.city of the query around it, and is orders.city", "city >")],
    ),
    "LATERAL": (
        "SELECT c.id FROM customers c, LATERAL (SELECT 1 FROM orders WHERE customer_id = c.id AND city > 'x') AS o",
        IN_ORDERS,
        [("city was c.city of the query around it, and is orders.city", "city >")],
    ),
    "joins in parentheses": (
        "SELECT c.id FROM (customers AS c JOIN orders AS o ON c.id = customer_id) WHERE EXISTS"
        " (SELECT 1 FROM orders AS p WHERE p.id = o.id AND city > 'x')",
        IN_ORDERS,
        [("city was c.city of the query around it, and is p.city", "city >")],
    ),
    "two queries further out": (
        "SELECT id FROM customers WHERE EXISTS (SELECT 1 FROM orders WHERE customer_id = customers.id"
        " AND EXISTS (SELECT 1 FROM orders AS o WHERE o.id = orders.id AND city <> 'x'))",
        IN_ORDERS,
        [("city was customers.city of the query around it, and is o.city", "city <>")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("dialect", ["postgres", "spark"])
@pytest.mark.parametrize("case", CHANGED)
def test_a_name_that_other_columns_give_another_meaning_is_told_with_both(
    tmp_path: Path, case: str, dialect: str
) -> None:
    query, now, expected = CHANGED[case]
    found = changed(tmp_path, query, now, dialect)
    assert [what for what, _ in found] == [what for what, _ in expected]
    for (_, rest), (_, there) in zip(found, expected, strict=True):
        assert rest.startswith(there)
