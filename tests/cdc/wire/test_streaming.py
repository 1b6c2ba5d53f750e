"""Messages about streamed transactions are read whole, and what comes inside their blocks becomes that of version 1."""

from __future__ import annotations

import struct

import pytest

from tailrace.cdc.wire import pgoutput as pg
from tailrace.cdc.wire.streaming import Control, StreamCommit, StreamStart, StreamStop, control, unwrap
from tailrace.eventstore.errors import ProtocolError
from tests.cdc.messages import encode

CONTROLS: list[tuple[bytes, Control]] = [
    (struct.pack(">cIB", b"S", 700, 1), StreamStart(700, first=True)),
    (struct.pack(">cIB", b"S", 700, 0), StreamStart(700, first=False)),
    (b"E", StreamStop()),
    (struct.pack(">cIBQQq", b"c", 700, 0, 100, 108, 5), StreamCommit(700, 100, 108, 5)),
    (struct.pack(">cII", b"A", 700, 701), pg.StreamAbort(700, 701)),
]


@pytest.mark.parametrize(("frame", "message"), CONTROLS)
def test_a_message_about_streaming_is_read_whole_or_refused(frame: bytes, message: Control) -> None:
    assert control(frame) == message
    for end in range(1, len(frame)):
        with pytest.raises(ProtocolError):
            control(frame[:end])
    with pytest.raises(ProtocolError):
        control(frame + b"\0")


def test_an_abort_of_the_parallel_kind_has_position_and_time_behind_it() -> None:
    frame = struct.pack(">cIIQq", b"A", 700, 701, 100, 5)
    assert control(frame) == pg.StreamAbort(700, 701)
    for damaged in (frame[:-1], frame + b"\0"):
        with pytest.raises(ProtocolError):
            control(damaged)


@pytest.mark.parametrize(
    "frame", [struct.pack(">cIB", b"S", 1, 2), struct.pack(">cIBQQq", b"c", 1, 1, 1, 2, 3)]
)
def test_flags_that_nobody_knows_are_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolError, match="unknown flags"):
        control(frame)


def test_other_messages_are_not_about_streaming() -> None:
    assert [control(encode(pg.Begin(1, 2, 3))), control(encode(pg.Insert(7, ()))), control(b"")] == [None] * 3


def test_a_streamed_commit_is_the_begin_and_the_commit_of_version_1() -> None:
    found = StreamCommit(700, 100, 108, 5)
    assert pg.decode(found.begin()) == pg.Begin(100, 5, 700)
    assert pg.decode(found.commit()) == pg.Commit(100, 108, 5)


def test_inside_a_block_each_message_but_origin_says_its_subtransaction() -> None:
    for tag in (b"R", b"Y", b"I", b"U", b"D", b"T", b"M"):
        assert unwrap(tag + struct.pack(">I", 702) + b"rest") == (702, tag + b"rest")
        with pytest.raises(ProtocolError):
            unwrap(tag + bytes(3))
    origin = encode(pg.Origin(5, "o"))
    assert unwrap(origin) == (None, origin)
    for frame in (b"", b"B" + bytes(20), b"S" + bytes(5)):
        with pytest.raises(ProtocolError):
            unwrap(frame)
