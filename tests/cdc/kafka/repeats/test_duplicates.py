"""Rows that Debezium sends again are dropped when the log has them, and only then."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.cdc.kafka.decoded import ORIGINS
from tailrace.cdc.kafka.repeats.duplicates import RowIdentity, RowPosition, Sifted, sift
from tailrace.eventstore.model.kafka import PartitionProgress

Row = tuple[int, int, int, str, int]  # commit before it, LSN, transaction, operation, key


def sifted(rows: list[Row], log: Collection[Row] = (), snapshot: str | None = "false") -> Sifted:
    """``rows`` behind those that the log has."""
    high = max(((commit, lsn) for commit, lsn, *_ in log), default=(0, 0))
    known = {(xid, lsn, operation, key) for _, lsn, xid, operation, key in log}

    def held(names: Collection[RowIdentity], lowest: RowPosition) -> set[RowIdentity]:
        behind = {
            (xid, lsn, operation, key) for commit, lsn, xid, operation, key in log if (commit, lsn) >= lowest
        }
        assert behind & set(names) == known & set(names), "it would be looked for in too few rows"
        return {name for name in names if name in known}

    data = pa.table({
        "_hash": pa.array([row[4] for row in rows], pa.int64()),
        "_op": pa.array([row[3] for row in rows], pa.string()),
        "_txn": pa.array([row[2] for row in rows], pa.int64()),
    })  # fmt: skip
    origins = pa.table(
        {
            "offset": range(len(rows)),
            "xid": [row[2] for row in rows],
            "lsn": [row[1] for row in rows],
            "commit_lsn": [row[0] or None for row in rows],
            "snapshot": [snapshot] * len(rows),
            "transaction": [None] * len(rows),
        },
        schema=ORIGINS,
    )
    return sift(data, origins, PartitionProgress("t", 0, "", 0, *high), held)


def kept(found: Sifted) -> list[int]:
    return [at for at, keep in enumerate(found.keep) if keep]


FIRST, SECOND, THIRD = (0, 10, 7, "c", 1), (20, 25, 8, "u", 1), (20, 27, 8, "u", 1)


def test_rows_that_go_on_are_kept() -> None:
    found = sifted([FIRST, SECOND, THIRD])
    assert kept(found) == [0, 1, 2] and (found.commit_lsn, found.row_lsn) == (20, 27)
    assert found.gone_back is None


def test_rows_that_the_log_has_are_dropped_and_what_follows_is_kept() -> None:
    found = sifted([FIRST, SECOND, THIRD], log=[FIRST, SECOND])
    assert kept(found) == [2] and found.gone_back is None
    found = sifted([FIRST, SECOND], log=[FIRST, SECOND, THIRD])
    assert kept(found) == [] and (found.commit_lsn, found.row_lsn) == (20, 27)


def test_rows_come_in_the_order_of_commits_not_of_their_own_lsns() -> None:
    """The transaction that began first, and committed last."""
    assert kept(sifted([(20, 25, 8, "c", 1), (30, 5, 6, "c", 2)])) == [0, 1]
    assert kept(sifted([(30, 5, 6, "c", 2)], log=[(20, 25, 8, "c", 1)])) == [0]


def test_rows_of_one_copy_share_their_position_also_across_epochs_and_a_restart() -> None:
    copied = [(20, 25, 8, "c", key) for key in range(5)]
    assert kept(sifted(copied)) == [0, 1, 2, 3, 4]
    assert kept(sifted(copied[2:], log=copied[:2])) == [0, 1, 2]
    assert kept(sifted(copied, log=copied[:2])) == [2, 3, 4]
    assert kept(sifted([*copied[:3], *copied])) == [0, 1, 2, 6, 7]


def test_a_position_that_went_back_with_a_row_that_nobody_has_stops() -> None:
    assert sifted([FIRST], log=[SECOND]).gone_back == 0
    assert sifted([THIRD, SECOND]).gone_back == 1
    other = (20, 25, 9, "u", 1)  # another transaction at the place of one that the log has
    assert sifted([SECOND, other], log=[SECOND, THIRD]).gone_back == 1


def test_rows_of_a_snapshot_and_rows_without_a_position_are_never_dropped() -> None:
    for marker in ("true", "first", "last", "incremental"):
        found = sifted([FIRST, FIRST], log=[SECOND], snapshot=marker)
        assert kept(found) == [0, 1] and (found.commit_lsn, found.row_lsn) == (20, 25)


@given(data=st.data())
@settings(max_examples=60)
def test_whatever_is_sent_again_each_row_comes_once_and_in_order(data: st.DataObject) -> None:
    """A stream of transactions, read in epochs; the connector restarts at random and goes back some rows."""
    stream: list[Row] = []
    lsn = commit = 0
    for xid in range(data.draw(st.integers(1, 6))):
        for _ in range(data.draw(st.integers(1, 3))):
            lsn += data.draw(st.integers(1, 9))
            operation = data.draw(st.sampled_from("cu"))
            stream += [(commit, lsn, xid, operation, key) for key in range(data.draw(st.integers(1, 3)))]
        commit = lsn = lsn + 1
    sent: list[Row] = []
    at = 0
    while at < len(stream):
        end = data.draw(st.integers(at + 1, len(stream)))
        sent += stream[at:end]
        at = data.draw(st.integers(0, end)) if len(sent) < 60 and end < len(stream) else end
    log: list[Row] = []
    while sent:
        size = data.draw(st.integers(1, len(sent)))
        found = sifted(sent[:size], log=log)
        assert found.gone_back is None
        log += [row for row, keep in zip(sent[:size], found.keep, strict=True) if keep]
        sent = sent[size:]
    assert log == stream
