"""Frames taken many at once are gathered as if each were fed by itself."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tailrace.cdc.stream.assemble import Assembler
from tailrace.cdc.wire import pgoutput as pg
from tailrace.cdc.wire.block import FrameBlock, PartialBlock
from tailrace.cdc.wire.copy_data import Messages
from tailrace.eventstore.errors import ProtocolError
from tests.cdc.messages import encode

KEEPALIVE = struct.pack(">cQqB", b"k", 1, 0, 0)
ROW = pg.Insert(1, (b"x" * 9,))
RELATION = pg.Relation(1, "public", "t", "d", (pg.RelationColumn("id", 23, -1, True),))
inside: st.SearchStrategy[pg.PgOutput] = st.sampled_from(
    [
        *[ROW] * 3,
        pg.Update(1, (b"x" * 40,)),
        pg.Update(1, (pg.Absent.NULL, b"x"), old=(b"1", pg.Absent.NULL)),
        pg.Delete(1, key=(b"",)),
        RELATION,
        pg.Message(True, 1, "p", b""),
        pg.Message(False, 1, "p", b""),
        pg.Truncate((1,), False, False),
    ]
)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Transactions with rising positions; now and then one that nobody may send."""
    sent: list[pg.PgOutput] = []
    lsn = 100
    for number, rows in enumerate(draw(st.lists(st.lists(inside, max_size=6), min_size=1, max_size=6))):
        lsn += 100
        sent += [pg.Begin(lsn, number, number), *rows, pg.Commit(lsn, lsn + 10, number)]
        sent += draw(st.lists(st.just(RELATION), max_size=1))
    stray: st.SearchStrategy[pg.PgOutput] = st.sampled_from(
        [ROW, pg.Begin(150, 0, 0), pg.Begin(2**63, 0, 0), pg.Commit(200, 210, 0)]
    )
    if draw(st.booleans()):
        sent.insert(draw(st.integers(0, len(sent))), draw(stray))
    frames = [encode(message) for message in sent]
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(frames) - 1))
        frames[at] = frames[at][: draw(st.integers(1, len(frames[at])))]
    return frames


def cut(assembler: Assembler, done: list[FrameBlock | PartialBlock]) -> None:
    block = assembler.cut()
    if block is not None:
        done.append(block)
    if assembler.oversized:
        done.append(assembler.spill())


def feed_each(assembler: Assembler, frames: Sequence[bytes]) -> list[FrameBlock | PartialBlock]:
    done: list[FrameBlock | PartialBlock] = []
    for frame in frames:
        if assembler.feed(frame):
            cut(assembler, done)
    return done


def take_chunks(assembler: Assembler, chunks: Sequence[Sequence[bytes]]) -> list[FrameBlock | PartialBlock]:
    """Frames as they come from the socket, a keepalive behind each chunk."""
    done: list[FrameBlock | PartialBlock] = []
    for chunk in chunks:
        frames = [*(struct.pack(">cQQq", b"w", 0, 0, 0) + frame for frame in chunk), KEEPALIVE]
        taken, at = Messages.of(frames), 0
        while at < len(frames):
            at, due = assembler.take(taken, at)
            if due:
                cut(assembler, done)
            elif at < len(frames):
                assert frames[at] == KEEPALIVE
                at += 1
    return done


def outcome(assembler: Assembler, frames: list[bytes], step: int) -> list[object]:
    """All there is to see afterwards. ``step``: frames taken together; 0 feeds one by one."""
    try:
        blocks: object
        if step:
            blocks = take_chunks(assembler, [frames[at : at + step] for at in range(0, len(frames), step)])
        else:
            blocks = feed_each(assembler, frames)
    except ProtocolError as error:
        return [str(error)]
    counts = [assembler.gathered, assembler.skipped, assembler.dropped_messages]
    return [blocks, assembler.cut(), assembler.open, assembler.pending_bytes, assembler.end_lsn, *counts]


@given(
    streams(),
    st.integers(1, 12),
    st.sampled_from([30, 200, 1 << 40]),
    st.sampled_from([3, 1 << 40]),
    st.sampled_from([2, 1 << 40]),
    st.data(),
)
def test_frames_taken_together_are_gathered_as_if_fed_one_by_one(
    frames: list[bytes],
    step: int,
    epoch_bytes: int,
    epoch_changes: int,
    epoch_cells: int,
    data: st.DataObject,
) -> None:
    skip_through = data.draw(st.sampled_from([0, 200, 300]))
    one, other = (Assembler(epoch_bytes, epoch_changes, skip_through, epoch_cells) for _ in range(2))
    assert outcome(one, frames, 0) == outcome(other, frames, step)
