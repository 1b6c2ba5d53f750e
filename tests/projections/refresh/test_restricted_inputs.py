"""Of every kind of input, rows of some keys are found, all of them and no others; too many are not held."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tailrace.eventstore.model.keys import hash_texts
from tailrace.eventstore.model.segment_ref import SegmentRef
from tailrace.eventstore.segment.inline_parts import read_inline
from tailrace.eventstore.segment.kept_answers import KeptAnswers
from tailrace.eventstore.state.input import StateInput
from tailrace.eventstore.state.key_lookup import TooLarge
from tailrace.projections import Changes, Computed, Events, Result, State, Through
from tailrace.projections.compute.engine import SparkEngine
from tailrace.projections.definition.lineage import lineage_of
from tailrace.projections.definition.model import Input, KeyColumn, Projection
from tailrace.projections.generations.key_set import KeySet
from tailrace.projections.refresh.by_key.restricted_inputs import Inputs, _as_projected
from tests.projections.refresh.handmade import Handmade, columns, handmade, reading, set_of
from tests.projections.refresh.test_incremental import event

LOOKUP = "tailrace.eventstore.state.key_lookup"
NUMERIC_6_2 = (6 << 16 | 2) + 4
IDS: dict[str, tuple[int, int, dict[Any, str], bool]] = {
    "bigint": (20, -1, {1: "1", 2: "2"}, True),
    "text": (25, -1, {"a": "a", "b ": "b "}, True),
    "character(4)": (1042, 8, {"a   ": "a   ", "b   ": "b   "}, False),
    "numeric(6,2)": (1700, NUMERIC_6_2, {Decimal("1.00"): "1.00", Decimal("2.50"): "2.50"}, False),
    "boolean": (16, -1, {False: "f", True: "t"}, False),
}
"""Of each type: ids with the texts that the log has hashed, and whether a set of keys hashes the same ones."""
TABLES = {
    kind: columns(("id", oid, mod, True), ("note", 25, -1, False)) for kind, (oid, mod, *_) in IDS.items()
} | {
    "pairs": columns(
        ("id", 20, -1, True), ("code", 1042, 8, True), ("kind", 1042, 8, False), ("size", 23, -1, False)
    )
}
PAIRS = [(1, "x   ", "k   "), (1, "y   ", None), (2, "x   ", "k   "), (2, "y   ", "m   ")]
TOTALS = [{"customer_id": at, "city": "ab"[at % 2], "total": 10 * at} for at in range(12)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handmade]:
    """What all tests read."""
    with handmade(tmp_path_factory.mktemp("shop"), TABLES) as each:
        each.log.fill()
        for kind, (_, _, ids, _) in IDS.items():
            for value, text in ids.items():
                row = {"id": value, "note": f"of {text}"}
                each.log.commit({kind: [("c", row, {"_hash": hash_texts([text])})]})
        for size, (value, code, kept) in enumerate(PAIRS):
            row = {"id": value, "code": code, "kind": kept, "size": size}
            more = {"key": {"id": value, "code": code}, "_hash": hash_texts([str(value), code])}
            each.log.commit({"pairs": [("c", row, more)]})
        orders = list(each.log.state["orders"].values())
        each.log.commit({"orders": [("u", row) for row in orders]}, events=[event("a", 1), event("b", 1)])
        each.log.commit({"orders": [("d", {"id": 2})]}, events=[event("a", 2)])
        schema = pa.schema([("customer_id", pa.int64()), ("city", pa.string()), ("total", pa.int32())])
        each.put(each.generation("totals", ["customer_id"], schema), TOTALS)
        yield each


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[SegmentRef]:
    """What is read of tables, one after the other."""
    refs: list[SegmentRef] = []

    def watched(parts: Sequence[SegmentRef], columns: Collection[str]) -> pa.Table:
        refs.extend(parts)
        return read_inline(parts, columns)

    monkeypatch.setattr(f"{LOOKUP}.read_inline", watched)
    monkeypatch.setattr(f"{LOOKUP}._ROWS_PER_UNIT", 1)
    return refs


def inputs(made: Handmade, projection: Projection, held: int = 1 << 30) -> Inputs:
    """At the log's end, of which so many bytes may be held."""
    return Inputs(
        made.limited(held), SparkEngine(made.ctx), projection, lineage_of(projection), made.ctx.store.cut()
    )


def rows_of(found: Inputs, name: str, wanted: KeySet) -> pa.Table:
    """What the function is given of an input."""
    rows = found.rows_of_keys(wanted)[name]
    assert isinstance(rows, pa.Table)
    return rows


@pytest.mark.parametrize("kind", IDS)
def test_a_row_is_found_by_its_key_whatever_the_log_has_hashed(
    made: Handmade, read: list[SegmentRef], kind: str
) -> None:
    *_, ids, same = IDS[kind]
    last, text = list(ids.items())[-1]
    found = inputs(made, reading(["note"], rows=State(f"shop.public.{kind}", affects="note")))
    shown = last.rstrip(" ") if kind == "character(4)" else last

    def rows(look: Callable[[], pa.Table]) -> list[dict[str, Any]]:
        read.clear()
        found._ctx.round_rows = KeptAnswers(0)  # nothing is known of earlier looks
        return [{name: row[name] for name in ("id", "note") if name in row} for row in look().to_pylist()]

    by_key = rows(lambda: found.rows_with_keys("rows", ["id"], set_of([shown]), ["note"]))
    assert by_key == [{"id": shown, "note": f"of {text}"}]
    assert (len(read) == 1) is same, "the newest alone, or all to find it and all of its hash"
    hashes, cells = np.array([hash_texts([text])]), pa.array([last], TABLES[kind].columns[0].arrow)
    known = {"id": pa.chunked_array([cells])}
    assert rows(lambda: found.rows_by_source_key("rows", hashes, known)) == [{"note": f"of {text}"}]
    assert (len(read) == 1) is same
    assert rows(lambda: found.rows_by_source_key("rows", hashes)) == [{"note": f"of {text}"}]
    assert len(read) == len(ids)


def test_the_same_keys_are_looked_up_once_in_whatever_order_they_come(
    made: Handmade, read: list[SegmentRef]
) -> None:
    """Grouped by several threads they come in another order each time."""
    found = inputs(made, reading(["note"], rows=State("shop.public.bigint", affects="note")))
    found._ctx.round_rows = KeptAnswers(1 << 20)
    first = found.rows_with_keys("rows", ["id"], set_of([1, 2]), ["note"])
    looked = len(read)
    assert looked and first.num_rows == 2
    again = found.rows_with_keys("rows", ["id"], set_of([2, 1]), ["note"])
    assert len(read) == looked and again.equals(first)


@pytest.mark.parametrize(
    ("by", "values", "sizes"),
    [
        (["id", "code"], ([1, 2, 3], ["y", "x", "x"]), [1, 2]),
        (["kind"], (["k"],), [0, 2]),
        (["kind", "id"], (["k", "m"], [2, 1]), [2]),
        (["size"], ([1, 3, 7],), [1, 3]),
        (["id"], ([2],), [2, 3]),
        (["size"], ([9],), []),
    ],
)
def test_a_row_is_found_by_any_of_its_columns_as_projections_see_them(
    made: Handmade, by: list[str], values: tuple[list[Any], ...], sizes: list[int]
) -> None:
    key, wanted = tuple(f"k{at}" for at in range(len(by))), set_of(*values)
    affects = dict(zip(key, by, strict=True))
    found = inputs(made, reading(key, rows=State("shop.public.pairs", affects=affects)))
    rows = found.rows_with_keys("rows", by, wanted, ["size"])
    assert sorted(rows["size"].to_pylist()) == sizes
    assert set(rows.column_names) >= {"size", *by}
    codes = {PAIRS[size][1].rstrip(" ") for size in sizes}
    assert set(rows_of(found, "rows", wanted)["code"].to_pylist()) == codes
    assert found.rows_with_keys("rows", by, wanted.take([]), ["size"]).num_rows == 0


def test_a_row_is_found_by_the_remainder_of_a_number_beside_a_padded_column(made: Handmade) -> None:
    parts: list[KeyColumn] = ["kind", Computed("id % 2")]
    affects = dict(zip(("k", "n"), parts, strict=True))
    found = inputs(made, reading(["k", "n"], rows=State("shop.public.pairs", affects=affects)))
    rows = found.rows_with_keys("rows", parts, set_of(["k"], [1]), ["size"])
    assert rows["size"].to_pylist() == [0]
    assert found.keys_of("rows", rows).table.to_pylist() == [{"0": "k", "1": 1}]


def test_of_cells_with_padding_only_those_of_the_keys_are_looked_up(made: Handmade) -> None:
    planned = inputs(made, reading(["k"], rows=State("shop.public.pairs", affects={"k": "id"}))).plan_of(
        "rows"
    )
    assert isinstance(planned, StateInput)
    matches = _as_projected(planned, ["kind", "id"], set_of(["k"], [2]).matches)
    assert matches([pa.array(["k   ", "m   ", None]), pa.array([2, 2, 2])]).tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("by", "values", "customers"),
    [
        ("customer_id", [3, 4, 70], [3, 4]),
        ("city", ["b", "c"], [1, 3, 5, 7, 9, 11]),
        ("total", [40], [4]),
        ("total", [41], []),
    ],
)
def test_rows_of_a_result_are_found_by_its_key_and_by_other_columns(
    made: Handmade, by: str, values: list[Any], customers: list[int]
) -> None:
    found = inputs(made, reading(["k"], totals=Result("totals", affects={"k": by})))
    rows = found.rows_with_keys("totals", [by], set_of(values), ["customer_id"])
    assert sorted(rows["customer_id"].to_pylist()) == customers
    assert rows.column_names == list(dict.fromkeys(["customer_id", by]))
    totals = rows_of(found, "totals", set_of(values)).sort_by("customer_id")
    assert totals.to_pylist() == [TOTALS[at] for at in customers]


@pytest.mark.parametrize(
    ("affects", "expected"),
    [("city", [{"city": "a"}, {"city": "b"}]), (None, [{"customer_id": 3}, {"customer_id": 8}])],
)
def test_of_a_results_keys_the_columns_of_the_lineage_are_read_or_else_the_key(
    made: Handmade, affects: str | None, expected: list[dict[str, Any]]
) -> None:
    found = inputs(made, reading(["city"], totals=Result("totals", affects=affects)))
    rows = found.rows_by_source_key("totals", np.array([hash_texts(["3"]), hash_texts(["8"])]))
    assert sorted(rows.to_pylist(), key=str) == expected


def test_of_a_table_that_affects_one_total_the_key_is_read(made: Handmade) -> None:
    found = inputs(made, reading(["k"], orders=State("shop.public.orders")))
    rows = found.rows_by_source_key("orders", np.array([hash_texts(["3"])]))
    assert rows["id"].to_pylist() == [3] and "amount" not in rows.column_names


CHANGES = Changes("shop.public.orders", affects={"k": "id"})
EVENTS = Events("shop.order", affects={"k": "stream"})


def test_changes_are_found_by_their_key_and_events_by_any_column(made: Handmade) -> None:
    orders = rows_of(inputs(made, reading(["k"], orders=CHANGES)), "orders", set_of([2, 70]))
    assert [(row["key"]["id"], row["_op"]) for row in orders.sort_by("_lsn").to_pylist()] == [
        (2, "c"), (2, "u"), (2, "d"),
    ]  # fmt: skip
    events = rows_of(inputs(made, reading(["k"], events=EVENTS)), "events", set_of(["a"]))
    assert sorted(events["event_id"].to_pylist()) == ["a-1", "a-2"]


def test_rows_go_where_the_rows_go_that_they_belong_to(made: Handmade) -> None:
    through = Through("customers", {"customer_id": "id"})
    orders = State("shop.public.orders", columns=("id", "amount"), affects=through)
    projection = reading(["city"], customers=State("shop.public.customers", affects="city"), orders=orders)
    found, state = inputs(made, projection), made.log.state
    wanted = set_of(["Lund", "Rome"])
    here = [row["id"] for row in state["customers"].values() if row["city"] == "Lund"]
    theirs = [row["id"] for row in state["orders"].values() if row["customer_id"] in here]
    assert sorted(rows_of(found, "customers", wanted)["id"].to_pylist()) == here
    rows = rows_of(found, "orders", wanted)
    assert sorted(rows["id"].to_pylist()) == theirs
    assert rows.column_names == ["id", "amount"], "what the function sees"

    def keys_of(*ids: int | None) -> pa.Table:
        return found.keys_of("orders", pa.table({"customer_id": pa.array(ids, pa.int64())})).table

    assert sorted(keys_of(1, 2, 3)["0"].to_pylist()) == ["Brno", "Lund", "Turku"] and not found.null_links
    assert not keys_of(99).num_rows and not found.null_links
    assert keys_of(None).equals(found.no_keys.table) and found.null_links == {"orders"}


@pytest.mark.parametrize(
    ("source", "by", "words"),
    [
        (State("shop.public.orders", affects={"k": "customer_id"}), "customer_id", "their rows take 0 MiB"),
        (Result("totals", affects={"k": "total"}), "total", "rows of totals take more than 0 MiB"),
        (CHANGES, "id", "the changes of the keys take more than 0 MiB"),
    ],
    ids=["state", "result", "changes"],
)
def test_what_takes_more_than_may_be_held_is_told(made: Handmade, source: Input, by: str, words: str) -> None:
    wanted, projection = set_of(list(range(200))), reading(["k"], rows=source)
    whole = inputs(made, projection)
    held = whole.rows_with_keys("rows", [by], wanted, whole.visible_columns("rows")).nbytes
    assert rows_of(inputs(made, projection, held), "rows", wanted).num_rows
    with pytest.raises(TooLarge, match=words):
        inputs(made, projection, held - 1).rows_of_keys(wanted)
