"""Damaged blocks: cut at every byte, garbage behind, one byte flipped, messages that cannot come: never a wrong row."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.cdc.stream.assemble import Assembler
from tailrace.cdc.wire import pgoutput as pg
from tailrace.cdc.wire.block import FrameBlock, PartialBlock
from tailrace.eventstore.errors import ProtocolError
from tests.cdc.messages import EVENT_ROW, EVENTS, FULL, HUGE, KEYED, N, U, decoder, encode

SAMPLES: list[pg.PgOutput] = [
    pg.Insert(KEYED.relid, (b"7", b"abc", N)),
    pg.Update(KEYED.relid, (b"7", U, b"2026-11-20")),
    pg.Update(KEYED.relid, (b"8", b"abc", N), key=(b"7", N, N)),
    pg.Update(FULL.relid, (b"8", U), old=(b"7", b"x")),
    pg.Delete(KEYED.relid, key=(b"7", N, N)),
    pg.Delete(FULL.relid, old=(b"7", b"x")),
    pg.Truncate((KEYED.relid,), cascade=False, restart_identity=False),
    pg.Message(True, 1, "audit", b"x"),
    pg.Relation(5, "public", "t", "d", (pg.RelationColumn("id", 23, -1, True),)),
]


def frame_block(frames: list[bytes]) -> FrameBlock:
    ends = array("q")
    for frame in frames:
        ends.append((ends[-1] if ends else 0) + len(frame))
    return FrameBlock(b"".join(frames), ends, 1, 1, 1, 2, datetime(2026, 11, 20, tzinfo=UTC))


def with_sample(sample: bytes, *, warm: bool, last: bool = False) -> FrameBlock:
    """``warm``: rows of both tables come before, so that the fast way takes what it can."""
    before = [KEYED.relation, FULL.relation]
    rows: list[pg.PgOutput] = [pg.Insert(KEYED.relid, (b"1", N, N)), pg.Insert(FULL.relid, (b"1", N))]
    frames = [encode(pg.Begin(300, 1, 1)), *map(encode, before), *map(encode, rows if warm else [])]
    return frame_block([*frames, sample] if last else [*frames, sample, encode(pg.Commit(300, 310, 1))])


@pytest.mark.parametrize("warm", [True, False], ids=["fast", "slow"])
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda message: type(message).__name__)
def test_a_row_cut_at_any_byte_is_refused(sample: pg.PgOutput, warm: bool) -> None:
    frame = encode(sample)
    decoder(KEYED, FULL).decode(with_sample(frame, warm=warm))
    for end in range(len(frame)):
        for last in (False, True):
            with pytest.raises(ProtocolError):
                decoder(KEYED, FULL).decode(with_sample(frame[:end], warm=warm, last=last))


@pytest.mark.parametrize("warm", [True, False], ids=["fast", "slow"])
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda message: type(message).__name__)
def test_a_row_with_garbage_behind_is_refused(sample: pg.PgOutput, warm: bool) -> None:
    for garbage in (b"\0", b"n", b"t\0\0\0\0", b"\xff" * 40):
        with pytest.raises(ProtocolError):
            decoder(KEYED, FULL).decode(with_sample(encode(sample) + garbage, warm=warm))


@given(st.sampled_from(SAMPLES), st.booleans(), st.data())
@settings(max_examples=300)
def test_one_flipped_byte_gives_what_the_reference_decoder_gives(
    sample: pg.PgOutput, warm: bool, data: st.DataObject
) -> None:
    frame = bytearray(encode(sample))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        expected: pg.PgOutput | None = pg.decode(bytes(frame))
    except ProtocolError:
        expected = None
    try:
        decoded = decoder(KEYED, FULL).decode(with_sample(bytes(frame), warm=warm))
    except ProtocolError:
        return
    assert expected is not None
    assert not isinstance(expected, pg.Begin | pg.Commit)
    assert sum(part.rows.num_rows for part in decoded.rows) <= 4


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([pg.Insert(KEYED.relid, (b"1", N, N))], id="row outside a transaction"),
        pytest.param([pg.Message(True, 1, "a", b"")], id="message outside a transaction"),
        pytest.param([pg.Truncate((KEYED.relid,), False, False)], id="truncate outside a transaction"),
        pytest.param([pg.Begin(300, 1, 1)], id="no commit"),
        pytest.param([pg.Begin(300, 1, 1), pg.Begin(400, 1, 1)], id="begin inside a transaction"),
        pytest.param([pg.Commit(300, 310, 1)], id="commit outside a transaction"),
        pytest.param([pg.Begin(300, 1, 1), pg.Commit(301, 310, 1)], id="commit of another transaction"),
        pytest.param(
            [pg.Begin(300, 1, 1), pg.Insert(99, (b"1",)), pg.Commit(300, 310, 1)], id="table not announced"
        ),
        pytest.param(
            [pg.Begin(300, 1, 1), KEYED.relation, pg.Insert(KEYED.relid, (b"1", N)), pg.Commit(300, 310, 1)],
            id="row of another width",
        ),
        pytest.param(
            [
                pg.Begin(300, 1, 1),
                KEYED.relation,
                pg.Insert(KEYED.relid, (pg.Binary(b"1"), N, N)),
                pg.Commit(300, 310, 1),
            ],
            id="binary cell",
        ),
        pytest.param(
            [pg.Begin(300, 1, 1), KEYED.relation, pg.Update(KEYED.relid, (U, N, N)), pg.Commit(300, 310, 1)],
            id="key left out",
        ),
        pytest.param(
            [
                pg.Begin(300, 1, 1),
                EVENTS.relation,
                pg.Insert(EVENTS.relid, (N, *EVENT_ROW[1:])),
                pg.Commit(300, 310, 1),
            ],
            id="event without category",
        ),
    ],
)
def test_nonsense_is_refused(frames: list[pg.PgOutput]) -> None:
    with pytest.raises(ProtocolError):
        decoder(KEYED).decode(frame_block([encode(message) for message in frames]))


def test_blocks_out_of_order_are_refused() -> None:
    assembler = Assembler(1, HUGE, 0)
    assembler.feed(encode(pg.Begin(300, 1, 1)))
    first = assembler.spill()
    assembler.feed(encode(pg.Message(True, 1, "a", b"")))
    second = assembler.spill()
    assembler.feed(encode(pg.Commit(300, 310, 1)))
    rest = assembler.cut()
    assert rest is not None
    wrong: list[tuple[list[PartialBlock], FrameBlock | PartialBlock]] = [
        ([], second),
        ([], rest),
        ([first], first),
        ([first, second], frame_block([encode(pg.Begin(400, 1, 1)), encode(pg.Commit(400, 410, 1))])),
    ]
    for before, block in wrong:
        fresh = decoder()
        for part in before:
            fresh.decode(part)
        with pytest.raises(ProtocolError, match="where the one before ended"):
            fresh.decode(block)


def test_a_sample_block_has_the_frames_it_is_given() -> None:
    block = with_sample(b"x", warm=False)
    assert [block.data[a:b] for a, b in pairwise([0, *block.ends])][-2] == b"x"
