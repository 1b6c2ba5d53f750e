"""Of what a slot sends, exactly the rows are dropped that the log holds from Kafka; pure."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cdc.adoption.carried import difference, next_version
from tailrace.cdc.adoption.held import LEFT_OUT, MORE, HeldRows, row_lsns, streamed
from tailrace.cdc.kafka.repeats.duplicates import RowIdentity
from tailrace.eventstore.errors import ProtocolError
from tailrace.eventstore.model.schema import Column, TopicSchema

_TRANSACTIONS = st.lists(
    st.lists(st.tuples(st.sampled_from("cud"), st.integers(1, 4), st.booleans()), max_size=5), max_size=5
)
_SINCE = 100


def rows_of(transactions: list[list[tuple[str, int, bool]]]) -> list[RowIdentity]:
    """A row shares the LSN of the one before it where it says so and has another key, as rows of a COPY do."""
    rows: list[RowIdentity] = []
    lsn = _SINCE
    for number, changes in enumerate(transactions):
        keys: set[int] = set()
        for operation, key, shares in changes:
            if not shares or key in keys or not keys:
                lsn, keys = lsn + 1, set()
            keys.add(key)
            rows.append((10 + number, lsn, operation, key))
    return rows


def kept(held: HeldRows, rows: list[RowIdentity]) -> list[RowIdentity]:
    return [row for row, new in zip(rows, held.sift(rows), strict=True) if new]


def by_key(rows: list[RowIdentity]) -> dict[int, list[RowIdentity]]:
    return {key: [row for row in rows if row[3] == key] for key in {row[3] for row in rows}}


@given(_TRANSACTIONS, st.integers(0, 30), st.integers(1, 5))
def test_what_is_held_and_what_is_taken_are_all_rows_once_and_in_order(
    transactions: list[list[tuple[str, int, bool]]], sent: int, portion: int
) -> None:
    rows = rows_of(transactions)
    held = HeldRows(streamed(rows[:sent]))
    taken = [
        row for at in range(0, len(rows), portion) for row in kept(held, rows[at : at + portion])
    ]  # blocks
    assert rows[:sent] + taken == rows
    assert held.problem({row[0] for row in rows}, _SINCE) == ""


@given(_TRANSACTIONS, st.lists(st.integers(0, 30), min_size=2, max_size=2))
def test_of_several_partitions_each_key_has_all_its_rows_once_and_in_order(
    transactions: list[list[tuple[str, int, bool]]], sent: list[int]
) -> None:
    rows = rows_of(transactions)
    parts = [[row for row in rows if row[3] % 2 == part][: sent[part]] for part in (0, 1)]
    held = HeldRows(streamed(parts[0] + parts[1]), ordered=False)
    assert by_key(parts[0] + parts[1] + kept(held, rows)) == by_key(rows)
    assert held.problem({row[0] for row in rows}, _SINCE) == ""


@given(_TRANSACTIONS, st.sets(st.integers(0, 24)))
def test_a_row_that_the_connector_lost_is_taken_and_does_not_come_behind_its_keys_later_ones(
    transactions: list[list[tuple[str, int, bool]]], lost: set[int]
) -> None:
    rows = rows_of(transactions)
    sent = [row for at, row in enumerate(rows) if at not in lost]
    held = HeldRows(streamed(sent))
    taken = kept(held, rows)
    assert Counter(sent + taken) == Counter(rows)
    if not held.problem({row[0] for row in rows}, _SINCE):
        assert sent + taken == rows


def test_rows_that_kafka_has_and_the_slot_does_not_send_are_noticed_in_its_transactions_alone() -> None:
    held = HeldRows(streamed([(7, 150, "u", 1), (7, 90, "u", 1), (8, 150, "u", 1), (7, 150, "r", 2)]))
    held.sift([(7, 150, "c", 1)])
    assert held.problem({7}, _SINCE) == MORE
    assert held.problem({9}, _SINCE) == ""
    assert HeldRows(streamed([(7, 90, "u", 1)])).problem({7}, _SINCE) == "", "of a transaction long ago"


def test_a_truncate_has_a_place_among_the_rows_of_all_keys() -> None:
    held = HeldRows(streamed([(7, 150, "u", 1)]), ordered=False)
    assert kept(held, [(7, 140, "t", 0), (7, 150, "u", 1)]) == [(7, 140, "t", 0)]
    assert held.problem({7}, _SINCE) == LEFT_OUT
    held = HeldRows(streamed([(7, 150, "t", 0)]), ordered=False)
    assert kept(held, [(7, 140, "u", 1), (7, 150, "t", 0)]) == [(7, 140, "u", 1)]
    assert held.problem({7}, _SINCE) == LEFT_OUT


def test_equal_rows_of_a_table_without_a_key_are_dropped_as_often_as_they_are_held() -> None:
    row = (7, 150, "c", 1)
    assert kept(HeldRows(Counter({row: 2})), [row, row, row]) == [row]


def test_an_update_that_changes_the_key_makes_two_rows_with_its_lsn() -> None:
    assert row_lsns(["c", "d", "c", "u", "d"], [(73, 1), (85, 2), (85, 3), (68, 4)]) == [1, 2, 2, 3, 4]
    for operations in ([], ["c"], ["c", "c", "c"]):
        with pytest.raises(ProtocolError):
            row_lsns(operations, [(73, 1), (73, 2)])


ID, NOTE = Column(1, "id", 23, key=True), Column(3, "note", 25)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ((ID, NOTE), ""),
        ((ID, NOTE, Column(4, "gone", 25)), ""),
        ((ID, Column(3, "note", 1043, 24)), ""),
        ((ID, Column(2, "note", 25)), "note came from Kafka as another type, or in another place"),
        ((ID, Column(3, "note", 23)), "note came from Kafka as another type, or in another place"),
        ((ID,), "Kafka has no column note of it"),
        ((ID, Column(3, "note", 25, key=True)), "it has another key than in Kafka"),
        (
            (ID, Column(3, "note", 25, policy="hash")),
            "column policies protect values of it, and native capture goes by its own",
        ),
    ],
)
def test_a_topic_goes_on_with_the_same_columns_and_key(columns: tuple[Column, ...], reason: str) -> None:
    assert difference(TopicSchema(4, columns), TopicSchema(1, (ID, NOTE), relid=9)) == reason


def test_the_next_version_is_that_of_the_table_and_none_where_it_is_the_same() -> None:
    table = TopicSchema(1, (ID, NOTE), relid=9)
    found = next_version(TopicSchema(4, (ID, NOTE), from_lsn=2), table, 77)
    assert (found.version, found.from_lsn, found.relid) == (5, 77, 9)
    assert next_version(found, table, 99) is found
