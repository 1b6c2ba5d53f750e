"""What is asked again is not looked up again, and takes no more memory than it may."""

from __future__ import annotations

import pyarrow as pa

from tailrace.eventstore.segment.kept_answers import KeptAnswers


def test_an_answer_is_looked_up_once_and_never_more_of_them_are_kept_than_may_be() -> None:
    rows = KeptAnswers(most_bytes=20)
    asked: list[str] = []

    def look_up(question: str, count: int) -> pa.Table:
        def table() -> pa.Table:
            asked.append(question)
            return pa.table({"id": pa.array(range(count), pa.int64())})

        return rows.get(question, table)

    assert look_up("a", 1).num_rows == 1 and look_up("a", 1).num_rows == 1
    assert asked == ["a"]
    assert look_up("large", 9).num_rows == 9 and look_up("large", 9).num_rows == 9
    assert asked == ["a", "large", "large"], "there is no room for it"
    look_up("b", 1)
    look_up("c", 1)
    look_up("b", 1)
    look_up("a", 1)
    assert asked == ["a", "large", "large", "b", "c", "a"], "the oldest went"


def test_there_are_no_more_answers_than_asked_for() -> None:
    kept = KeptAnswers(1000, most_answers=2)
    for question in (1, 2, 3):
        kept.get(question, lambda: pa.array([1.0]))
    assert [*kept._held] == [2, 3] and kept._bytes == 16
