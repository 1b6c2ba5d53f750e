"""What is sent leads from one result to the next: whoever keeps the last record of each key has the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailrace.eventstore.model import keys
from tailrace.eventstore.model.keys import hash_texts
from tailrace.eventstore.publishing.records import RECORDS
from tailrace.projections.generations.difference import HASH, difference, sort_rows
from tailrace.projections.generations.result_input import ResultInput
from tailrace.projections.generations.step_files import BucketFiles, run_schema, write_delta, write_run
from tailrace.projections.publishing.change import Change
from tailrace.projections.publishing.row_records import upsert_records
from tests.support.memory_storage import MemoryStorage

SCHEMA = pa.schema({"id": pa.int64(), "text": pa.string(), "level": pa.float64()})
WIDER = SCHEMA.append(pa.field("more", pa.int32()))
Rows = Mapping[int, tuple[str | None, float | None]]
ROWS = st.dictionaries(
    st.integers(0, 30),
    st.tuples(st.none() | st.text(max_size=4), st.none() | st.sampled_from([0.0, 1.5, float("nan")])),
    max_size=20,
)
CUTS = st.sampled_from([(1, 1), (2, 1), (2, 2), (3, 4)])
Kept = dict[bytes, bytes]


@dataclass
class Results:
    """Results in files of one storage."""

    storage: MemoryStorage
    numbers: Any

    def of(
        self, rows: Rows, cut: tuple[int, int], schema: pa.Schema = SCHEMA, generation: int = 1
    ) -> ResultInput:
        table = table_of(rows, schema)
        places = keys.buckets_of(table[HASH].combine_chunks(), *cut)
        placed = []
        for bucket in range(cut[0] * cut[1]):
            mine = table.filter(pa.array(places == bucket))
            if mine.num_rows:
                path = f"derived/p/{generation}/{next(self.numbers)}.run.arrow"
                placed.append((bucket, BucketFiles(write_run(self.storage, path, bucket, mine))))
        return ResultInput("p", generation, 1, schema, ("id",), *cut, tuple(placed), len(rows))


def table_of(rows: Rows, schema: pa.Schema) -> pa.Table:
    columns = {
        HASH: [hash_texts([str(key)]) for key in rows],
        "id": list(rows),
        "text": [text for text, _ in rows.values()],
        "level": [level for _, level in rows.values()],
        "more": [key * 2 for key in rows],
    }
    full = run_schema(schema)
    return sort_rows(pa.table({name: columns[name] for name in full.names}, schema=full), ["id"])


def applied(kept: Kept, change: Change) -> tuple[Kept, int]:
    """What a consumer has that keeps the last record of each key, and how many came."""
    found, came = dict(kept), 0
    for bucket in change.buckets:
        records = change.records(bucket)
        assert records.schema == RECORDS
        for each in records.to_pylist():
            came += 1
            if each["value"] is None:
                assert found.pop(each["key"], None) is not None, "a tombstone is of a key that was there"
            else:
                found[each["key"]] = each["value"]
    return found, came


def records_of(rows: Rows, schema: pa.Schema = SCHEMA) -> Kept:
    records = upsert_records(table_of(rows, schema), ["id"], 0)
    return dict(zip(records["key"].to_pylist(), records["value"].to_pylist(), strict=True))


@given(ROWS, ROWS, CUTS, CUTS, st.sampled_from([SCHEMA, WIDER]))
def test_between_two_generations_only_what_differs_is_sent_however_they_are_cut(
    old: Rows, new: Rows, one: tuple[int, int], other: tuple[int, int], schema: pa.Schema
) -> None:
    results = Results(MemoryStorage(), count())
    before, after = results.of(old, one), results.of(new, other, schema, generation=2)
    kept, came = applied(records_of(old), Change(results.storage, before, after, None))
    was, now = records_of(old), records_of(new, schema)
    assert kept == now
    assert came == sum(was.get(key) != value for key, value in now.items()) + len(was.keys() - now.keys())


@given(ROWS, CUTS)
def test_from_nothing_each_row_is_sent_once(rows: Rows, cut: tuple[int, int]) -> None:
    results = Results(MemoryStorage(), count())
    change = Change(results.storage, None, results.of(rows, cut), None)
    assert applied({}, change) == (records_of(rows), len(rows))


@given(st.lists(ROWS, min_size=2, max_size=4))
def test_of_several_steps_the_last_word_on_each_key_is_sent(states: list[Rows]) -> None:
    results = Results(MemoryStorage(), count())
    deltas = []
    for at, (old, new) in enumerate(pairwise(states)):
        found = difference(table_of(old, SCHEMA), table_of(new, SCHEMA), ["id"])
        deltas.append(write_delta(results.storage, f"derived/p/1/{at}.delta.arrow", 0, found, ["id"]))
    before, after = results.of(states[0], (1, 1)), results.of(states[-1], (1, 1))
    change = Change(results.storage, before, after, {0: deltas})
    found_keys = change.records(0)["key"].to_pylist()
    assert len(found_keys) == len(set(found_keys))
    kept = records_of(states[0])
    for each in change.records(0).to_pylist():
        kept.pop(each["key"], None)
        if each["value"] is not None:
            kept[each["key"]] = each["value"]
    assert kept == records_of(states[-1])
