"""What a projection, Spark and the sinks complain about quotes no value of a row unless values are shown."""

from __future__ import annotations

import pytest
from redis import Redis

from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import DifferenceFound, TailraceError, TransientError
from tailrace.projections.definition.model import ProjectionFailed
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.verify import verify
from tests.projections.conftest import Deploy
from tests.projections.shoplog import ShopLog

MARK = "Zq7mark"
HEAD = """
    from pyspark.sql import functions as F
    from tailrace.projections import PostgresTable, RedisCache, State, projection

    CUSTOMERS = State("shop.public.customers")
"""
# Each meets the marked name in another place: user code in a worker, Spark's own code, our tasks, the sinks.
FAILING = {
    "raising": """
    @projection(key="id", sink=PostgresTable("mart", "raising"), customers=CUSTOMERS)
    def raising(customers):
        def refuse(name):
            if name.startswith("Zq7"):
                raise ValueError("what a name: " + name)
            return name
        return customers.select("id", F.udf(refuse)("name").alias("name"))
    """,
    "casting": """
    @projection(key="id", sink=PostgresTable("mart", "casting"), customers=CUSTOMERS)
    def casting(customers):
        marked = customers.where("name LIKE 'Zq7%'")
        return marked.select("id", F.col("name").cast("int").alias("name"))
    """,
    "repeating": """
    @projection(key="name", sink=PostgresTable("mart", "repeating"), customers=CUSTOMERS)
    def repeating(customers):
        return customers.where("name LIKE 'Zq7%'").select("name").unionAll(customers.select("name"))
    """,
    "refused": """
    @projection(key="id", sink=PostgresTable("mart", "refused", json=("name",)), customers=CUSTOMERS)
    def refused(customers):
        return customers.where("name LIKE 'Zq7%'").select("id", "name")
    """,
}
CACHED = """
    @projection(key="name", sink=RedisCache("cache"), customers=CUSTOMERS)
    def cached(customers):
        return customers.where("name LIKE 'Zq7%'").select("name", "id")
"""


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(disclosure.VARIABLE, raising=False)
    return


def told(error: BaseException) -> str:
    """All that any command may print of it."""
    return f"{error}\n{disclosure.traceback_of(error)}"


@pytest.mark.slow
@pytest.mark.usefixtures("hidden")
def test_values_that_a_projection_fails_on_are_not_told(
    shop: ShopLog, deploy: Deploy, capfd: pytest.CaptureFixture[str]
) -> None:
    shop.commit({"customers": [("c", {"id": 77, "name": MARK, "city": "Turku"})]})
    context = deploy(HEAD + "".join(FAILING.values()))
    for name in FAILING:
        for shown in (False, True):
            with disclosure.show_values(shown), pytest.raises(TailraceError) as raised:
                rebuild(context, name)
            with disclosure.show_values(shown):
                text = told(raised.value)
            assert (MARK in text) == shown, f"{name}: {text}"
            assert f"'{name}'" in text or "sink 'mart'" in text
        runs = [run for run in context.store.run_records.latest(name) if run.status == "failed"]
        shown_too, hidden = runs
        assert hidden.kind == shown_too.kind == "build"
        assert f"'{name}'" in hidden.reason or "sink 'mart'" in hidden.reason
        assert MARK not in hidden.reason + shown_too.reason
    printed = capfd.readouterr()
    assert MARK not in printed.out + printed.err, "pyspark's own log"


@pytest.mark.usefixtures("hidden")
def test_a_row_of_a_sink_that_is_none_of_ours_is_not_quoted(
    shop: ShopLog, deploy: Deploy, redis_url: str
) -> None:
    shop.commit({"customers": [("c", {"id": 77, "name": MARK, "city": "Turku"})]})
    context = deploy(HEAD + CACHED)
    rebuild(context, "cached")
    with Redis.from_url(redis_url) as client:
        (key,) = [key for key in client.scan_iter() if key.endswith(f"}}:{MARK}".encode())]
        client.set(key, f'{{"name": "{MARK}", "id": "{MARK}"}}')
    for shown in (False, True):
        with disclosure.show_values(shown), pytest.raises(DifferenceFound) as raised:
            verify(context, "cached")
        assert (MARK in str(raised.value)) == shown, raised.value


JAVA = """
    from tailrace.projections import ParquetFolder, State, projection

    @projection(key="id", sink=ParquetFolder("lake"), customers=State("shop.public.customers"))
    def broken(customers):
        customers.sparkSession._jvm.{call}
        return customers
"""


@pytest.mark.usefixtures("hidden")
@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (
            f"java.lang.Class.forName('{MARK}')",
            ProjectionFailed,
            "Py4JJavaError: java.lang.ClassNotFoundException: <hidden",
        ),
        (
            "java.util.ArrayList(2147483647)",
            TransientError,
            "Spark ran out of memory while defining its result",
        ),
        *(
            (
                f"scala.sys.package.error('{said}')",
                TransientError,
                "Spark ran out of memory while defining its result",
            )
            for said in (
                "org.apache.spark.memory.SparkOutOfMemoryError: Unable to acquire 4 bytes",
                "Not enough memory to build and broadcast the table to all worker nodes",
            )
        ),
    ],
)
def test_what_the_jvm_raises_is_told_by_its_class_and_what_the_machine_lacks_is_no_mistake_of_the_function(
    shop: ShopLog, deploy: Deploy, call: str, kind: type[TailraceError], words: str
) -> None:
    with pytest.raises(kind) as raised:
        rebuild(deploy(JAVA.format(call=call)), "broken")
    assert words in str(raised.value) and MARK not in str(raised.value)
