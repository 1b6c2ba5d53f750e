"""Projections written in SQL: the header, the lineage that follows from the query, and what is said of mistakes."""

from __future__ import annotations

import logging
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace
from logging.handlers import BufferingHandler
from pathlib import Path

import pytest

from examples.sqlite_sink import SqliteFile
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.model.schema import Column
from tailrace.eventstore.settings import ProjectionSettings
from tailrace.projections import (
    Changes,
    Computed,
    ParquetFolder,
    PostgresTable,
    Projection,
    State,
    Through,
    load_projections,
)
from tailrace.projections.analysis.check import CheckReport, examine, mistake_reports
from tailrace.projections.analysis.check_names import check
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.fingerprint import fingerprint
from tailrace.projections.definition.load import gather_mistakes
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.verify import verify
from tailrace.projections.refresh.plan import Incremental, Nothing
from tailrace.projections.refresh.plan_all import plans
from tests.projections.conftest import Analyse, Deploy
from tests.projections.shoplog import ShopLog, standing_still

TOTALS = """
/* projection
key = "customer_id"
sink = { kind = "parquet", sink = "lake" }
inputs.customers = "shop.public.customers"
inputs.orders = "shop.public.orders"
*/
SELECT c.id AS customer_id, sum(o.amount) AS total -- whatever they paid
FROM customers c LEFT JOIN orders o ON c.id = o.customer_id
GROUP BY c.id
"""

Written = Callable[[str], Projection]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    """The projection of a file ``view.sql`` with a text."""
    monkeypatch.chdir(tmp_path)

    def load(text: str) -> Projection:
        (tmp_path / "view.sql").write_text(textwrap.dedent(text).lstrip())
        (found,) = load_projections([], tmp_path, ["view.sql"]).values()
        return found

    return load


def of(query: str, inputs: str = "", key: str = '"customer_id"', dialect: str = "postgres") -> str:
    """A file with a query over the shop's tables."""
    declared = inputs or "\n".join(
        f'inputs.{table} = "shop.public.{table}"'
        for table in ("customers", "orders", "products")
        if re.search(rf"\b{table}\b", query)
    )
    head = f'key = {key}\nsink = {{ kind = "parquet", sink = "lake" }}\n{declared}'
    head += f'\ndialect = "{dialect}"' if dialect != "postgres" else ""
    return f"/* projection\n{head}\n*/\n{textwrap.dedent(query)}"


def test_a_header_says_what_the_decorator_says(written: Written) -> None:
    found = written(
        """
        -- What each customer paid.
        /* projection
        name = "paid"           # the file's name unless given
        key = ["customer_id", "month"]
        version = 3
        trust = true
        tolerance = { total = 0.01 }

        [sink]
        kind = "postgres"
        sink = "mart"
        table = "paid"
        indexes = ["customer_id", ["month", "total"]]

        [inputs]
        changes = { changes = "shop.public.customers", affects = "*" }

        [inputs.orders]
        state = "shop.public.orders"
        affects = { customer_id = "customer_id", month = { computed = "month(at)" } }
        columns = ["id", "customer_id", "total"]
        cast = { total = "decimal(12,2)" }
        on_unreadable = "null"

        [inputs.lines]
        state = "shop.public.lines"
        affects = { through = "orders", on = { order_id = "id" } }
        */
        SELECT * FROM changes, orders, lines
        """
    )
    assert (found.name, found.key, found.version, found.trust) == (
        "paid", ("customer_id", "month"), "3", True,
    )  # fmt: skip
    assert found.sink == PostgresTable("mart", "paid", indexes=(("customer_id",), ("month", "total")))
    assert dict(found.tolerance) == {"total": 0.01}
    assert dict(found.inputs) == {
        "changes": Changes("shop.public.customers"),
        "orders": State(
            "shop.public.orders",
            affects={"customer_id": "customer_id", "month": Computed("month(at)", "postgres")},
            columns=("id", "customer_id", "total"),
            cast={"total": "decimal(12,2)"},
            on_unreadable="null",
        ),
        "lines": State("shop.public.lines", affects=Through("orders", {"order_id": "id"})),
    }
    assert found.place == "view.sql:29"


LINEAGES = {
    "a join": (
        "SELECT c.id AS customer_id FROM customers c JOIN orders o ON c.id = o.customer_id",
        {"customers": {"customer_id": "id"}, "orders": {"customer_id": "customer_id"}},
    ),
    "a condition, and names without a table where only one has them": (
        "SELECT orders.customer_id, n FROM orders, (SELECT id, count(*) n FROM customers GROUP BY id) c"
        " WHERE orders.customer_id = c.id",
        {"customers": {"customer_id": "id"}, "orders": {"customer_id": "customer_id"}},
    ),
    "both sides of a full join": (
        "SELECT coalesce(c.id, o.customer_id) AS customer_id FROM customers c FULL JOIN orders o"
        " ON o.customer_id = c.id",
        {"customers": {"customer_id": "id"}, "orders": {"customer_id": "customer_id"}},
    ),
    "a table found through another, and one through that": (
        "SELECT customers.id AS customer_id FROM customers"
        " JOIN (SELECT o.id, o.customer_id, p.name FROM orders o JOIN products p ON p.id = o.product_id) l"
        " ON l.customer_id = customers.id",
        {
            "customers": {"customer_id": "id"},
            "orders": {"customer_id": "customer_id"},
            "products": Through("orders", {"id": "product_id"}),
        },
    ),
    "stars and renamed columns": (
        "WITH known(customer_id, word) AS (SELECT id, name FROM customers), every AS (SELECT * FROM orders)"
        " SELECT known.* FROM known JOIN every USING (customer_id)",
        {"customers": {"customer_id": "id"}, "orders": {"customer_id": "customer_id"}},
    ),
    "values that name nothing around them, of which an input may be read by nothing else": (
        "WITH spent AS (SELECT customer_id, sum(amount) AS paid FROM orders GROUP BY customer_id)"
        " SELECT spent.customer_id, (SELECT count(*) FROM products) AS n FROM spent"
        " WHERE paid >= (SELECT max(paid) FROM spent) AND paid > (SELECT avg(o.amount) FROM orders o)",
        {"orders": {"customer_id": "customer_id"}, "products": None},
    ),
    "a union of everything": (
        "SELECT * FROM orders UNION ALL SELECT * FROM orders",
        {"orders": {"customer_id": "customer_id"}},
    ),
}


@pytest.mark.parametrize("case", LINEAGES)
def test_what_inputs_affect_follows_from_the_query(written: Written, case: str) -> None:
    query, expected = LINEAGES[case]
    found = written(of(query))
    assert {name: source.affects for name, source in found.inputs.items()} == expected
    assert found.unfollowed == ()


def test_of_a_key_of_several_columns_those_are_followed_that_groups_and_windows_have(
    written: Written,
) -> None:
    both = written(of(
        "SELECT customer_id, product_id FROM orders GROUP BY ALL", key='["customer_id", "product_id"]'
    ))  # fmt: skip
    assert both.inputs["orders"].affects == {"customer_id": "customer_id", "product_id": "product_id"}
    one = written(of(
        "SELECT customer_id, id, rank() OVER (PARTITION BY customer_id ORDER BY amount) FROM orders",
        key='["customer_id", "id"]',
    ))  # fmt: skip
    assert one.inputs["orders"].affects == {"customer_id": "customer_id"}
    joined = written(of(
        "SELECT c.id AS customer_id, p.id AS product_id FROM orders o JOIN customers c ON c.id = o.customer_id"
        " JOIN products p ON p.id = o.product_id",
        key='["customer_id", "product_id"]',
    ))  # fmt: skip
    assert {name: source.affects for name, source in joined.inputs.items()} == {
        "customers": Through("orders", {"id": "customer_id"}),
        "orders": {"customer_id": "customer_id", "product_id": "product_id"},
        "products": Through("orders", {"id": "product_id"}),
    }


UNFOLLOWED = {
    "nothing joins it": (
        "SELECT orders.customer_id, max(price) FROM orders CROSS JOIN products GROUP BY ALL",
        ["5:1"],
        ["products"],
        "no column of it is set equal to the key, or to a column of an input that leads there",
    ),
    "two readings by two columns": (
        "SELECT o.customer_id, max(r.amount) FROM orders o JOIN orders r ON o.product_id = r.product_id"
        " GROUP BY o.customer_id",
        ["4:1"],
        ["orders"],
        "it is read in 2 places, which do not lead to the key by the same columns",
    ),
    "a computed key": (
        "SELECT\n  max(id) AS customer_id, count(*) FROM orders GROUP BY status",
        ["7:3"],
        ["orders"],
        "its key customer_id is computed: max(id)",
    ),
    "a key that an inner query computes": (
        "WITH made AS (SELECT max(id) AS customer_id FROM orders) SELECT i.customer_id FROM made i",
        ["6:22"],
        ["orders"],
        "its key customer_id is computed: max(id)",
    ),
}


@pytest.mark.parametrize("case", UNFOLLOWED)
def test_what_does_not_follow_is_said_by_name_with_the_line_to_write_and_refused_on_request(
    written: Written, empty_shop: ProjectionContext, tmp_path: Path, case: str
) -> None:
    query, places, names, why = UNFOLLOWED[case]
    found = written(of(query))
    assert [found.inputs[name].affects for name in names] == [None] * len(names)
    assert [each.place for each in found.unfollowed] == [f"view.sql:{place}" for place in places]
    for each in found.unfollowed:
        assert each.level == "warn" and each.what.endswith(f"everything computed: {why}")
        (line,) = re.findall(r'write (inputs\.\w+ = \{ .*?affects = "\*" \})', each.hint)
        text = (tmp_path / "view.sql").read_text()
        (declared,) = re.findall(rf"(?m)^inputs\.{names[0]} = .*$", text)
        assert written(text.replace(declared, line)).unfollowed == ()
    strict = ProjectionSettings(on_unfollowed="error")
    ctx = ProjectionContext(
        empty_shop.store, empty_shop.settings.model_copy(update={"projections": strict}), {}
    )
    with pytest.raises(UsageError, match=r"view.sql:\d+:\d+\): .*everything computed"):
        check(ctx.store, ctx.settings, found)
    refused = {each.place for each in examine(ctx, found).findings if each.level == "fail"}
    assert {f"view.sql:{place}" for place in places} <= refused


COMPUTED: dict[str, tuple[str, dict[str, object]]] = {
    "a call": ("SELECT upper(o.status) AS k FROM orders o GROUP BY 1", {"orders": "upper(status)"}),
    "of an inner query's, also computed": (
        "WITH o AS (SELECT coalesce(status, '?') AS word FROM orders) SELECT left(word, 1) AS k FROM o GROUP BY 1",
        {"orders": "left((coalesce(status, '?')), 1)"},
    ),
    "set equal to a column": (
        "SELECT c.id AS k FROM customers c JOIN orders o ON c.id = o.customer_id + 1",
        {"customers": "id", "orders": "customer_id + 1"},
    ),
    "one total": ("SELECT 'all' AS k, count(*) FROM orders, customers", {"orders": "'all'", "customers": "'all'"}),
    "of two readings, in one way": (
        "SELECT lower(city) AS k FROM customers UNION SELECT lower(c.city) FROM customers c",
        {"customers": "lower(city)"},
    ),
    "of two readings, in two ways": (
        "SELECT lower(city) AS k FROM customers UNION SELECT upper(city) FROM customers", {"customers": None},
    ),
    "of two inputs": (
        "SELECT o.status || c.city AS k FROM customers c JOIN orders o ON c.id = o.customer_id",
        {"customers": None, "orders": None},
    ),
    "of a window": ("SELECT row_number() OVER (ORDER BY id) AS k FROM orders", {"orders": None}),
    "of a query": ("SELECT id + (SELECT 1) AS k FROM orders", {"orders": None}),
}  # fmt: skip


@pytest.mark.parametrize("case", COMPUTED)
def test_what_a_key_is_computed_of_follows_from_the_query(written: Written, case: str) -> None:
    query, expected = COMPUTED[case]
    found = written(
        of(query, "\n".join(f'inputs.{name} = "shop.public.{name}"' for name in expected), key='"k"')
    )
    held = {name: source.affects for name, source in found.inputs.items()}
    plain = {name: next(iter(each.values())) for name, each in held.items() if isinstance(each, Mapping)}
    texts = {
        name: each.expression.lower() if isinstance(each, Computed) else each for name, each in plain.items()
    }
    assert {name: texts.get(name) for name in held} == expected


def test_a_key_that_several_tables_may_have_is_to_be_written_with_its_table(written: Written) -> None:
    query = "SELECT customer_id, name FROM orders JOIN customers ON customer_id = customers.id"
    (ambiguous,) = written(of(query)).unfollowed
    assert ambiguous.what.endswith("its key customer_id may be a column of several tables")
    assert ambiguous.hint == "write it with its table: orders.customer_id or customers.customer_id"
    assert written(of(query.replace("customer_id", "orders.customer_id"))).unfollowed == ()


HEADERS = {
    'inputs.orders.state = "shop.public.orders"': 'inputs.orders.affects = "*"',
    'inputs.orders = { state = "shop.public.orders", cast = { "a b" = "int" }, columns = ["id"] } # all': (
        'inputs.orders = { state = "shop.public.orders", cast = { "a b" = "int" }, columns = ["id"],'
        ' affects = "*" }'
    ),
    '[inputs.orders]\nstate = "shop.public.orders"': 'affects = "*" below [inputs.orders]',
    '[inputs]\n  orders = "shop.public.orders" # all': (
        'orders = { state = "shop.public.orders", affects = "*" }'
    ),
}


@pytest.mark.parametrize("declared", HEADERS)
def test_the_line_to_write_is_the_line_that_declares_the_input(written: Written, declared: str) -> None:
    (found,) = written(of("SELECT max(id) AS customer_id FROM orders", declared)).unfollowed
    assert found.hint.startswith(f"if that is meant, write {HEADERS[declared]};")


def test_a_query_that_nobody_can_follow_is_checked_built_and_computed_in_full(
    shop: ShopLog, deploy: Deploy, written: Written
) -> None:
    ctx = deploy()
    defined = written(of("SELECT max(status) AS word, count(*) n FROM orders", key='"word"'))
    now = ProjectionContext(ctx.store, ctx.settings, {"view": defined}, clock=standing_still)
    found = examine(now, defined)
    assert (found.ok, found.incremental, found.findings) == (True, False, defined.unfollowed)
    assert [each.what for each in found.reasons] == ["no input says what it affects (affects=)"]
    rebuild(now, "view")
    shop.work()
    (refreshed,) = refresh(now)
    assert refreshed.reason.startswith("full: ") and verify(now, "view").equal


REMEDIES = {
    "a self join": (
        "SELECT a.id AS customer_id, b.amount FROM orders a LEFT JOIN orders b ON a.product_id = b.id",
        "declare its table once more, inputs.other_orders, and read other_orders in one of these places",
        "SELECT a.id AS customer_id, b.amount FROM orders a LEFT JOIN other_orders b ON a.product_id = b.id",
    ),
}


@pytest.mark.parametrize("case", REMEDIES)
def test_what_cannot_be_followed_as_it_is_written_is_told_with_what_can(
    written: Written, analysed: Analyse, case: str
) -> None:
    query, remedy, instead = REMEDIES[case]
    (found,) = written(of(query)).unfollowed
    assert found.hint.startswith(f"{remedy}; if that is meant, write inputs.orders = ")
    inputs = "\n".join(
        f'inputs.{name} = "shop.public.{name.removeprefix("other_")}"'
        for name in ("customers", "orders", "other_orders")
        if re.search(rf"\b{name}\b", instead)
    )
    assert analysed(written(of(instead, inputs))).reason is None


def test_a_running_total_is_followed_by_what_it_is_partitioned_by(
    written: Written, analysed: Analyse
) -> None:
    query = (
        "SELECT id, customer_id, sum(amount) OVER (PARTITION BY customer_id ORDER BY id) AS paid FROM orders"
    )
    (found,) = analysed(written(of(query, key='"id"'))).not_local
    assert found.hint == (
        "follow customer_id: key=(customer_id, id), with affects that name customer_id alone;"
        " to partition it by orders.id as well would give another result"
    )
    assert analysed(written(of(query, key='["customer_id", "id"]'))).reason is None


def test_a_derived_lineage_is_proved_on_the_plan_like_a_written_one(
    written: Written, analysed: Analyse
) -> None:
    sound = analysed(written(TOTALS))
    assert (sound.reason, sound.findings) == (None, ())
    twice = "SELECT a.customer_id, count(*) n FROM orders a JOIN orders b ON a.customer_id = b.customer_id"
    assert analysed(written(of(f"{twice} GROUP BY a.customer_id"))).reason is None

    upper = analysed(written(of("SELECT upper(city) AS city, count(*) FROM customers GROUP BY upper(city)",
                                'inputs.customers = { state = "shop.public.customers", affects = "city" }',
                                key='"city"')))  # fmt: skip
    assert "it groups by city" in str(upper.reason)
    assert upper.not_local[0].hint.startswith(
        "the key is computed of city: say so, affects={key: Computed(expression)}, or"
    )
    limited = analysed(written(of("SELECT customer_id, id\nFROM orders\nORDER BY id\nLIMIT 3")))
    assert [found.place for found in limited.not_local] == ["view.sql:9:1"]
    assert limited.reason == "it takes a number of rows of the whole result, not of each key"


def test_queries_about_another_table_are_joins_and_not_in_names_the_one_that_it_may_be(
    written: Written, analysed: Analyse
) -> None:
    whose = "SELECT c.id, c.name FROM customers c WHERE"
    theirs = "(SELECT o.customer_id FROM orders o WHERE o.customer_id = c.id)"
    for condition in (f"EXISTS {theirs}", f"NOT EXISTS {theirs}", "c.id IN (SELECT customer_id FROM orders)"):
        assert analysed(written(of(f"{whose} {condition}", key='"id"'))).reason is None, condition
    not_in = written(of(f"{whose} c.id NOT IN (SELECT customer_id FROM orders)", key='"id"'))  # noqa: S608
    (whole,) = not_in.unfollowed
    assert whole.what.endswith("it is read in NOT IN, which one NULL makes empty")
    assert whole.hint.startswith("write NOT EXISTS, which is the same where neither side can be NULL")
    assert analysed(not_in).reason is None


def test_the_fingerprint_follows_the_words_of_the_query_and_its_header_and_nothing_else(
    written: Written,
) -> None:
    before = fingerprint(written(TOTALS))
    for old, new in {
        " -- whatever they paid": "",
        "\nGROUP": "   GROUP",
        'inputs.orders = "': 'inputs.orders.state = "',
    }.items():
        assert fingerprint(written(TOTALS.replace(old, new, 1))) == before, new
    for old, new in {
        "sum(": "max(",
        "LEFT JOIN": "JOIN",
        '"lake"': '"lake", partition_by = ["total"]',
        "public.orders": "public.sales",
        'key = "': 'version = 2\nkey = "',
        "sink = ": 'dialect = "spark"\nsink = ',
        "inputs.customers": 'time_zone = "Europe/Berlin"\ninputs.customers',
    }.items():
        assert fingerprint(written(TOTALS.replace(old, new, 1))) != before, new


MISTAKEN = """
/* projection
key = ""
sink = { kind = "parquet", sink = "lake", partitioned_by = ["city"] }

[inputs]
orders = { state = "shop.public.", affects = "id" }
customers = { stat = "shop.public.customers" }
products = { state = "shop.public.products", erased = "perhaps" }
*/
SELECT o.id FROM ordres o JOIN shop.customers USING (id)
"""


def examined(folder: Path, **files: str) -> list[CheckReport]:
    """What a check says of files before it looks at plans."""
    for name, text in files.items():
        (folder / f"{name}.sql").write_text(textwrap.dedent(text).lstrip())
    with gather_mistakes() as mistakes:
        load_projections([], folder, ["."])
    return mistake_reports(mistakes)


def test_all_that_is_wrong_with_a_file_is_said_at_once_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (one,) = examined(tmp_path, mistaken=MISTAKEN)
    assert (one.projection, one.place, one.exit_code) == ("mistaken", "mistaken.sql", 2)
    assert [(each.place, each.what) for each in one.findings] == [
        ("mistaken.sql:3:1", "there is no sink.partitioned_by"),
        ("mistaken.sql:7:1", "there is no inputs.customers.stat"),
        (
            "mistaken.sql:8:1",
            "inputs.products.erased: input should be a valid boolean, unable to interpret input",
        ),
    ]
    assert one.findings[0].hint == "did you mean partition_by?"
    (two,) = examined(
        tmp_path,
        mistaken=MISTAKEN.replace("partitioned_by", "partition_by").replace('stat =', 'state =')
        .replace(', erased = "perhaps"', ""),
    )  # fmt: skip
    assert [(each.place, each.what) for each in two.findings] == [
        ("mistaken.sql:10:18", "it reads ordres, which is no input"),
        ("mistaken.sql:10:32", "it reads shop.customers, which is no input"),
        ("mistaken.sql:6:1", "the query does not read the input 'orders'"),
        ("mistaken.sql:7:1", "the query does not read the input 'customers'"),
        ("mistaken.sql:8:1", "the query does not read the input 'products'"),
        ("mistaken.sql:10", "it has no key"),
        ("mistaken.sql:6:1", "input 'orders': 'shop.public.' is not a topic name"),
    ]


def test_a_comment_behind_the_end_of_the_query_is_no_second_statement(
    written: Written, analysed: Analyse
) -> None:
    for more in ("", 'dialect = "spark"\n'):
        text = of("SELECT id, city FROM customers; -- that is all", key='"id"').replace(
            "key =", f"{more}key ="
        )
        assert analysed(written(text)).reason is None


SYNTAX = {
    "a word too many": ("SELECT id\nFORM orders", "9:6", "invalid expression / Unexpected token at 'orders'"),
    "no condition": ("SELECT id FROM orders\nWHERE", "9:1", "required keyword: 'this' missing for Where"),
    "an open text": (
        "SELECT id\nFROM orders WHERE status = 'paid",
        "9:28",
        "' is missing for what begins here",
    ),
    "two statements": ("SELECT id FROM orders; SELECT 1", "8:1", "it holds 2 statements, not one"),
    "no query": ("INSERT INTO orders SELECT 1", "8:1", "it is INSERT, not SELECT"),
    "a parameter": ("SELECT :later FROM orders", "8:8", "there is no parameter :later"),
    "a name that hides an input": (
        "WITH orders AS (SELECT 1 AS id) SELECT id FROM orders",
        "8:6",
        "WITH orders hides the input of that name",
    ),
}


@pytest.mark.parametrize("case", SYNTAX)
def test_a_query_that_cannot_be_read_is_told_with_line_and_column(written: Written, case: str) -> None:
    query, place, words = SYNTAX[case]
    inputs = '\n[inputs]\norders = "shop.public.orders"'
    with pytest.raises(UsageError) as raised:
        written(of(query, inputs))
    assert raised.value.message.startswith(f"projection 'view' (view.sql:{place}): {words}"), (
        raised.value.message
    )
    assert raised.value.hint


def test_a_header_that_is_no_header_is_told(written: Written) -> None:
    for text, words in {
        "SELECT 1": r"\(view.sql:1:1\): it has no header",
        "/* projection\nkey = \n*/ SELECT 1": r"\(view.sql:2:1\): its header is no TOML: Invalid value",
        "/* projection\nkey = 1": r"\(view.sql:1:1\): its header has no end",
        '/* projection\n\nsink = { kind = "mysql" }\n*/ SELECT 1': r"\(view.sql:3:1\): it has no sink of kind 'mysql'",
    }.items():
        with pytest.raises(UsageError, match=words):
            written(text)
    with pytest.raises(
        UsageError,
        match=r"there is no file or folder 'nowhere', which projections.sql names",
    ):
        load_projections([], None, ["nowhere"])


OWN = """
/* projection
key = "id"
inputs.orders = "shop.public.orders"
[sink]
kind = "own"
factory = "examples.sqlite_sink:SqliteFile"
options = { path = "totals.db" }
*/
SELECT id FROM orders
"""


def test_a_sink_of_ones_own_is_made_by_what_the_header_names(written: Written) -> None:
    defined = written(OWN)
    assert defined.sink == SqliteFile("totals.db")
    assert fingerprint(defined) != fingerprint(written(OWN.replace("totals.db", "other.db")))


NO_SINKS = {
    ':SqliteFile"': ('"', r"view.sql:6:1\): sink.factory does not name what makes the sink as module:name"),
    "examples.sqlite_sink": (
        "nowhere",
        r"view.sql:6:1\): module 'nowhere' of sink.factory does not import: Modul",
    ),
    ":SqliteFile": (
        ":SqliteFil",
        r"view.sql:6:1\): module 'examples.sqlite_sink' has no class or function SqliteFil",
    ),
    "examples.sqlite_sink:SqliteFile": ("types:SimpleNamespace", "gives a SimpleNamespace, which is no sink"),
    "path =": (
        "file =",
        r"view.sql:7:1\): examples.sqlite_sink:SqliteFile does not give a sink for these options: Type",
    ),
    '{ path = "totals.db" }': ("1", r"view.sql:7:1\): sink.options is no table"),
    "options =": ("option =", r"view.sql:7:1\): there is no sink.option"),
}


@pytest.mark.parametrize("right", NO_SINKS)
def test_what_makes_no_sink_is_told_with_its_line(written: Written, right: str) -> None:
    wrong, words = NO_SINKS[right]
    with pytest.raises(UsageError, match=words) as raised:
        written(OWN.replace(right, wrong))
    assert raised.value.hint


def test_what_spark_refuses_is_told_with_its_place_in_the_file(
    written: Written, empty_shop: ProjectionContext
) -> None:
    heard = BufferingHandler(100)
    logger = logging.getLogger("SQLQueryContextLogger")
    logger.addHandler(heard)
    query = "SELECT customer_id,\n       custmer_id\nFROM orders"
    found = examine(empty_shop, written(of(query, dialect="spark")))
    logger.removeHandler(heard)
    assert not heard.buffer, "pyspark tells failures, values and all"
    (failed,) = found.findings
    assert "(view.sql:8:8)" in failed.what and "`custmer_id` cannot be resolved" in failed.what
    assert "_pyspark" not in failed.what


AT_ITS_PLACE = {
    "what has no translation": (
        "SELECT customer_id,\n       amount + status AS v\nFROM orders", "numeric + text is not translated",
        "view.sql:7:8",
    ),
    "a column that is not there": (
        "SELECT customer_id,\n       custmer_id\nFROM orders", "there is no column custmer_id", "view.sql:7:8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", AT_ITS_PLACE)
def test_check_says_what_of_a_query_in_postgres_sql_is_not_translated_with_line_and_column(
    written: Written, empty_shop: ProjectionContext, case: str
) -> None:
    query, words, place = AT_ITS_PLACE[case]
    (failed,) = examine(empty_shop, written(of(query))).findings
    assert (failed.level, failed.what, failed.place) == ("fail", words, place) and failed.hint


def test_check_says_all_that_is_not_translated_at_once(
    written: Written, empty_shop: ProjectionContext
) -> None:
    query = "SELECT customer_id, no_such(amount) AS v\nFROM orders\nWHERE gone > 1 AND CURRENT_DATE IS NULL"
    found = examine(empty_shop, written(of(query))).findings
    assert [(each.level, each.place) for each in found] == [
        ("fail", "view.sql:6:21"), ("fail", "view.sql:8:7"), ("fail", "view.sql:8:20"),
    ]  # fmt: skip


def test_what_is_wrong_with_a_result_as_a_whole_is_told_at_the_line_of_the_header(
    written: Written, empty_shop: ProjectionContext
) -> None:
    text = of("SELECT customer_id, count(*) AS n FROM orders GROUP BY customer_id")
    for old, new, words, place in (
        ("AS n", "AS n, 1 AS n", "its output has two columns n", "view.sql:6"),
        ('key = "customer_id"', 'key = "buyer"', "its output lacks its key: no column buyer", "view.sql:2:1"),
        ('"lake"', '"sea"', "there is no sink 'sea'", "view.sql:3:1"),
        ('"lake"', '"lake", partition_by = ["city"]', "sink: the folder is partitioned by", "view.sql:3:1"),
    ):
        found = examine(empty_shop, written(text.replace(old, new))).findings
        (failed,) = [each for each in found if each.level == "fail"]
        assert failed.what.startswith(words) and failed.place == place


def test_what_spark_refuses_of_a_translation_is_told_with_its_place_in_the_file(
    written: Written, empty_shop: ProjectionContext
) -> None:
    query = "SELECT customer_id, id,\n       nth_value(id, 0) OVER (ORDER BY id) AS v\nFROM orders"
    (failed,) = examine(empty_shop, written(of(query))).findings
    assert "(view.sql:7:" in failed.what and "nth_value" in failed.what


def test_names_without_tables_are_given_to_them_by_the_log_and_the_fingerprint_stays_that_of_the_text(
    shop: ShopLog, deploy: Deploy, written: Written
) -> None:
    ctx = deploy()
    query = (
        "SELECT city, count(*) AS n, sum(amount) AS paid FROM orders, customers"
        " WHERE customer_id = customers.id AND city IS NOT NULL GROUP BY city"
    )
    defined = written(of(query, key='"city"'))
    now = ProjectionContext(ctx.store, ctx.settings, {"view": defined}, clock=standing_still)
    found = examine(now, defined)
    assert (found.incremental, found.whole, found.findings) == (True, (), ())
    rebuild(now, "view")
    shop.work()
    assert isinstance(plans(now)[0].plan, Incremental)
    (refreshed,) = refresh(now)
    assert refreshed.reason.startswith("incremental: ") and refreshed.upserts
    assert verify(now, "view").equal
    live = now.live("view")
    assert live is not None and live.fingerprint == fingerprint(defined)


def test_names_are_given_to_results_that_were_never_built_by_what_their_definitions_give(
    written: Written, empty_shop: ProjectionContext
) -> None:
    query = "SELECT place, sum(worth) AS paid FROM known, places WHERE buyer = person GROUP BY place"
    inputs = 'inputs.known = { result = "known" }\ninputs.places = { result = "places" }'
    known = "SELECT id, coalesce(city, 'unknown') AS city"
    defined = {
        "known": written(KNOWN.replace(known, "SELECT id, id AS buyer, 1 AS worth")),
        "places": written(
            KNOWN.replace('"known"', '"places"').replace(known, "SELECT id, id AS person, city AS place")
        ),
        "view": written(of(query, inputs, key='"place"')),
    }
    ctx = ProjectionContext(empty_shop.store, empty_shop.settings, defined)
    found = examine(ctx, defined["view"])
    assert (found.findings, found.incremental, found.whole) == ((), True, ())


@pytest.mark.slow
def test_a_column_that_takes_over_a_name_is_refused_until_the_name_has_its_table_or_it_is_built_anew(
    shop: ShopLog, deploy: Deploy, written: Written
) -> None:
    ctx = deploy()
    inner = "SELECT 1 FROM orders WHERE customer_id = customers.id AND city <> 'x'"
    joined = "SELECT customers.id, count(*) AS n, max(city) AS city FROM customers JOIN orders ON customer_id"
    texts = {
        "taken_over": of(f"SELECT id, name FROM customers WHERE EXISTS ({inner})", key='"id"'),  # noqa: S608
        "ambiguous": of(f"{joined} = customers.id GROUP BY customers.id", key='"id"'),
    }

    def deployed(texts: Mapping[str, str]) -> ProjectionContext:
        defined = {
            name: written(text.replace("key =", f'name = "{name}"\nkey =', 1)) for name, text in texts.items()
        }
        return ProjectionContext(ctx.store, ctx.settings, defined, clock=standing_still)

    now = deployed(texts)
    for name in texts:
        rebuild(now, name)
    shop.work()
    assert [each.kind for each in refresh(now)] == ["incremental", "incremental"]
    before = {name: ctx.store.steps.last(name, 1) for name in texts}

    orders = shop.schemas["orders"]
    wider = replace(orders, version=2, columns=(*orders.columns, Column(7, "city", 25, type_name="text")))
    shop.commit({"orders": [("c", shop.order(901) | {"city": "x"})]}, new_schemas={"orders": wider})
    was = "city was customers.city of the query around it, and is orders.city since the columns of its inputs changed"
    both = "the column city may be one of several tables"
    planned = {each.projection: each.plan for each in plans(now)}
    assert isinstance(planned["taken_over"], Nothing) and was in planned["taken_over"].reason
    outcomes = {each.projection: each for each in refresh(now)}
    for name, words in {"taken_over": was, "ambiguous": both}.items():
        assert outcomes[name].status == "failed" and words in outcomes[name].reason
        assert ctx.store.steps.last(name, 1) == before[name]
        (found,) = [each for each in examine(now, now.projections[name]).findings if words in each.what]
        assert found.level == "fail" and found.place.count(":") == 2
        assert f"{found.place}: " in outcomes[name].reason
        assert "customers.city" in found.hint

    taken, named = "AND city", "AND customers.city"
    qualified = deployed({
        "taken_over": texts["taken_over"].replace(taken, named),
        "ambiguous": texts["ambiguous"].replace("max(city)", "max(customers.city)"),
    })  # fmt: skip
    for name in texts:
        rebuild(qualified, name)
        assert verify(qualified, name).equal
    rebuild(now, "taken_over")
    shop.work()
    assert refresh(now, ["taken_over"])[0].status == "done" and verify(now, "taken_over").equal


def test_it_is_built_followed_by_key_verified_and_built_anew_when_its_words_change(
    shop: ShopLog, deploy: Deploy, written: Written
) -> None:
    ctx = deploy()

    def deployed(text: str) -> ProjectionContext:
        return ProjectionContext(ctx.store, ctx.settings, {"view": written(text)}, clock=standing_still)

    now = deployed(TOTALS)
    assert rebuild(now, "view").rows == len(shop.state["customers"])
    shop.work()
    assert isinstance(plans(now)[0].plan, Incremental)
    (refreshed,) = refresh(now)
    assert refreshed.reason.startswith("incremental: ") and refreshed.upserts
    assert verify(now, "view").equal

    changed = deployed(TOTALS.replace("LEFT JOIN", "JOIN"))
    assert [outcome.status for outcome in refresh(changed)] == ["frozen"]
    buyers = {order["customer_id"] for order in shop.state["orders"].values()} & set(shop.state["customers"])
    assert rebuild(changed, "view").rows == len(buyers)
    assert isinstance(plans(changed)[0].plan, Nothing)


KNOWN = """
/* projection
name = "known"
key = "id"
sink = { kind = "parquet", sink = "lake" }
inputs.customers = "shop.public.customers"
*/
SELECT id, coalesce(city, 'unknown') AS city FROM customers
"""


def test_a_key_that_may_be_null_is_noted_and_both_ways_out_stay_incremental(
    shop: ShopLog, deploy: Deploy, written: Written
) -> None:
    ctx = deploy()
    defined = {
        "known": written(KNOWN),
        "view": written(of("SELECT city, count(*) AS n FROM known GROUP BY city",
                           'inputs.known = { result = "known" }', key='"city"')),
    }  # fmt: skip
    query = "SELECT city, count(*) AS n FROM customers GROUP BY city"
    may_be_null = written(of(query, key='"city"'))
    left_out = written(of(query.replace("GROUP", "WHERE city IS NOT NULL GROUP"), key='"city"'))
    now = ProjectionContext(ctx.store, ctx.settings, defined, clock=standing_still)
    (note,) = examine(now, may_be_null).notes
    assert note.startswith("nothing in its plan says that its key city is never NULL") and "coalesce(" in note
    kept = examine(now, left_out)
    assert (kept.incremental, kept.notes) == (True, ())

    for name in defined:
        rebuild(now, name)
    shop.commit({"customers": [("u", shop.state["customers"][1] | {"city": None})]})
    assert [each.reason.split(":")[0] for each in refresh(now)] == ["incremental", "incremental"]
    assert verify(now, "view").equal


def test_a_text_that_spark_reads_as_a_clock_is_found(written: Written, analysed: Analyse) -> None:
    query = """SELECT customer_id, count(*) AS n, -- not DATE 'yesterday', and not
               max(timestamp   'now') AS seen, max('today') AS word
               FROM orders GROUP BY customer_id"""
    found = analysed(written(of(query, dialect="spark")))
    (clock,) = found.findings
    assert clock.what == "timestamp   'now' is another time in each refresh"
    assert clock.place == "view.sql:8:20" and found.reason == clock.what


def test_the_time_is_a_parameter(written: Written) -> None:
    text = of("SELECT customer_id, max(:now) AS seen FROM orders GROUP BY customer_id")
    assert written(text).wants_now
    assert isinstance(written(text).sink, ParquetFolder)
