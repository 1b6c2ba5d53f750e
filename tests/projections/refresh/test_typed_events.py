"""Events with typed columns: Spark's tasks read them as consumers do, and refreshes follow them by key."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.eventstore.errors import IntegrityError, UsageError
from tailrace.eventstore.settings import Settings
from tailrace.projections import Projection, load_projections
from tailrace.projections.context import ProjectionContext
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.verify import verify
from tests.projections.lifecycle.test_lifecycle import rows_of
from tests.projections.refresh import typed_balances
from tests.projections.refresh.test_incremental import incremental, step
from tests.projections.shoplog import Row, ShopLog, standing_still

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BALANCES = "tests.projections.refresh.typed_balances"


def stored(stream: str, version: int, kind: str, schema_version: int, **data: Any) -> Row:
    return {
        "stream": stream,
        "version": version,
        "type": kind,
        "schema_version": schema_version,
        "data": json.dumps(data),
        "metadata": "{}",
        "event_id": f"00000000-0000-0000-0000-{version:012}",
    }


@pytest.fixture
def ctx(shop: ShopLog, settings: Settings, spark: SparkSession) -> ProjectionContext:
    return ProjectionContext(shop.store, settings, load_projections([BALANCES]), clock=standing_still)


def test_events_of_every_version_come_in_the_columns_of_todays_models(
    shop: ShopLog, ctx: ProjectionContext
) -> None:
    shop.commit(
        {},
        events=[
            stored("1", 1, "typed_paid", 1, amount="10.00"),
            stored("1", 2, "typed_paid", 2, amount="2.50", by="cash"),
            stored("1", 3, "of_another_service", 1),
            stored("2", 1, "typed_returned", 1, price="1.00"),
        ],
    )
    step(ctx, "balances")
    assert rows_of(ctx, "balances") == [
        {"stream": "1", "balance": Decimal("12.50"), "by": "cash"},
        {"stream": "2", "balance": Decimal("-1.00"), "by": None},
    ]

    shop.commit(
        {}, events=[stored("2", 2, "typed_paid", 1, amount="3.00"), stored("3", 1, "of_another_service", 1)]
    )
    assert incremental(ctx, "balances").upserts == 1
    assert rows_of(ctx, "balances")[1] == {"stream": "2", "balance": Decimal("2.00"), "by": "card"}
    assert verify(ctx, "balances").equal


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        ("typed_paid", {"amount": "many"}, r"event 1 of order/1 .*'typed_paid' version 2 does not fit"),
        ("typed_returned", {}, r"event 1 of order/1 .*upcaster of 'typed_returned' version 1"),
    ],
)
def test_an_event_that_cannot_be_read_fails_the_refresh_and_says_which_it_is(
    shop: ShopLog, ctx: ProjectionContext, kind: str, data: dict[str, Any], words: str
) -> None:
    shop.commit({}, events=[stored("1", 1, kind, 1, **data)])
    (outcome,) = refresh(ctx, ["balances"])
    assert outcome.status == "failed" and isinstance(outcome.error, IntegrityError)
    assert re.search(words, outcome.error.message)


def test_a_model_or_an_upcaster_that_changes_changes_the_definition(tmp_path: Path) -> None:
    """Which module it is in does not."""

    def fingerprint_of(source: str, module: str = "shop_events") -> str:
        (tmp_path / f"{module}.py").write_text(source)
        told = f"print(fingerprint(load_projections([{module!r}], root=Path({str(tmp_path)!r}))['balances']))"
        imports = (
            "from pathlib import Path; from tailrace.projections.definition.fingerprint import fingerprint; "
        )
        imports += "from tailrace.projections import load_projections; "
        ran = subprocess.run(
            [sys.executable, "-c", imports + told], capture_output=True, text=True, check=True
        )
        return ran.stdout

    source = Path(typed_balances.__file__).read_text(encoding="utf-8")
    first = fingerprint_of(source)
    assert fingerprint_of(source + "\n# a remark", "moved") == first
    changed = (
        source.replace("by: str", "by: str\n    note: str = ''"),
        source.replace('"by": "card"', '"by": "cash"'),
        source.replace('data["price"]', 'str(data["price"])'),
    )
    assert len({first, *map(fingerprint_of, changed)}) == 4


def test_types_that_are_no_models_are_refused_where_they_are_declared(
    define: Callable[[str], Mapping[str, Projection]],
) -> None:
    with pytest.raises(UsageError, match="types of Events is"):
        define("""
            from tailrace import Events, PostgresTable, projection

            @projection(key="stream", sink=PostgresTable("mart", "2"), events=Events("shop.order", types=["paid"]))
            def b(events):
                return events
        """)
