"""Files in which rows of changed keys were replaced hold the rows that are folded from the log."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest

from tailrace.eventstore.maintenance.redaction.redact import RedactionRequest, redact
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.store import Store
from tailrace.projections import State
from tailrace.projections.compute import input_files, patched_files
from tailrace.projections.compute.frames import shown_columns
from tailrace.projections.compute.input_files import input_folder
from tailrace.projections.compute.read_plan import plan_input
from tailrace.projections.context import ProjectionContext
from tests.fixtures.scale import Scale
from tests.projections.refresh.randomshop import ALTERABLE, ALTERATIONS, TRUNCATE, RandomShop
from tests.projections.shoplog import ShopLog, settings_in

_TABLES = ("customers", "products", "orders")


class Written:
    """How often files of one kind were written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, module: Any = input_files) -> None:
        self.count, original = 0, getattr(module, name)

        def counted(*given: Any) -> Any:
            done = original(*given)
            self.count += done is not False
            return done

        monkeypatch.setattr(module, name, counted)


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(patched_files, "_SHARE", 0)  # few rows make a state here
    settings = settings_in(tmp_path, dsn="postgresql:///nowhere", redis_url="redis://nowhere")
    with Store.open(settings.store, create=True) as store:
        yield ProjectionContext(store, settings, {})


def rows_at(ctx: ProjectionContext, source: State, cut: Cut) -> list[str]:
    """The rows in an input's files, in the order of their texts."""
    return sorted(map(str, pq.read_table(folder_at(ctx, source, cut)).to_pylist()))


def folder_at(ctx: ProjectionContext, source: State, cut: Cut) -> Path:
    """An input's files."""
    planned = plan_input(ctx.store, source, cut)
    return input_folder(ctx, source, planned, cut, shown_columns(planned, source))[0]


def anew(ctx: ProjectionContext) -> ProjectionContext:
    """One without files of earlier positions."""
    return ProjectionContext(ctx.store, ctx.settings, {})


@pytest.mark.parametrize("seed", range(2))
def test_they_hold_the_rows_that_are_folded_whatever_happens_to_the_tables(
    context: ProjectionContext, monkeypatch: pytest.MonkeyPatch, scale: Scale, seed: int
) -> None:
    shop = RandomShop(ShopLog.start(context.store, ALTERABLE), Random(seed))
    patched = Written(monkeypatch, "write_patched")
    sources = [State(f"shop.public.{table}") for table in _TABLES]
    sources.append(State("shop.public.orders", columns=("id", "amount"), erased=True))
    sources.append(State("shop.public.orders", columns=("amount",)))  # lacks the key
    done, steps = shop.step(25), scale.pick(smoke=25, full=400)
    alterations = [*ALTERATIONS, TRUNCATE]
    for number in range(steps):
        altered = (alterations.pop(0),) if number % 5 == 4 and alterations else ()
        done += ["--", *shop.step(shop.random.randint(1, 8), *altered)]
        cut = context.store.cut()
        for source in sources:
            assert rows_at(context, source, cut) == rows_at(anew(context), source, cut), (seed, source, done)
    assert patched.count > steps


def test_erased_rows_are_not_in_them(context: ProjectionContext, monkeypatch: pytest.MonkeyPatch) -> None:
    shop, source = ShopLog.start(context.store), State("shop.public.customers")
    shop.fill()
    before = rows_at(context, source, context.store.cut())
    assert any("Customer 3" in row for row in before)
    redact(context.store, RedactionRequest(TopicId.parse("shop.public.customers"), ["3"], ["name"]))
    shop.commit({"customers": [("c", {"id": 90, "name": "N", "city": "Graz"})]})
    cut = context.store.cut()
    patched = Written(monkeypatch, "write_patched")
    rows = rows_at(context, source, cut)
    assert rows == rows_at(anew(context), source, cut) and patched.count == 0
    assert not any("Customer 3" in row for row in rows)


def test_where_much_is_new_all_rows_are_folded(
    context: ProjectionContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    shop, source = ShopLog.start(context.store), State("shop.public.orders")
    shop.fill(orders=400)
    rows_at(context, source, context.store.cut())
    patched = Written(monkeypatch, "write_patched")
    shop.commit({"orders": [("c", shop.order(number)) for number in range(901, 911)]})
    few = context.store.cut()
    assert rows_at(context, source, few) == rows_at(anew(context), source, few) and patched.count == 1
    shop.commit({"orders": [("c", shop.order(number)) for number in range(911, 990)]})
    many = context.store.cut()
    assert rows_at(context, source, many) == rows_at(anew(context), source, many) and patched.count == 1


def test_columns_of_values_that_repeat_have_dictionaries_and_no_others(
    context: ProjectionContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark goes by the size of files, and takes long for what is not packed."""
    shop, source = ShopLog.start(context.store), State("shop.public.orders")
    shop.fill(orders=400)
    found = [coded_columns(context, source)]
    shop.commit({"orders": [("c", shop.order(901))]})
    patched = Written(monkeypatch, "write_patched")
    monkeypatch.setattr(patched_files, "_SHARE", 20)
    found.append(coded_columns(context, source))
    assert patched.count == 1
    for coded in found:
        assert {"customer_id", "status"} <= coded and not coded & {"id"}


def coded_columns(ctx: ProjectionContext, source: State) -> set[str]:
    """Of the files of an input at the log's end."""
    files = folder_at(ctx, source, ctx.store.cut()).iterdir()
    groups = [pq.read_metadata(file).row_group(0) for file in files]
    columns = [group.column(at) for group in groups for at in range(group.num_columns)]
    return {column.path_in_schema for column in columns if column.has_dictionary_page}
