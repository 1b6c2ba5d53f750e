"""A projection against its own query, run in the source: what is equal is found equal, and each difference is found."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tailrace.cli.daily.verify_against_source import verify_against_source
from tailrace.cli.invocation import Invocation
from tailrace.cli.projection.context import projection_context
from tailrace.eventstore import disclosure
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.terminal import Output
from tests.support.capturing import RunningCapture, Site, execute

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE = """
CREATE SCHEMA shop;
CREATE TYPE shop.mood AS ENUM ('sad', 'ok');
CREATE TABLE shop."Order" (id int PRIMARY KEY, customer_id int, amount numeric(10,2), "at" timestamptz, secret text);
CREATE TABLE shop.kinds (id int PRIMARY KEY, flag bool, small int2, big int8, single real, double float8, exact
  numeric(10,2), bare numeric, words text, padded char(5), bytes bytea, day date, clock time, moment timestamp, instant
  timestamptz, period interval, ident uuid, feel shop.mood, address inet, doc jsonb, ints int[], texts text[], moments
  timestamptz[], pads char(3)[], doubles float8[], made int GENERATED ALWAYS AS (id + 1) STORED);
INSERT INTO shop."Order" SELECT i, i % 7, i * 1.25, '2026-01-01Z'::timestamptz + i * interval '1 hour', 'x'
  FROM generate_series(1, 40) i;
INSERT INTO shop.kinds VALUES
  (1, true, 1, 9223372036854775807, 1.1, 0.1, 1.50, 1.500, 'a', 'b ', '\\x00ff', '2026-02-28', '12:00:00.5',
   '2026-01-01 00:00', '2026-01-01 01:00+01', '1 mon', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', 'ok', '10.0.0.1',
   '{"b": 1.0, "a": 2}', '{1,NULL,3}', '{"a,b",NULL,""}', '{2026-01-01 01:00+01}', '{a,abc}', '{NaN,-0,1.5}'),
  (2, false, -1, 0, 'NaN', 'Infinity', 0, 'NaN', '', '', '', '0001-01-01', '00:00', '1969-12-31 23:59:59.999999',
   '1883-11-18 12:03:58Z', '00:00:01', NULL, NULL, '::1', 'null', '{}', '{}', '{}', '{}', '{}');
INSERT INTO shop.kinds (id) VALUES (3);
"""
CONFIGURATION = """
[store]
name = "acme"
partitions = 2
[sources.shop]
dsn = "{dsn}"
tables = ["shop.*"]
columns = {{ "shop.Order.secret" = "truncate:1" }}
[sinks.mart]
kind = "postgres"
dsn = "{dsn}"
[projections]
sql = ["views"]
[spark]
master = "local[2]"
driver_memory = "1g"
shuffle_partitions = 4
"""
HEADER = """/* projection
key = "id"
sink = {{ kind = "postgres", sink = "mart", table = "{name}" }}
inputs.{input} = {{ state = "shop.shop.{table}", affects = "*" }}
{more}
*/
"""
TOTALS = """
SELECT o.customer_id AS id, count(*) AS orders, sum(o.amount) AS total, max(o.at) AS latest, 'a;b' AS words
FROM orders AS o WHERE o.at < :now GROUP BY o.customer_id
"""
KINDS = """
SELECT id, flag, small, big, single, double, exact, bare, words, padded, bytes, day, clock, moment, instant, period,
       ident, feel, address, doc, ints, texts, moments, pads, doubles,
       CAST(instant AS date) AS there, CAST(instant AS timestamp) AS clock_there, extract(hour FROM instant) AS hour
FROM kinds
"""

IN_SPARK = 'dialect = "spark"'


class Shop:
    """A project in a folder, whose source is being captured."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder, self.dsn = folder, dsn
        text = CONFIGURATION.format(dsn=dsn)
        (folder / "tailrace.toml").write_text(text)
        (folder / "views").mkdir()

    def view(self, name: str, query: str, table: str = "kinds", input: str = "kinds", more: str = "") -> None:
        header = HEADER.format(name=name, table=table, input=input, more=more)
        (self.folder / "views" / f"{name}.sql").write_text(header + query)

    def invocation(self, *, json: bool = True) -> tuple[Invocation, io.StringIO, io.StringIO]:
        out, err = io.StringIO(), io.StringIO()
        return Invocation(Output(json=json, stdout=out, stderr=err), self.folder / "tailrace.toml"), out, err

    def refresh(self) -> None:
        with projection_context(self.invocation()[0], "test") as projections:
            assert [each.error for each in refresh(projections)] == [None] * len(projections.projections)

    def verify(self, *names: str) -> tuple[int, dict[str, Any]]:
        invocation, out, err = self.invocation()
        code = verify_against_source(invocation, list(names) or None, None)
        found = [json.loads(line) for line in out.getvalue().splitlines()]
        assert found or code, err.getvalue()
        return code, {each["projection"]: each for each in found} | {"errors": err.getvalue()}


@pytest.fixture
def site(tmp_path: Path, database: str) -> Site:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(SOURCE.encode())
    columns = {"shop.Order.secret": "truncate:1"}
    site = Site.at(tmp_path, database, tables=("shop.*",), columns=columns)
    site.init()
    return site


@pytest.fixture
def capture(site: Site) -> Iterator[RunningCapture]:
    with RunningCapture(site) as running:
        running.catch_up()
        yield running


@pytest.fixture
def shop(tmp_path: Path, site: Site, capture: RunningCapture, spark: SparkSession) -> Shop:
    return Shop(tmp_path, site.dsn)


def test_what_a_query_says_in_the_source_and_in_the_log_is_equal_and_what_was_changed_by_hand_is_found(
    shop: Shop, capture: RunningCapture
) -> None:
    shop.view("totals", TOTALS, '\\"Order\\"', "orders")
    shop.view("kinds", KINDS, more='time_zone = "Europe/Berlin"')
    shop.refresh()
    code, found = shop.verify()
    assert code == 0, found
    assert (found["totals"]["rows"], found["kinds"]["rows"]) == (7, 3)
    assert found["totals"]["equal"] and found["kinds"]["equal"]

    execute(
        shop.dsn,
        'DELETE FROM shop."Order" WHERE customer_id = 3',
        'UPDATE shop."Order" SET amount = 0 WHERE id = 1',
        "UPDATE shop.kinds SET padded = 'c' WHERE id = 3",
    )
    capture.catch_up()
    shop.refresh()
    code, found = shop.verify("totals")
    assert (code, found["totals"]["rows"], found["totals"]["equal"]) == (0, 6, True), found

    execute(
        shop.dsn,
        "DELETE FROM totals__g1 WHERE id = 1",
        "UPDATE totals__g1 SET total = 1 WHERE id = 2",
        "INSERT INTO totals__g1 SELECT 99, orders, total, latest, words FROM totals__g1 WHERE id = 4",
    )
    code, found = shop.verify("totals")
    sink = found["totals"]["sink"]
    assert (code, found["totals"]["equal"]) == (4, False)
    assert (sink["only_in_log"], sink["only_in_sink"], sink["different"]) == (1, 1, 1)
    assert "1.00" not in str(sink["samples"]), "no value without --show-values"


@pytest.mark.slow
def test_a_query_that_means_something_else_in_the_source_is_found(shop: Shop) -> None:
    shop.view("halves", "SELECT id, id / 2 AS half FROM kinds", more=IN_SPARK)
    shop.view("spelled", "SELECT id, CAST(id AS string) AS word FROM kinds", more=IN_SPARK)
    shop.view("second", "SELECT id, 1 AS one FROM kinds WHERE id / 2 = 1", more=IN_SPARK)
    shop.view("first", "SELECT id, 1 AS one FROM kinds WHERE id / 2 = 0.5", more=IN_SPARK)
    shop.refresh()
    with disclosure.show_values(True):
        code, found = shop.verify("second", "first", "halves", "spelled")
    assert code == 4
    second, first = found["second"], found["first"]
    assert (second["only_in_source"], second["only_in_projection"], second["different"]) == (1, 0, 0)
    assert second["samples"] == [
        {"kind": "only in source", "key": '{"id": 3}', "expected": '{"one": 1}', "actual": None}
    ]
    assert (first["only_in_source"], first["only_in_projection"], first["different"]) == (0, 1, 0)
    assert second["sink"]["equal"] and first["sink"]["equal"], "the log and the sink are right in themselves"
    assert (found["halves"]["rows"], found["halves"]["different"]) == (3, 2)
    assert found["halves"]["samples"][0]["expected"] == '{"half": 0.0}'
    assert "the source does not answer the query of projection 'spelled': type" in found["errors"]


def test_what_is_not_all_in_one_source_as_it_is_there_is_refused(shop: Shop) -> None:
    order = '\\"Order\\"'
    shop.view("plain", "SELECT id, amount FROM orders", order, "orders")
    shop.refresh()
    shop.view("hashed", "SELECT id, secret FROM orders", order, "orders")
    shop.view("all_columns", "SELECT * FROM orders", order, "orders")
    shop.view("changed", "SELECT id, 1 AS n FROM kinds")
    file = shop.folder / "views" / "changed.sql"
    file.write_text(file.read_text().replace("state =", "changes ="))
    code, found = shop.verify("hashed", "all_columns", "changed")
    assert code == 2 and set(found) == {"errors"}
    for part in (
        "'hashed' (",
        "may read orders.secret, which a column policy changes in the log",
        "'all_columns' (",
        "reads kinds as changes, which is no table of a source",
    ):
        assert part in found["errors"]
    code, found = shop.verify()
    assert code == 0 and found["plain"]["equal"], "without names, what cannot be compared is left out"
