"""A sink of a user's own: the suite that every sink must pass, and a projection that is built into it."""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from examples import sqlite_sink
from examples.sqlite_sink import SqliteFile
from tailrace.eventstore.errors import IntegrityError, UsageError
from tailrace.eventstore.metadata.generations import InputNeed, NewGeneration
from tailrace.eventstore.settings import Settings
from tailrace.eventstore.store import Store
from tailrace.projections import open_reader
from tailrace.projections.context import ProjectionContext
from tailrace.projections.lifecycle.build import rebuild
from tailrace.projections.lifecycle.catch_up import refresh, undefined_outcomes
from tailrace.projections.lifecycle.collect import gc
from tailrace.projections.lifecycle.list import generations
from tailrace.projections.lifecycle.progress import SinkInspector, measure_progress
from tailrace.projections.lifecycle.verify import verify
from tailrace.projections.sinks.contract import NoSink
from tailrace.projections.sinks.record import SinkClasses, own_mistakes, spec_from_text, spec_to_text
from tailrace.testing.sink_contract import SinkContract
from tests.projections.conftest import Deploy
from tests.projections.shoplog import ShopLog
from tests.support.forking import Forked

TOTALS = """
    from pyspark.sql import functions as F
    from examples.sqlite_sink import SqliteFile
    from tailrace.projections import State, projection

    @projection(
        key="customer_id", sink=SqliteFile("{file}"),
        orders=State("shop.public.orders", affects="customer_id"))
    def totals(orders):
        return orders.groupBy("customer_id").agg(F.count("*").alias("orders"))
"""
LOST = json.dumps({"kind": "own", "class": "no_such_module:Sink", "fields": {}})
OF_BEFORE = json.dumps({"kind": "own", "pickle": base64.b64encode(b"cno_such_module\nSink\n.").decode()})


class TestSqliteSink(SinkContract):
    process = Forked

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.opener = partial(SqliteFile(str(tmp_path / "own.db")).open_sink, Settings())


def test_the_example_is_as_short_as_the_documents_say() -> None:
    assert len(Path(sqlite_sink.__file__).read_text().splitlines()) <= 60


def test_a_projection_goes_into_a_users_own_sink(shop: ShopLog, deploy: Deploy, tmp_path: Path) -> None:
    file = str(tmp_path / "totals.db")
    ctx = deploy(TOTALS.format(file=file))
    rebuild(ctx, "totals")
    shop.work()
    refresh(ctx)
    rebuild(ctx, "totals")

    assert verify(ctx, "totals").equal
    buyer = next(iter(shop.state["orders"].values()))["customer_id"]
    bought = sum(order["customer_id"] == buyer for order in shop.state["orders"].values())
    with open_reader(ctx.settings, ctx.settings.store.name, "totals", SqliteFile(file)) as reader:
        assert reader.many([buyer, -1]) == [{"customer_id": buyer, "orders": bought}, None]


def build(store: Store, name: str, sink: str) -> int:
    """A generation in the catalog alone."""
    return store.derived.create_generation(
        NewGeneration(
            name,
            fingerprint="",
            sink=sink,
            key=["id"],
            schema=pa.schema([("id", pa.int64())]).serialize().to_pybytes(),
            partitions=1,
            split=1,
            inputs=[InputNeed("shop.public.orders", "state", 0)],
        )
    )


def test_a_sink_whose_module_does_not_load_is_the_problem_of_its_projection_alone(
    shop: ShopLog, store: Store, settings: Settings, tmp_path: Path
) -> None:
    fine = spec_to_text(SqliteFile(str(tmp_path / "fine.db")))
    for name, sink in (("bad", LOST), ("fine", fine)):
        store.derived.promote(name, build(store, name, sink), None)
    chosen = settings.projections.model_copy(update={"sink_modules": ("examples.sqlite_sink",)})
    ctx = ProjectionContext(store, settings.model_copy(update={"projections": chosen}), {})

    problems = {
        each.projection: each.problem for each in measure_progress(ctx, datetime.now(UTC), SinkInspector(60))
    }
    assert "no loaded definition uses" in problems["bad"] and problems["fine"] == ""
    assert [(each.projection, each.status) for each in undefined_outcomes(ctx)] == [
        ("bad", "frozen"),
        ("fine", "frozen"),
    ]
    (view,) = generations(ctx, "bad")
    assert view.live and "no_such_module:Sink" in view.problem


def test_a_generation_whose_sink_does_not_load_goes_by_its_number_alone_and_never_while_it_is_live(
    shop: ShopLog, store: Store, settings: Settings
) -> None:
    for _ in range(4):
        number = build(store, "bad", LOST)
        store.derived.promote("bad", number, store.derived.live("bad"))
    ctx = ProjectionContext(store, settings, {})

    with pytest.raises(UsageError, match="no loaded definition uses"):
        gc(ctx, "bad")
    with pytest.raises(UsageError, match="is live"):
        gc(ctx, "bad", number=4)
    (gone,) = gc(ctx, "bad", number=1)

    assert gone.generation == 1 and "no loaded definition uses" in gone.left
    assert [each.generation.number for each in generations(ctx, "bad")] == [2, 3, 4]


def test_a_row_of_the_catalog_never_runs_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "planted.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    opener = f"cbuiltins\nopen\n(S{str(ran)!r}\nS'w'\ntR.".encode()
    pickled = {"kind": "own", "pickle": base64.b64encode(opener).decode()}
    for row in (
        pickled,
        {"kind": "own", "class": "planted:Sink", "fields": {}},
        {"kind": "own", "class": "examples.planted:Sink", "fields": {}},
        {"kind": "own", "class": "examples.sqlite_sink:sqlite3", "fields": {}},
        {"kind": "own", "class": "examples.sqlite_sink:SqliteTexts", "fields": {"database": None}},
        {"kind": "own", "class": "examples.sqlite_sink:closing", "fields": {"thing": None}},
        {"kind": "own", "class": "examples.sqlite_sink:SqliteFile", "fields": {"paths": ""}},
        {"kind": "own"},
        {"kind": "SqliteFile", "path": "x"},
        {"kind": "PostgresTable", "sink": "mart", "table": ["totals"]},
        {"kind": "PostgresTable", "sink": "mart", "table": "totals", "more": 1},
        ["own"],
    ):
        with pytest.raises(NoSink):
            spec_from_text(json.dumps(row), SinkClasses(("examples.sqlite_sink",), (SqliteFile,)))
    assert not ran.exists() and "planted" not in sys.modules


def test_a_sink_of_an_earlier_version_is_refused_and_says_how_to_go_on() -> None:
    with pytest.raises(NoSink) as caught:
        spec_from_text(OF_BEFORE, SinkClasses())
    assert "rebuild" in caught.value.hint


def test_a_sink_is_found_by_its_definition_or_in_a_module_that_the_configuration_names() -> None:
    sink = SqliteFile("totals.db")
    text = spec_to_text(sink)
    assert json.loads(text)["fields"] == {"path": "totals.db"}
    assert spec_from_text(text, SinkClasses.of((), [sink])) == sink
    assert spec_from_text(text, SinkClasses(("examples.sqlite_sink",))) == sink
    with pytest.raises(NoSink) as caught:
        spec_from_text(text, SinkClasses())
    assert "projections.sink_modules" in caught.value.hint


@dataclass(frozen=True)
class Anything(SqliteFile):
    more: object = None


@pytest.mark.parametrize("value", [Path("x"), {1: 2}, {"a", "b"}, b"x", float("nan"), ("x", [object()])])
def test_a_sink_that_json_cannot_hold_is_refused_where_it_is_defined(value: object) -> None:
    (found,) = own_mistakes(Anything("x", value))
    assert "'more'" in found[0]
    with pytest.raises(UsageError, match="JSON cannot hold"):
        spec_to_text(Anything("x", value))
    assert not list(own_mistakes(Anything("x", {"a": [1, ("b", None)]})))


def test_a_row_of_another_name_than_definitions_have_is_worked_on_by_nothing(
    shop: ShopLog, store: Store, settings: Settings, tmp_path: Path
) -> None:
    """Folders that are removed, and tables that are dropped, are named by it."""
    build(store, "../../victim", spec_to_text(SqliteFile(str(tmp_path / "fine.db"))))
    with pytest.raises(IntegrityError, match="is no name of a projection"):
        gc(ProjectionContext(store, settings, {}), "../../victim", number=1)
