"""Which keys a step has to compute again, what speaks against it, and what is written of them. Without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.eventstore.errors import HistoryGone
from tailrace.eventstore.metadata.generations import InputNeed
from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.eventstore.settings import TopicSettings, UpkeepSettings
from tailrace.projections import (
    Changes,
    Computed,
    Events,
    ProjectionFailed,
    Result,
    State,
    Through,
)
from tailrace.projections.compute.bucket import BucketOutcome
from tailrace.projections.definition.lineage import Lineage, lineage_of
from tailrace.projections.definition.model import Input
from tailrace.projections.generations.generation import Generation
from tailrace.projections.refresh.by_key import incremental
from tailrace.projections.refresh.by_key.incremental import (
    IncrementalResult,
    _computed_keys_alone,
    _refuse_outside,
    compare_buckets,
    compute_incrementally,
    reason_against,
    written,
)
from tailrace.projections.refresh.plan import NotIncremental
from tailrace.projections.refresh.step_input import StepInput
from tests.projections.refresh.handmade import (
    Handmade,
    Keys,
    NeedsSpark,
    affected,
    handmade,
    reading,
    refusal,
    set_of,
)
from tests.projections.refresh.test_incremental import event
from tests.projections.shoplog import TABLES, Row

ORDERS, CUSTOMERS = "shop.public.orders", "shop.public.customers"
OF_CITIES: dict[str, Input] = {
    "customers": State(CUSTOMERS, affects="city"),
    "orders": State(ORDERS, affects=Through("customers", {"customer_id": "id"})),
}


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Handmade]:
    with handmade(tmp_path) as each:
        each.log.fill()
        yield each


def test_the_keys_that_changed_rows_have_and_had(made: Handmade) -> None:
    since, order = made.ctx.store.cut().epoch, made.log.state["orders"]
    of_customers = reading(["customer_id"], orders=State(ORDERS, affects="customer_id"))
    made.log.commit({"orders": [("u", order[1] | {"customer_id": 5}), ("d", {"id": 4})]})
    made.log.commit({"orders": [("c", made.log.order(900, customer_id=11)), ("u", order[2])]})
    assert affected(made, of_customers, since, customer_id=pa.int64()) == ([2, 3, 5, 11], False, set())
    made.log.commit({"orders": [("u", order[2] | {"customer_id": None})]})
    assert affected(made, of_customers, since, customer_id=pa.int64()) == ([2, 3, 5, 11], True, set())


def test_keys_that_rows_had_and_have_by_way_of_other_rows(made: Handmade) -> None:
    since = made.ctx.store.cut().epoch
    customer, order = made.log.state["customers"], made.log.state["orders"]
    of_cities, first = reading(["city"], **OF_CITIES), order[1]

    def keys() -> tuple[Keys, bool, set[str]]:
        return affected(made, of_cities, since, city=pa.string())

    made.log.commit({"orders": [("u", order[12])]})
    assert keys() == (["Turku"], False, set())
    made.log.commit({"customers": [("u", customer[1] | {"city": "Graz"})]})
    assert keys() == (["Graz", "Turku"], False, set())
    since = made.ctx.store.cut().epoch
    made.log.commit({"orders": [("u", first | {"customer_id": None})]})
    assert keys() == (["Lund"], False, {"orders"}), "it has no customer now"
    since = made.ctx.store.cut().epoch
    made.log.commit({"orders": [("u", first)]})
    assert keys() == (["Lund"], False, {"orders"}), "it had none before"


def test_a_row_that_came_and_went_is_told_by_its_own_key_alone(made: Handmade) -> None:
    """The changes have the columns of the table's key, so nothing else is read for these."""
    since = made.ctx.store.cut().epoch
    eve = {"id": 90, "name": "Eve", "city": "Graz"}
    made.log.commit({"customers": [("c", eve)]})
    made.log.commit({"customers": [("d", {"id": 90})]})
    by_id = reading(["id"], customers=State(CUSTOMERS, affects="id"))
    assert affected(made, by_id, since, id=pa.int64()) == ([90], False, set())
    by_city = reading(["city"], customers=State(CUSTOMERS, affects="city"))
    assert affected(made, by_city, since, city=pa.string()) == ([], False, set())


def test_rows_whose_own_key_leads_on_go_where_it_led_and_leads(made: Handmade) -> None:
    since, customer = made.ctx.store.cut().epoch, made.log.state["customers"]
    inputs: dict[str, Input] = {
        "customers": State(CUSTOMERS, affects="city"),
        "orders": State(ORDERS, affects=Through("customers", {"id": "id"})),
    }
    made.log.commit({"orders": [("u", made.log.state["orders"][2]), ("u", made.log.state["orders"][40])]})
    assert affected(made, reading(["city"], **inputs), since, city=pa.string())[0] == ["Lund"]
    made.log.commit({"customers": [("u", customer[2] | {"city": "Graz"})]})
    assert affected(made, reading(["city"], **inputs), since, city=pa.string())[0] == ["Graz", "Lund"]


def totals(made: Handmade) -> Generation:
    schema = pa.schema([("customer_id", pa.int64()), ("city", pa.string())])
    return made.generation("totals", ["customer_id"], schema)


def rows_of_totals(**changed: str | None) -> list[Row]:
    cities = {f"c{at}": "ab"[at % 2] for at in range(12)} | changed
    return [{"customer_id": int(name[1:]), "city": city} for name, city in cities.items() if city != "gone"]


@pytest.mark.parametrize(
    ("affects", "kind", "keys"),
    [
        ({"k": "customer_id"}, pa.int64(), [3, 4, 40]),
        ({"k": "city"}, pa.string(), ["a", "b", "c"]),
    ],
    ids=str,
)
def test_the_keys_that_rows_of_a_result_have_and_had(
    made: Handmade, affects: dict[str, str], kind: pa.DataType, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = totals(made)
    made.put(generation, rows_of_totals())
    since = made.ctx.store.cut().epoch
    made.log.work()
    made.put(generation, rows_of_totals(c3="c", c4="gone", c40="c"))
    projection = reading(["k"], totals=Result("totals", affects=affects))
    monkeypatch.setattr(incremental, "_CHANGES_MAX", 3)
    assert affected(made, projection, since, k=kind) == (keys, False, set())
    monkeypatch.setattr(incremental, "_CHANGES_MAX", 2)
    assert refusal(made, projection, since, k=kind) == (
        "more than 2 rows of projection totals changed",
        "size",
    )


def test_the_keys_of_new_changes_and_events(made: Handmade) -> None:
    made.log.commit({}, events=[event("a", 1)])
    since, order = made.ctx.store.cut().epoch, made.log.state["orders"]
    made.log.commit({"orders": [("u", order[3]), ("d", {"id": 4})]}, events=[event("b", 1)])
    changes = reading(["k"], orders=Changes(ORDERS, affects={"k": "id"}))
    events = reading(["k"], events=Events("shop.order", affects={"k": "stream"}))
    assert affected(made, changes, since, k=pa.int64()) == ([3, 4], False, set())
    assert affected(made, events, since, k=pa.string()) == (["b"], False, set())
    made.log.truncate("orders")
    assert refusal(made, changes, since, k=pa.int64()) == (f"{ORDERS} was truncated", "input")


def test_a_table_that_was_truncated_or_changed_in_too_many_rows_is_not_followed(
    made: Handmade, monkeypatch: pytest.MonkeyPatch
) -> None:
    since, order = made.ctx.store.cut().epoch, made.log.state["orders"]
    projection = reading(["customer_id"], orders=State(ORDERS, affects="customer_id"))
    made.log.commit({"orders": [("u", order[at]) for at in (1, 2, 3)]})
    monkeypatch.setattr(incremental, "_CHANGES_MAX", 3)
    assert affected(made, projection, since, customer_id=pa.int64())[0] == [2, 3, 4]
    monkeypatch.setattr(incremental, "_CHANGES_MAX", 2)
    told = refusal(made, projection, since, customer_id=pa.int64())
    assert told == (f"more than 2 rows of {ORDERS} changed", "size")
    monkeypatch.undo()
    made.log.truncate("orders")
    told = refusal(made, projection, since, customer_id=pa.int64())
    assert told == (f"{ORDERS} was truncated", "input")


def test_columns_that_cannot_be_compared_and_rows_that_are_too_many_are_told(made: Handmade) -> None:
    since, order = made.ctx.store.cut().epoch, made.log.state["orders"]
    projection = reading(["customer_id"], orders=State(ORDERS, affects="customer_id"))
    made.log.commit({"orders": [("u", order[at]) for at in (1, 2)]})
    words, cause = refusal(made, projection, since, customer_id=pa.string())
    assert (words, cause) == (
        "orders.customer_id is int64, which cannot be compared with customer_id of its result, string",
        "definition",
    )
    step = made.step(projection, customer_id=pa.int64())
    task = made.task(step.generation)
    with pytest.raises(NeedsSpark):
        compute_incrementally(step, since, task, lambda *_: None)
    assert made.said == [("reading 2 keys for mine", 0, None, "")]
    with pytest.raises(NotIncremental, match="the rows of the keys take more than 0 MiB") as refused:
        compute_incrementally(replace(step, ctx=made.limited(1)), since, task, lambda *_: None)
    assert refused.value.cause == "size"


def test_nothing_is_computed_where_no_key_is_affected(made: Handmade) -> None:
    step = made.step(
        reading(["customer_id"], orders=State(ORDERS, affects="customer_id")), customer_id=pa.int64()
    )
    here = step.cut.epoch
    assert compute_incrementally(
        step, here, made.task(step.generation), lambda *_: None
    ) == IncrementalResult([], 0)


def test_what_a_result_is_computed_of_must_be_there(tmp_path: Path) -> None:
    with handmade(
        tmp_path,
        topics={ORDERS: TopicSettings.model_validate({"retention": "1h"})},
        upkeep=UpkeepSettings(keep_seconds=0),
    ) as made:
        made.log.fill()
        of_changes = reading(["k"], orders=Changes(ORDERS, affects={"k": "id"}))
        step = made.step(of_changes, [InputNeed(ORDERS, "changes", 0)], k=pa.int64())
        before = made.ctx.store.cut().epoch
        made.ctx.store.maintain(force_past=["projection:mine"])
        assert made.ctx.store.log_start(step.projection.topics[0]).epoch > 0
        with pytest.raises(HistoryGone, match="computed from all changes"):
            compute_incrementally(step, before, made.task(step.generation), lambda *_: None)
        of_rows = made.step(reading(["id"], orders=State(ORDERS, affects="id")), id=pa.int64())
        assert reason_against(of_rows, before, [ORDERS]) is None
        assert reason_against(of_rows, 1, [ORDERS]) == f"the history of {ORDERS} at epoch 1 is gone"


def test_something_else_than_rows_has_changed(made: Handmade) -> None:
    followed = State(ORDERS, affects="id")
    since = made.ctx.store.cut().epoch

    def reason(changed: list[str], epoch: int = since, **inputs: Input) -> str | None:
        step = StepInput(
            made.ctx, reading(["id"], orders=followed, **inputs), generation, made.ctx.store.cut()
        )
        return reason_against(step, epoch, changed)

    generation = made.generation("mine", ["id"], pa.schema([("id", pa.int64())]))
    customers, other = State(CUSTOMERS), Result("other")
    assert reason([ORDERS]) is None and reason([ORDERS], epoch=1) is None, "the first load is no second one"
    assert reason([ORDERS], customers=customers, other=other) is None
    unknown = "changed, and input {} does not say what it affects"
    assert reason([ORDERS, CUSTOMERS], customers=customers) == f"{CUSTOMERS} {unknown.format('customers')}"
    assert reason([ORDERS, "projection other"], other=other) == f"projection other {unknown.format('other')}"

    wider = TopicSchema(2, (*TABLES["orders"].columns, Column(7, "note", 25, type_name="text")))
    changed = made.log.commit(
        {"orders": [("c", made.log.order(900) | {"note": "n"})]}, new_schemas={"orders": wider}
    )
    assert reason([ORDERS]) == f"the columns of {ORDERS} changed"
    assert reason([ORDERS], epoch=changed) is None
    made.log.read_again("orders", wider)
    assert reason([ORDERS], epoch=changed) == f"{ORDERS} was read again"


COMPUTED = State(ORDERS, affects=Computed("quantity + 1"))


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({"orders": State(ORDERS, affects="k")}, ProjectionFailed),
        ({"orders": COMPUTED}, NotIncremental),
        ({"orders": COMPUTED, "customers": State(CUSTOMERS, affects="k")}, NotIncremental),
        ({"orders": State(ORDERS, affects="k"), "customers": State(CUSTOMERS, affects=Through("orders", {"id": "id"}))},
         ProjectionFailed),
    ],
)  # fmt: skip
def test_an_expression_of_a_key_may_fail_for_a_row_that_the_function_leaves_out(
    inputs: dict[str, Input], told: type[Exception]
) -> None:
    with (
        pytest.raises(told, match="divided by zero") as failed,
        _computed_keys_alone(lineage_of(reading(["k"], **inputs))),
    ):
        raise ProjectionFailed("divided by zero")
    if isinstance(failed.value, NotIncremental):
        assert failed.value.cause == "definition"
        assert str(failed.value) == "its key cannot be computed of each row: divided by zero"


SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("n", pa.int32())])
WHOLE = Lineage(("a", "b"), {}, ())
PART = Lineage(("b",), {}, ())


def rows_of(n: int, *keys: tuple[int | None, str]) -> list[Row]:
    return [{"a": a, "b": b, "n": n} for a, b in keys]


def table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA).combine_chunks()


ALL = [(a, b) for a in range(40) for b in "xyz"]


@pytest.fixture
def before(made: Handmade) -> Generation:
    generation = made.generation("mine", ["a", "b"], SCHEMA)
    made.put(generation, rows_of(1, *ALL))
    return generation


def counted(outcomes: list[BucketOutcome]) -> tuple[int, int, int]:
    """Rows that are new, are different and are gone."""
    added, changed = sum(each.only_new for each in outcomes), sum(each.different for each in outcomes)
    return added, changed, sum(each.only_old for each in outcomes)


def test_of_a_whole_key_only_buckets_that_may_have_it_are_compared(
    made: Handmade, before: Generation
) -> None:
    wanted = set_of([1, 2, 90], ["x", "y", "z"])
    task = made.task(before)
    found = table(rows_of(2, (1, "x"), (90, "z")))
    outcomes = compare_buckets(task, WHOLE, wanted, found)
    assert counted(outcomes) == (1, 1, 1), "(2, y) is gone"
    (one,) = compare_buckets(task, WHOLE, set_of([5], ["x"]), table([]))
    assert counted([one]) == (0, 0, 1)
    assert compare_buckets(task, WHOLE, set_of([5], ["x"]), table(rows_of(1, (5, "x")))) == [
        BucketOutcome(one.bucket, 1)
    ]


def test_of_a_part_of_the_key_all_rows_that_have_it_are_compared(made: Handmade, before: Generation) -> None:
    task, wanted = made.task(before), set_of(["x"])
    kept = [(a, "x") for a in range(40) if a != 7]
    outcomes = compare_buckets(
        task, PART, wanted, table(rows_of(1, *kept[:-1], (90, "x")) + rows_of(2, kept[-1]))
    )
    assert counted(outcomes) == (1, 1, 1)
    assert [each.bucket for each in outcomes] == list(task.placement.buckets)
    assert counted(compare_buckets(task, PART, wanted, table([]))) == (0, 0, 40)


def test_a_bad_key_is_refused_and_no_file_stays(made: Handmade, before: Generation) -> None:
    projection, wanted = reading(["a", "b"]), set_of([1, 2, 3, 4], ["x", "x", "x", "x"])
    storage, good = made.ctx.store.storage, rows_of(2, (1, "x"), (2, "x"), (3, "x"))
    files = set(storage.list("derived"))
    for bad, words in (
        (rows_of(2, (4, "x"), (4, "x")), r"1 rows repeat a key"),
        (rows_of(2, (None, "x")), r"1 rows have NULL in their key"),
    ):
        with pytest.raises(ProjectionFailed, match=words):
            written(projection, made.task(before), WHOLE, wanted, table(good + bad))
        assert set(storage.list("derived")) == files
    outcomes = written(projection, made.task(before), WHOLE, wanted, table(good))
    assert counted(outcomes) == (0, 3, 1) and set(storage.list("derived")) > files


def test_rows_of_other_keys_than_the_affected_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_SHOW_VALUES", "1")
    projection, wanted = reading(["a", "b"]), set_of([1], ["ü"])
    inside = rows_of(1, (1, "ü"), (None, "ü"), (None, "ö"))
    _refuse_outside(projection, WHOLE, wanted, table(inside))
    outside = rows_of(1, *((at, "ö") for at in range(4)))
    with pytest.raises(ProjectionFailed) as refused:
        _refuse_outside(projection, WHOLE, wanted, table(inside + outside))
    shown = ", ".join(f"""'{{"a": {at}, "b": "ö"}}'""" for at in range(3))
    assert refused.value.message == (
        "projection 'mine' (mine.py:1): it gave 4 rows with keys that no changed row affects (affects=): "
        + shown
    )
    assert "correct affects=" in refused.value.hint
