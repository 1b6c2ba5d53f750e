"""Some rows of a state, read without the rest, are exactly those of the whole state."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.eventstore.model.segment_ref import PartitionRange, SegmentRef
from tailrace.eventstore.segment.inline_parts import read_inline
from tailrace.eventstore.segment.segment import DecodeHints, read_segment
from tailrace.eventstore.state.input import StateInput
from tailrace.eventstore.state.key_lookup import (
    TooLarge,
    _collect_within,
    _complete_keys,
    _Unit,
    _units,
    _units_backwards,
    changed_keys,
    find_keys,
    state_of_keys,
)
from tailrace.eventstore.state.row_layout import Marks, StateRows
from tailrace.eventstore.storage import LocalStorage
from tests.eventstore.bucket_state import readable_state
from tests.eventstore.histories import TOPIC, History, Row
from tests.eventstore.state.test_compaction import CELLS, KEYS, NOWHERE, STEPS, TEXTS, UNSENT, history_of

STORAGE = LocalStorage(NOWHERE)
PLENTY = 1 << 30


def whole_state(wanted: StateInput) -> list[Row]:
    return [
        row for bucket in range(wanted.buckets) for row in readable_state(STORAGE, wanted, bucket).to_pylist()
    ]


def by_id(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: int(row["id"]))


@given(STEPS, st.sampled_from([0, 2]), st.sampled_from([1, 3]), st.sets(KEYS))
def test_the_state_of_some_keys_is_that_part_of_the_whole(
    steps: list[tuple[Any, ...]], hash_modulus: int, partitions: int, chosen: set[int]
) -> None:
    history = history_of(steps, hash_modulus)
    wanted = history.state_input(partitions, 2)
    hashes = np.array(sorted({history.hash_of(key) for key in chosen}), np.int64)
    found = state_of_keys(STORAGE, wanted, hashes, PLENTY)
    assert found.schema == wanted.schema
    assert by_id(found.to_pylist()) == by_id([row for row in whole_state(wanted) if row["_hash"] in hashes])


FEW = st.integers(0, 2)
ROWS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), FEW, CELLS, UNSENT),
        st.tuples(st.just("move"), FEW, FEW, UNSENT),
        st.tuples(st.just("delete"), FEW),
    ),
    min_size=4,
    max_size=16,
)


@given(
    st.one_of(STEPS, ROWS, ROWS),
    st.sampled_from([0, 0, 2]),
    st.sampled_from([1, 3]),
    st.sets(FEW, min_size=1),
    st.sampled_from([1, 9]),
)
def test_keys_that_are_known_by_value_are_read_from_the_end_and_have_the_rows_they_have(
    steps: list[tuple[Any, ...]],
    hash_modulus: int,
    partitions: int,
    chosen: set[int],
    at_once: int,
) -> None:
    history = history_of([each for step in steps for each in (step, ("cut",))], hash_modulus)
    wanted = history.state_input(partitions, 2)
    hashes = np.array([history.hash_of(key) for key in sorted(chosen)], np.int64)
    ids = pa.array(sorted(chosen), wanted.target.key[0].arrow)

    def has_one(columns: Any) -> Any:
        return pc.is_in(columns[0], value_set=ids).to_numpy(zero_copy_only=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tailrace.eventstore.state.key_lookup._ROWS_PER_UNIT", at_once)
        found = state_of_keys(STORAGE, wanted, hashes, PLENTY, has_one)
    assert by_id(found.to_pylist()) == by_id([row for row in whole_state(wanted) if row["id"] in chosen])


def test_what_lies_before_a_keys_last_whole_row_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History()
    for key in (1, 2, 3):
        history.put(key, {"body": "old", "extra": "as it was"})
        history.cut()
    history.put(2, {"body": "new"})
    history.cut()
    history.put(3, {"body": "new"}, unchanged=["extra"])
    wanted = history.state_input(1, 1)
    monkeypatch.setattr("tailrace.eventstore.state.key_lookup._ROWS_PER_UNIT", 1)
    read = list[SegmentRef]()

    def watched(refs: Sequence[SegmentRef], columns: Collection[str]) -> pa.Table:
        read.extend(refs)
        return read_inline(refs, columns)

    monkeypatch.setattr("tailrace.eventstore.state.key_lookup.read_inline", watched)

    def rows_of(key: int) -> list[Any]:
        def has_it(columns: Any) -> Any:
            same = pc.equal(columns[0], pa.scalar(key, columns[0].type))
            return same.fill_null(False).to_numpy(zero_copy_only=False)

        read.clear()
        hashes = np.array([history.hash_of(key)], np.int64)
        found = state_of_keys(STORAGE, wanted, hashes, PLENTY, has_it)
        return [found["body"].to_pylist(), found["extra"].to_pylist(), len(read)]

    assert rows_of(3) == [["new"], ["as it was"], 3]
    assert rows_of(2) == [["new"], [None], 2]
    assert rows_of(1) == [["old"], ["as it was"], len(wanted.refs)]


NOUGHT = np.zeros(5, np.int64)
FIVE_ROWS = StateRows(
    np.array([1, 2, 1, 3, 2]), np.frombuffer(b"cuucd", np.uint8), NOUGHT, NOUGHT, NOUGHT, NOUGHT, (),
    unchanged=Marks(np.array([2, 4]), np.array([2, 2])), moved=NOUGHT.astype(bool),
    raw=Marks(np.array([0]), np.array([2])),
)  # fmt: skip


def test_the_last_row_of_a_key_says_whether_all_of_it_is_known() -> None:
    assert _complete_keys(FIVE_ROWS).tolist() == [2, 3], "of 1 a cell was not sent, 2 is deleted"
    assert _complete_keys(replace(FIVE_ROWS, raw=Marks(np.array([3]), np.array([2])))).tolist() == [2]


def test_from_the_end_about_twice_as_many_rows_as_keys_are_read_and_then_ever_more() -> None:
    refs = [SegmentRef(TOPIC, 1, epoch, epoch, 1000, 0, ()) for epoch in range(1, 11)]
    large = [replace(ref, rows=50_000) for ref in refs]

    def epochs(refs: list[SegmentRef], keys: int) -> list[list[int]]:
        return [[ref.first_epoch for ref in unit] for unit in _units_backwards(refs, keys)]

    assert epochs(refs, 1000) == [[9, 10], [1, 2, 3, 4, 5, 6, 7, 8]]
    assert epochs(refs, 1) == [[9, 10], [4, 5, 6, 7, 8], [1, 2, 3]]
    small = [SegmentRef(TOPIC, 1, epoch, epoch, 1, 0, ()) for epoch in range(6000)]
    assert [len(unit) for unit in _units_backwards(small, 1)] == [1024, 4096, 880]
    assert epochs(large, 1_000_000) == [[8, 9, 10], [5, 6, 7], [2, 3, 4], [1]], (
        "as much as several threads take"
    )


def test_changed_keys_have_no_cells_where_one_is_no_value_of_its_type() -> None:
    history = History()
    history.put(1, {})
    history.cut()
    history._emit("c", 2, {"id": None, "body": None, "extra": None}, _raw=[(1, b"1e99")])
    wanted = history.state_input(1, 1)
    changed = changed_keys(STORAGE, wanted.refs, wanted.versions, wanted.target)
    assert changed.cells is None and not changed.truncated
    assert changed.hashes.tolist() == sorted(history.hash_of(key) for key in (1, 2))
    none = changed_keys(STORAGE, [], wanted.versions, wanted.target)
    assert none.cells is not None and none.cells["id"].to_pylist() == none.hashes.tolist() == []
    assert not none.truncated
    history.truncate()
    wanted = history.state_input(1, 1)
    changed = changed_keys(STORAGE, wanted.refs, wanted.versions, wanted.target)
    assert changed.truncated and not len(changed.hashes)


@given(STEPS, st.sampled_from([1, 3]), st.sets(TEXTS.filter(lambda text: text is not None), min_size=1))
def test_every_row_with_a_value_is_of_a_key_that_may_have_it(
    steps: list[tuple[Any, ...]], partitions: int, texts: set[str]
) -> None:
    wanted = history_of(steps, 0).state_input(partitions, 1)
    values = pa.array(sorted(texts), pa.string())

    def has_one(columns: Any) -> Any:
        return pc.is_in(columns[0], value_set=values).to_numpy(zero_copy_only=False)

    hashes = find_keys(STORAGE, wanted, ["body"], has_one)
    rows = [row for row in whole_state(wanted) if row["body"] in texts]
    assert {row["_hash"] for row in rows} <= set(hashes.tolist())
    found = state_of_keys(STORAGE, wanted, hashes, PLENTY).to_pylist()
    assert by_id([row for row in found if row["body"] in texts]) == by_id(rows)


def test_only_keys_that_may_have_had_a_value_are_found() -> None:
    history = History()
    for key, body in ((1, "x"), (2, "y"), (3, "z"), (1, "y")):
        history.put(key, {"body": body})
        history.cut()
    history.put(2, {"body": None, "extra": "e"}, unchanged=["extra"])
    history.cut()
    history.put(3, {"body": None}, unchanged=["body"])
    wanted = history.state_input(1, 1)

    def is_x(columns: Any) -> Any:
        return pc.equal(columns[0], "x").fill_null(False).to_numpy(zero_copy_only=False)

    found = find_keys(STORAGE, wanted, ["body"], is_x)
    assert found.tolist() == sorted(history.hash_of(key) for key in (1, 3)), "once, or not sent since"
    assert find_keys(STORAGE, replace(wanted, refs=()), ["body"], is_x).tolist() == []


def test_only_large_files_are_read_by_partition() -> None:
    ranges = tuple(PartitionRange(at, 0, 65_536) for at in (1, 0))
    full = SegmentRef(TOPIC, 1, 1, 1, 131_072, 0, ranges, path="a file")
    larger = replace(full, rows=131_073)
    inside = replace(larger, path=None)
    assert list(_units([full, inside, larger])) == [
        _Unit([full]), _Unit([inside]), _Unit([larger], (0,)), _Unit([larger], (1,)),
    ]  # fmt: skip


def test_parts_in_the_catalog_are_decoded_together_up_to_a_size_and_never_over_another_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tailrace.eventstore.state.key_lookup._UNIT_BYTES", 10)
    part = SegmentRef(TOPIC, 1, 1, 1, 1, 4, (), inline=b"")
    newer, file = replace(part, version=2), replace(part, path="a file")
    assert [unit.refs for unit in _units([part] * 5)] == [[part] * 2, [part] * 2, [part]]
    assert [unit.refs for unit in _units([part, newer, newer, file, newer])] == [
        [part], [newer, newer], [file], [newer],
    ]  # fmt: skip


@given(STEPS, st.sampled_from([1, 3]))
def test_keys_that_did_not_change_have_the_row_they_had(
    steps: list[tuple[Any, ...]], partitions: int
) -> None:
    """Of each place between two epochs: what is not among the changed keys is the same before and after."""
    wanted = history_of(steps, 0).state_input(partitions, 1)
    for at in range(len(wanted.refs)):
        before = replace(wanted, refs=wanted.refs[:at])
        changed = changed_keys(STORAGE, wanted.refs[at:], wanted.versions, wanted.target)
        if changed.truncated:
            continue
        rows, earlier = (
            [row for row in whole_state(each) if row["_hash"] not in changed.hashes]
            for each in (wanted, before)
        )
        assert by_id(rows) == by_id(earlier)
        assert changed.cells is not None
        assert set(changed.cells["id"].to_pylist()) >= {
            row["id"] for row in whole_state(wanted) if row["_hash"] in changed.hashes
        }


def test_more_rows_than_may_be_held_are_refused() -> None:
    history = History()
    for key in range(50):
        history.put(key, {"body": "x" * 100})
    wanted = history.state_input(2, 1)
    hashes = np.array([history.hash_of(key) for key in range(50)], np.int64)
    assert state_of_keys(STORAGE, wanted, hashes, PLENTY).num_rows == 50
    with pytest.raises(TooLarge):
        state_of_keys(STORAGE, wanted, hashes, 1000)
    assert state_of_keys(STORAGE, wanted, hashes[:0], 0).num_rows == 0
    assert (
        _collect_within([[FIVE_ROWS], [FIVE_ROWS]], 3 * FIVE_ROWS.nbytes, FIVE_ROWS.nbytes) == [FIVE_ROWS] * 2
    )
    with pytest.raises(TooLarge):
        _collect_within([[FIVE_ROWS], [FIVE_ROWS]], 3 * FIVE_ROWS.nbytes - 1, FIVE_ROWS.nbytes)


def test_keys_of_one_hash_are_all_read_where_only_their_hash_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = History(hash_modulus=1)
    for key in (1, 2):
        history.put(key, {"body": "x"})
        history.cut()
    monkeypatch.setattr("tailrace.eventstore.state.key_lookup._ROWS_PER_UNIT", 1)
    found = state_of_keys(
        STORAGE, history.state_input(1, 1), np.array([history.hash_of(1)], np.int64), PLENTY
    )
    assert sorted(found["id"].to_pylist()) == [1, 2]


def test_texts_come_as_dictionaries_only_where_rows_are_chosen_by_their_hash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = History()
    history.put(1, {"body": "x"})
    whole, coded = history.state_input(1, 1), list[list[str]]()
    # A part of the catalog that is not read as it lies there.
    wanted = replace(whole, refs=tuple(replace(ref, below_lsn=1 << 60) for ref in whole.refs))

    def watched(storage: LocalStorage, ref: SegmentRef, *, hints: DecodeHints, **more: Any) -> pa.Table:
        coded.append(sorted(hints.coded))
        return read_segment(storage, ref, hints=hints, **more)

    monkeypatch.setattr("tailrace.eventstore.state.key_lookup.read_segment", watched)
    state_of_keys(STORAGE, wanted, np.array([history.hash_of(1)], np.int64), PLENTY)
    find_keys(STORAGE, wanted, ["body"], lambda columns: np.ones(len(columns[0]), np.bool_))
    assert coded == [["_op", "after.body", "after.extra"], []]
