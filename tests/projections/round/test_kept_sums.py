"""Partial results that go on in memory: the latest row of each key, up to any epoch at which they were set aside."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.eventstore.metadata.projection_steps import DerivedRun
from tailrace.projections.generations.key_set import KeySet, hashes_of
from tailrace.projections.round import kept_sums
from tailrace.projections.round.kept_sums import KeptSums, LatestRows, SameHash

SCHEMA = pa.schema([("day", pa.int32()), ("status", pa.string()), ("total", pa.int64())])
KEY = ("day", "status")
Rows = dict[tuple[int, str], int]
keys = st.tuples(st.integers(0, 9), st.sampled_from(["open", "paid"]))
changes = st.lists(st.dictionaries(keys, st.integers(), max_size=8), max_size=40)


def table(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist(
        [{"day": day, "status": status, "total": total % 1000} for (day, status), total in rows.items()],
        SCHEMA,
    )


def as_rows(found: pa.Table) -> Rows:
    return {(row["day"], row["status"]): row["total"] for row in found.to_pylist()}


def add(latest: LatestRows, epoch: int, rows: Rows) -> None:
    added = table(rows)
    latest.add(epoch, added, hashes_of([added[name] for name in KEY]))


@given(changes=changes, aside=st.integers(0, 39), asked=st.lists(keys, unique=True))
def test_the_latest_row_of_each_key_is_found_and_what_was_set_aside_stays_as_it_was(
    changes: list[Rows], aside: int, asked: list[tuple[int, str]]
) -> None:
    sums = KeptSums(1 << 30, lambda: 0.0)
    step = DerivedRun("sums.1", 1, 0, 1, "delta", (), 0, "hash", None)
    latest, model, then, later = LatestRows(KEY, SCHEMA), Rows(), Rows(), Rows()
    with pytest.MonkeyPatch.context() as patched, sums.at_work():
        patched.setattr(kept_sums, "CHANGES", aside)
        for at, rows in enumerate(changes):
            add(latest, 2 + at, rows)
            sums.put(step, 2 + at, latest, 1)
            model |= as_rows(table(rows))
            later |= as_rows(table(rows))
            if at == aside:
                then, later = dict(model), Rows()
        wanted = pa.Table.from_pylist([{"day": day, "status": status} for day, status in asked], SCHEMA)
        found, others = latest.find(KeySet.of([wanted[name] for name in KEY]))
        assert as_rows(found) == {key: total for key, total in model.items() if key in asked}
        assert len(others) == len({*asked} - {*model})
        assert as_rows(latest.rows) == model
        to = sums.take_turn(step)
        assert (to is not None) == (len(changes) > aside)
        if to is not None:
            due = sums.due(step, to)
            assert due is not None
            assert as_rows(due.rows) == then
            sums.go_on(replace(step, from_epoch=1, to_epoch=to, hash="next"))
            assert as_rows(latest.rows) == later
            assert sums.since(replace(step, hash="next"), 1 + len(changes)) is not None
            assert sums.due(step, to) is None


def test_two_keys_of_one_hash_are_not_taken_for_one() -> None:
    latest, rows = LatestRows(KEY, SCHEMA), table({(1, "open"): 5, (2, "paid"): 7})
    with pytest.raises(SameHash):
        latest.add(2, rows, np.array([3, 3]))
    assert latest.rows.num_rows == 0
    wanted = KeySet.of([rows[name] for name in KEY])
    latest.add(2, table({(1, "paid"): 1, (2, "open"): 1}), wanted.hashes)
    with pytest.raises(SameHash):
        latest.find(wanted)


def test_what_is_kept_is_of_one_step_and_of_the_position_where_its_results_are() -> None:
    now = [0.0]
    sums = KeptSums(1 << 30, lambda: now[0])
    step = DerivedRun("sums.1", 1, 0, 1, "delta", (), 0, "hash", None)
    assert not sums.puts_off
    with sums.at_work():
        for last, at in ((replace(step, hash="another"), 5), (step, 4)):
            sums.put(step, 5, LatestRows(KEY, SCHEMA), 1)
            assert sums.since(step, 5) is not None
            assert sums.since(last, at) is None
            assert sums.since(step, 5) is None
        sums.put(step, 5, LatestRows(KEY, SCHEMA), 1)
        assert sums.take_turn(step) is None
        now[0] += kept_sums.SECONDS
        sums.put(step, 6, LatestRows(KEY, SCHEMA), 1)
        assert sums.take_turn(step) == 6
        assert sums.take_turn(step) is None
    assert sums.since(step, 6) is None
