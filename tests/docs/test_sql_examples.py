"""The projections in SQL that the documentation shows, in both dialects: each gives what Postgres answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from tailrace.eventstore.settings import Settings, SinkSettings
from tailrace.projections import load_projections
from tailrace.projections.context import ProjectionContext
from tailrace.projections.lifecycle.catch_up import refresh
from tests.fixtures.spark import SPARK
from tests.support import REPOSITORY
from tests.support.capturing import Site, init_and_capture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.eventstore.store import Store

PAGES = [*sorted((REPOSITORY / "docs").rglob("*.md")), REPOSITORY / "README.md"]
FILES = sorted((REPOSITORY / "examples").rglob("*.sql"))
SCHEMA = (REPOSITORY / "tailrace" / "demo" / "shop" / "schema.sql").read_text()
ROWS = """
INSERT INTO customers (name, email, city) VALUES ('Ada', 'a@x', 'Oslo'), ('Bo', 'b@x', 'Oslo'), ('Cy', 'c@x', 'Rome');
INSERT INTO products (name, description, price) VALUES ('pen', 'blue', 2.50);
INSERT INTO orders (customer_id, product_id, quantity, amount, status)
VALUES (1, 1, 2, 5.00, 'paid'), (1, 1, 1, 2.50, 'placed'), (2, 1, 4, 10.00, 'cancelled');
"""


def shown() -> list[str]:
    """The texts of all definitions."""
    pages = [
        re.findall(r"```sql\n([^`]*?/\* projection.*?)```", page.read_text(), re.DOTALL) for page in PAGES
    ]
    return [text for page in pages for text in page] + [
        file.read_text() for file in FILES if "/* projection" in file.read_text()
    ]


def written(folder: Path, dialect: str) -> None:
    folder.mkdir()
    for number, text in enumerate(shown()):
        head = f'/* projection\nname = "{dialect}_{number}"\ndialect = "{dialect}"\n'
        text = text.replace("/* projection\n", head)
        sink = 'sink = { kind = "parquet", sink = "lake" }'
        (folder / f"{dialect}_{number}.sql").write_text(
            re.sub(r"^sink = .*$", sink, text, flags=re.MULTILINE)
        )


@pytest.fixture
def store(tmp_path: Path, database: str) -> Iterator[Store]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute((SCHEMA + ROWS).encode())
    with init_and_capture(Site.at(tmp_path, database)) as capture:
        yield capture.store


@pytest.mark.slow
def test_every_sql_projection_that_is_shown_gives_postgres_answer_in_both_dialects(
    tmp_path: Path, database: str, store: Store, spark: SparkSession
) -> None:
    assert len(shown()) >= 2
    for dialect in ("postgres", "spark"):
        written(tmp_path / dialect, dialect)
    definitions = load_projections([], tmp_path, ["postgres", "spark"])
    sinks = {"lake": SinkSettings(kind="parquet", path=tmp_path / "lake")}
    ctx = ProjectionContext(store, Settings(store=store.settings, sinks=sinks, spark=SPARK), definitions)
    assert [each.error for each in refresh(ctx)] == [None] * 2 * len(shown())
    for number, text in enumerate(shown()):
        expected = answer(database, text)
        assert expected
        for dialect in ("postgres", "spark"):
            assert rows(ctx, f"{dialect}_{number}") == expected, dialect


def answer(dsn: str, text: str) -> list[str]:
    """Postgres' own, of the query behind the header."""
    query = text.partition("/* projection")[2].partition("*/")[2]
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        return comparable(connection.execute(sql.SQL(query)).fetchall())


def rows(ctx: ProjectionContext, name: str) -> list[str]:
    generation = ctx.live(name)
    assert generation is not None
    return comparable(
        [row for batch in ctx.sink(generation).scan(ctx.target(generation)) for row in batch.to_pylist()]
    )


def comparable(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(
        repr(
            {name: value.normalize() if isinstance(value, Decimal) else value for name, value in row.items()}
        )
        for row in rows
    )
