"""Blocks hold whole transactions, each once, in order; nonsense is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cdc.stream.assemble import TRANSITIONS, Action, Assembler, AssemblyState
from tailrace.cdc.stream.queue import Handover
from tailrace.cdc.wire import pgoutput as pg
from tailrace.cdc.wire.block import FrameBlock, PartialBlock
from tailrace.cdc.wire.replication import moment
from tailrace.eventstore.errors import ProtocolError
from tests.cdc.messages import HUGE, KEYED, decoder, encode

RELATION = pg.Relation(1, "public", "t", "d", (pg.RelationColumn("id", 23, -1, True),))
OF_EACH_KIND: dict[str, pg.PgOutput] = {
    "B": pg.Begin(300, 3, 9),
    "C": pg.Commit(200, 210, 2),
    "O": pg.Origin(1, "o"),
    "R": RELATION,
    "Y": pg.Type(9, "public", "mood"),
    "I": pg.Insert(1, (b"1",)),
    "U": pg.Update(1, (b"1",)),
    "D": pg.Delete(1, key=(b"1",)),
    "T": pg.Truncate((1,), False, False),
    "M": pg.Message(True, 1, "p", b""),
    "m": pg.Message(False, 1, "p", b""),
    "A": pg.StreamAbort(1, 2),
}
STREAMED = "SEcPKrpb"  # protocol 2 and 3: never asked for

# What each state does with each message: k keep, d drop, x refuse. The state afterwards follows from B and C alone.
EXPECTED = {
    AssemblyState.IDLE: {"k": "BRY", "d": "mA"},
    AssemblyState.OPEN: {"k": "CORYIUDTM", "d": "mA"},
    AssemblyState.SKIPPING: {"k": "RY", "d": "COIUDTMmA"},
}


def machine(state: AssemblyState) -> Assembler:
    """In ``state``; the open transaction, if any, commits at 200."""
    assembler = Assembler(HUGE, HUGE, skip_through=200 if state is AssemblyState.SKIPPING else 100)
    if state is not AssemblyState.IDLE:
        assembler.feed(encode(pg.Begin(200, 2, 7)))
    return assembler


def gathered(assembler: Assembler) -> int:
    return assembler.pending_bytes


@pytest.mark.parametrize("state", AssemblyState)
@pytest.mark.parametrize("kind", OF_EACH_KIND)
def test_every_state_answers_every_message(state: AssemblyState, kind: str) -> None:
    assembler = machine(state)
    frame = encode(OF_EACH_KIND[kind])
    before = assembler.pending_bytes
    if kind in EXPECTED[state]["k"]:
        assembler.feed(frame)
        assert assembler.pending_bytes == before + len(frame)
    elif kind in EXPECTED[state]["d"]:
        assembler.feed(frame)
        assert assembler.pending_bytes == before
    else:
        with pytest.raises(ProtocolError):
            assembler.feed(frame)
        assert assembler.pending_bytes == before
        assert assembler.open == (state is not AssemblyState.IDLE)
        return
    assert assembler.open == {"B": True, "C": False}.get(kind, state is not AssemblyState.IDLE)


@pytest.mark.parametrize("state", AssemblyState)
def test_every_state_refuses_every_other_tag(state: AssemblyState) -> None:
    for tag in set(range(256)) - set(b"BCORYIUDTMA"):
        with pytest.raises(ProtocolError):
            machine(state).feed(bytes([tag]) + b"\0" * 30)


@pytest.mark.parametrize("state", AssemblyState)
def test_every_state_refuses_an_empty_message(state: AssemblyState) -> None:
    with pytest.raises(ProtocolError):
        machine(state).feed(b"")


def test_streamed_transactions_are_in_no_state_of_the_table() -> None:
    assert not {ord(tag) for tag in STREAMED} & {tag for actions in TRANSITIONS.values() for tag in actions}
    assert all(isinstance(action, Action) for actions in TRANSITIONS.values() for action in actions.values())


@pytest.mark.parametrize("kind", ["B", "C", "M"])
def test_a_boundary_or_message_cut_short_is_refused(kind: str) -> None:
    frame = encode(OF_EACH_KIND[kind])
    for end in range(1, len(frame) if kind != "M" else 2):
        with pytest.raises(ProtocolError):
            machine(AssemblyState.IDLE if kind == "B" else AssemblyState.OPEN).feed(frame[:end])
    with pytest.raises(ProtocolError):
        machine(AssemblyState.IDLE if kind == "B" else AssemblyState.OPEN).feed(
            b"" if kind == "M" else frame + b"\0"
        )


@pytest.mark.parametrize(
    "commit",
    [pg.Commit(201, 210, 2), pg.Commit(199, 210, 2), pg.Commit(200, 200, 2)],
    ids=["later", "earlier", "ends before it begins"],
)
def test_a_commit_of_another_transaction_is_refused(commit: pg.Commit) -> None:
    with pytest.raises(ProtocolError):
        machine(AssemblyState.OPEN).feed(encode(commit))


def test_commits_must_go_forward() -> None:
    assembler = machine(AssemblyState.OPEN)
    assembler.feed(encode(OF_EACH_KIND["C"]))
    with pytest.raises(ProtocolError, match="not after"):
        assembler.feed(encode(pg.Begin(200, 2, 8)))


def test_a_commit_right_at_the_end_of_the_one_before_is_another_transaction() -> None:
    """Seen on a server: A.end_lsn = B.commit_lsn. Dropping by end_lsn would lose B."""
    assembler = Assembler(HUGE, HUGE, skip_through=200)
    for begin, end in ((200, 230), (230, 260)):
        assembler.feed(encode(pg.Begin(begin, 1, begin)))
        assembler.feed(encode(OF_EACH_KIND["I"]))
        assembler.feed(encode(pg.Commit(begin, end, 1)))
    block = assembler.cut()
    assert block is not None
    assert (block.transactions, block.commit_lsn, block.end_lsn) == (1, 230, 260)
    assert assembler.skipped == 1


def split(block: FrameBlock | PartialBlock) -> list[bytes]:
    assert list(block.ends) == sorted(block.ends)
    assert len(block.data) == (block.ends[-1] if block.ends else 0)
    return [bytes(block.data[start:end]) for start, end in pairwise([0, *block.ends])]


sizes = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@given(st.lists(sizes, min_size=1, max_size=12), st.integers(0, 12), st.integers(1, 400), st.integers(1, 10))
def test_cutting_when_full_gives_back_every_kept_transaction_whole(
    transactions: list[list[int]], skip: int, epoch_bytes: int, epoch_changes: int
) -> None:
    kept: list[bytes] = []
    assembler = Assembler(epoch_bytes, epoch_changes, skip_through=skip * 100)
    blocks: list[FrameBlock] = []
    for number, rows in enumerate(transactions, 1):
        lsn = number * 100
        frames = [encode(pg.Begin(lsn, number, number))]
        frames += [encode(pg.Insert(1, (b"x" * size,))) for size in rows]
        frames.append(encode(pg.Commit(lsn, lsn + 30, number)))
        if number > skip:
            kept += frames
        for frame in frames:
            assembler.feed(frame)
            assert not (assembler.full and assembler.open and assembler.transactions == 0)
        if assembler.full:
            block = assembler.cut()
            assert block is not None
            assert len(block.data) >= epoch_bytes or block.changes >= epoch_changes
            assert (block.commit_lsn, block.end_lsn) == (lsn, lsn + 30)
            assert block.commit_ts == moment(number)
            blocks.append(block)
    last = assembler.cut()
    if last is not None:
        blocks.append(last)
    assert [frame for block in blocks for frame in split(block)] == kept
    assert sum(block.transactions for block in blocks) == max(0, len(transactions) - skip)
    assert sum(block.changes for block in blocks) == sum(len(rows) for rows in transactions[skip:])
    assert assembler.pending_bytes == 0
    assert assembler.cut() is None


@pytest.mark.parametrize("open_", [True, False])
def test_a_block_ends_where_its_cells_are_many_however_small_they_are(open_: bool) -> None:
    """A NULL is one byte in the stream and some twenty in the decoder."""
    assembler = Assembler(HUGE, HUGE, 0, epoch_cells=1000)
    nulls = (pg.Absent.NULL,) * 100
    row = encode(pg.Update(1, nulls, old=nulls))
    assembler.feed(encode(pg.Begin(200, 2, 7)))
    due = [assembler.feed(row) for _ in range(5)]
    if open_:
        assert due == [False] * 4 + [True]
        assert assembler.oversized
        assert assembler.spill().changes == 5
    else:
        assert not assembler.full
        assert assembler.feed(encode(pg.Commit(200, 210, 2)))
        assert assembler.full


def test_a_large_block_stays_as_it_is_while_more_is_gathered() -> None:
    """It is the memory it was gathered in, not a copy; what follows is gathered elsewhere."""
    assembler = Assembler(HUGE, HUGE, 0)
    rows = [encode(pg.Insert(1, (bytes([number]) * (600 << 10),))) for number in range(1, 7)]
    for frame in [encode(pg.Begin(200, 2, 7)), *rows[:3]]:
        assembler.feed(frame)
    first = assembler.spill()
    for frame in rows[3:]:
        assembler.feed(frame)
    second = assembler.spill()
    assert split(first)[1:] == rows[:3]
    assert split(second) == rows[3:]


def test_an_open_transaction_stays_when_a_block_is_cut() -> None:
    assembler = machine(AssemblyState.OPEN)
    assembler.feed(encode(OF_EACH_KIND["I"]))
    assembler.feed(encode(OF_EACH_KIND["C"]))
    begin, insert, commit = (
        encode(message) for message in (pg.Begin(300, 1, 8), pg.Insert(1, (b"2",)), pg.Commit(300, 310, 1))
    )
    assembler.feed(begin)
    assembler.feed(insert)
    first = assembler.cut()
    assert first is not None
    assert (first.commit_lsn, first.changes) == (200, 1)
    assert assembler.cut() is None
    assert assembler.pending_bytes == len(begin + insert)
    assembler.feed(commit)
    second = assembler.cut()
    assert second is not None
    assert split(second) == [begin, insert, commit]
    assert (second.commit_lsn, second.changes, second.transactions) == (300, 1, 1)


def test_relations_of_a_dropped_transaction_are_kept_for_the_next() -> None:
    """The server sends them once per connection."""
    assembler = machine(AssemblyState.SKIPPING)
    for kind in "RYIC":
        assembler.feed(encode(OF_EACH_KIND[kind]))
    assert assembler.cut() is None
    assert (assembler.skipped, assembler.commit_lsn, assembler.end_lsn) == (1, 200, 210)
    for message in (OF_EACH_KIND["B"], OF_EACH_KIND["I"], pg.Commit(300, 310, 1)):
        assembler.feed(encode(message))
    block = assembler.cut()
    assert block is not None
    assert [chr(frame[0]) for frame in split(block)] == ["R", "Y", "B", "I", "C"]
    assert block.changes == 1


@pytest.mark.parametrize("state", [AssemblyState.IDLE, AssemblyState.SKIPPING])
@pytest.mark.parametrize("queue_bytes", [1024, 4096])
def test_reading_goes_on_however_many_relations_come_in_front_of_a_row(
    state: AssemblyState, queue_bytes: int
) -> None:
    """They are handed over as a block of no transaction. Nobody waits for a commit that may never fit."""
    skipped, epoch_bytes, tables = state is AssemblyState.SKIPPING, 1024, 500
    assembler = Assembler(epoch_bytes, HUGE, skip_through=200 if skipped else 0)
    announced = [replace(KEYED.relation, relid=1000 + number, table=f"t{number}") for number in range(tables)]
    row = pg.Insert(KEYED.relid, (b"1", b"x", pg.Absent.NULL))
    messages: list[pg.PgOutput] = [pg.Begin(200, 2, 7)] if skipped else []
    messages += [KEYED.relation, *announced]
    if skipped:
        messages += [row, pg.Commit(200, 210, 2)]
    messages += [pg.Begin(300, 3, 8), row, pg.Commit(300, 310, 3)]
    handover, decoding = Handover(queue_bytes), decoder(KEYED)
    decoded, frames = [], []
    try:
        for message in messages:
            assert not handover.is_full(assembler.pending_bytes)
            due = assembler.feed(encode(message))
            while due and (block := assembler.cut()) is not None:
                handover.put(block)
            while (item := handover.get(0)) is not None:
                assert isinstance(item, FrameBlock)
                frames += split(item)
                decoded.append(decoding.decode(item))
                handover.task_done(0)
    finally:
        handover.release()
    last = assembler.cut()
    assert last is not None and last.transactions == 1
    (rows,) = decoding.decode(last).rows
    assert rows.rows.num_rows == 1
    frames += split(last)
    assert sorted(frames) == sorted(encode(each) for each in [KEYED.relation, *announced, *messages[-3:]])
    assert decoded and not any(each.rows or each.changes for each in decoded)


def test_messages_outside_transactions_are_counted_and_dropped() -> None:
    assembler = machine(AssemblyState.IDLE)
    assembler.feed(encode(OF_EACH_KIND["m"]))
    assert (assembler.dropped_messages, assembler.pending_bytes) == (1, 0)


@given(sizes, st.integers(30, 120))
def test_a_transaction_larger_than_an_epoch_is_handed_out_in_parts(rows: list[int], epoch_bytes: int) -> None:
    assembler = Assembler(epoch_bytes, HUGE, 0)
    frames = [encode(pg.Begin(200, 2, 7)), encode(RELATION)]
    frames += [encode(pg.Insert(1, (b"x" * size,))) for size in rows]
    frames.append(encode(pg.Commit(200, 210, 2)))
    largest = max(len(frame) for frame in frames)
    parts: list[PartialBlock] = []
    for frame in frames:
        assembler.feed(frame)
        if assembler.oversized:
            parts.append(assembler.spill())
        assert assembler.pending_bytes < epoch_bytes + largest  # bounded whatever the transaction's size
    for number, part in enumerate(parts):
        assert (part.xid, part.commit_lsn, part.commit_ts) == (7, 200, moment(2))
        assert part.continues == (7 if number else None)
    rest = assembler.cut()
    assert rest is not None
    assert rest.continues == (7 if parts else None)
    assert (rest.transactions, rest.commit_lsn, rest.end_lsn) == (1, 200, 210)
    handed_out = [frame for part in parts for frame in split(part)] + split(rest)
    assert handed_out == frames
    assert sum(part.changes for part in parts) + rest.changes == len(rows)


def test_the_transaction_after_a_spilled_one_begins_anew() -> None:
    assembler = machine(AssemblyState.OPEN)
    assembler.spill()
    assembler.feed(encode(OF_EACH_KIND["C"]))
    assembler.feed(encode(OF_EACH_KIND["B"]))
    rest = assembler.cut()
    assert rest is not None
    assert rest.continues == 7
    assert assembler.spill().continues is None


def test_only_an_open_transaction_that_is_first_in_line_can_be_spilled() -> None:
    with pytest.raises(ValueError, match="first in line"):
        machine(AssemblyState.IDLE).spill()
    with pytest.raises(ValueError, match="first in line"):
        machine(AssemblyState.SKIPPING).spill()
    waiting = machine(AssemblyState.OPEN)
    waiting.feed(encode(OF_EACH_KIND["C"]))
    waiting.feed(encode(OF_EACH_KIND["B"]))
    with pytest.raises(ValueError, match="first in line"):
        waiting.spill()
