"""What one transaction takes of the log: whole epochs, of a larger one a part; and from each position the rest."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from tailrace.eventstore.log.log import Log
from tailrace.eventstore.publishing.portions import Portion, PortionLimits, portions
from tailrace.eventstore.publishing.position import Position
from tailrace.eventstore.subscriptions.filter import matching_topics
from tests.eventstore.shop import batch, writer
from tests.fixtures.stores import StoreFactory, one_catalog

pytestmark = one_catalog


def read(log: Log, position: Position, bytes_max: int, **more: Any) -> list[Portion]:
    head = log.head()
    assert head is not None
    limits = PortionLimits(bytes_max, **more)
    return list(portions(log, matching_topics(log, ["shop.*"]), position, head.epoch, limits))


def places(found: list[Portion]) -> list[tuple[str, int, int]]:
    return [
        (each.topic.text, row["_partition"], row["_offset"])
        for portion in found
        for each in portion.rows
        for row in each.rows.select(["_partition", "_offset"]).to_pylist()
    ]


def behind(portion: Portion) -> Position:
    return Position("log", portion.epoch, "", portion.inside)


@pytest.fixture
def log(new_store: StoreFactory, monkeypatch: pytest.MonkeyPatch) -> Log:
    """Rows come in pieces of three."""
    monkeypatch.setattr("tailrace.eventstore.log.reader._BATCH_ROWS", 3)
    store = new_store()
    to = writer(store)
    to.append(batch(100, [("c", key) for key in range(20)], [("c", 1)]))
    to.append(batch(200, [("u", 1)]))
    to.append(batch(300, [("u", key) for key in range(20)], [("u", 1)]))
    return store


def test_epochs_stay_whole_where_they_fit(log: Log) -> None:
    (one,) = read(log, Position("log"), 1 << 30)
    assert (one.epoch, one.inside, len(places([one]))) == (3, {}, 43)


def test_a_portion_that_is_full_inside_an_epoch_waits_for_its_end(log: Log) -> None:
    (first, *_) = read(log, Position("log"), 1 << 30)
    size = sum(each.rows.nbytes for each in first.rows[:3])  # of the first two epochs
    found = read(log, Position("log"), size + 1)
    assert [(each.epoch, each.inside) for each in found] == [(3, {})]


def test_a_portion_ends_with_the_epoch_in_which_its_time_is_over(log: Log) -> None:
    assert [
        each.epoch for each in read(log, Position("log"), 1 << 30, seconds_max=2, clock=count().__next__)
    ] == [2, 3]
    found = read(log, Position("log"), 1 << 30, seconds_max=0, clock=lambda: 0)
    assert [(each.epoch, each.inside) for each in found] == [(1, {}), (2, {}), (3, {})]
    assert len(places(found)) == 43


def test_what_is_read_at_once_is_cut_to_a_portions_bytes(new_store: StoreFactory) -> None:
    store = new_store()
    writer(store).append(batch(100, [("c", key) for key in range(1000)]))
    (whole,) = read(store, Position("log"), 1 << 30)
    limit = whole.rows[0].rows.nbytes // 20
    found = read(store, Position("log"), limit)
    assert max(sum(each.rows.nbytes for each in portion.rows) for portion in found) < 2 * limit
    assert sorted(places(found)) == sorted(places([whole]))


def test_an_epoch_that_is_larger_is_cut_and_each_position_leads_to_the_rest(log: Log) -> None:
    found = read(log, Position("log"), 1)
    whole = places(found)
    assert len(found) > 10
    assert len(set(whole)) == len(whole) == 43
    assert any(each.inside for each in found)
    for number, each in enumerate(found):
        rest = read(log, behind(each), 1)
        assert sorted(places(rest)) == sorted(whole[len(places(found[: number + 1])) :])


def test_what_is_read_beside_a_truncate_stays_together(log: Log, new_store: StoreFactory) -> None:
    to = new_store().take_over("shop")
    to.append(batch(400, [*(("u", key) for key in range(9)), ("t", 0), *(("c", key) for key in range(9))]))
    found = read(log, Position("log", 3), 1)
    (with_it,) = [each for each in found if any("t" in rows.rows["_op"].to_pylist() for rows in each.rows)]
    first = [(row["_lsn"], row["_ordinal"]) for row in with_it.rows[0].rows.to_pylist()]
    assert (400, 9) in first
    later = [each for each in found[found.index(with_it) + 1 :] if each.rows]
    assert later == []
