"""Rows are stored by partition, each truncate in every one, and found again in the order in which they came."""

from __future__ import annotations

import pyarrow as pa

from tailrace.eventstore.model.partitioning import TopicIncarnation
from tailrace.eventstore.model.schema import change_schema
from tailrace.eventstore.segment.row_order import arrange, sort_by_commit
from tests.eventstore.shop import SCHEMA, rows


def test_what_was_arranged_is_found_again_in_the_order_of_commits() -> None:
    given = pa.concat_tables(
        [
            rows(10, [("c", 1), ("c", 2), ("t", 0), ("t", 0), ("c", 3)]),
            rows(20, [("t", 0), ("c", 1)]),
            rows(30, [("t", 0)]),
            rows(40, [("d", 1), ("c", 9)]),
        ]
    )
    arranged = arrange(given, TopicIncarnation(behind=0, first=4, count=3))
    assert [partition for partition, _ in arranged.counts] == [4, 5, 6]
    assert sum(count for _, count in arranged.counts) == arranged.count == len(arranged.table) == 6 + 3 * 4
    assert arranged.lsns == (10, 40)
    assert sort_by_commit(arranged.table).equals(given)


def test_no_rows_and_rows_of_one_partition_stay_as_they_are() -> None:
    one = TopicIncarnation(behind=0, first=0, count=1)
    none = arrange(change_schema(SCHEMA).empty_table(), one)
    assert (none.count, none.counts, none.lsns, none.commit_times) == (0, (), None, None)
    given = rows(10, [("c", 2), ("t", 0), ("c", 1)])
    arranged = arrange(given, one)
    assert arranged.counts == ((0, 3),) and arranged.table.equals(given)
    assert sort_by_commit(arranged.table.slice(0, 1)).equals(given.slice(0, 1))
