"""The reference decoder: every message whole, cut at every byte, with garbage behind; never a wrong value."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.cdc.wire import pgoutput as pg
from tailrace.eventstore.errors import ProtocolError
from tests.cdc import messages
from tests.cdc.messages import encode

EVERY_KIND: list[pg.PgOutput] = [
    pg.Begin(0x16B3748, 820_454_400_000_000, 733),
    pg.Commit(0x16B3748, 0x16B3778, 820_454_400_000_000),
    pg.Origin(0x16B3000, "upstream"),
    pg.Relation(
        16_385,
        "My Schema",
        "täble",
        "d",
        (pg.RelationColumn("id", 23, -1, True), pg.RelationColumn('a "b"', 1700, 786_438, False)),
    ),
    pg.Relation(1259, "pg_catalog", "pg_class", "n", ()),
    pg.Type(16_390, "public", "mood"),
    pg.Insert(16_385, (b"1", pg.NULL, b"", pg.UNCHANGED, pg.Binary(b"\0\1"))),
    pg.Insert(16_385, ()),
    pg.Update(16_385, (b"1", pg.UNCHANGED)),
    pg.Update(16_385, (b"2", b"x"), key=(b"1", pg.NULL)),
    pg.Update(16_385, (b"2", b"x"), old=(b"1", b"y")),
    pg.Delete(16_385, key=(b"1", pg.NULL)),
    pg.Delete(16_385, old=(b"1", b"y")),
    pg.Truncate((16_385, 16_386), cascade=True, restart_identity=False),
    pg.Truncate((), cascade=False, restart_identity=True),
    pg.Truncate((16_385,), cascade=True, restart_identity=True),
    pg.Message(True, 0x16B3748, "audit", b"\0any\xffbytes"),
    pg.Message(False, 0x16B3748, "", b""),
    pg.StreamAbort(733, 734),
]
NAMES = [f"{number}-{type(message).__name__}" for number, message in enumerate(EVERY_KIND)]
every_kind = pytest.mark.parametrize("message", EVERY_KIND, ids=NAMES)


@every_kind
def test_a_whole_message_is_read_back(message: pg.PgOutput) -> None:
    assert pg.decode(encode(message)) == message


@every_kind
def test_a_message_cut_at_any_byte_is_refused(message: pg.PgOutput) -> None:
    frame = encode(message)
    for end in range(len(frame)):
        with pytest.raises(ProtocolError):
            pg.decode(frame[:end])


@every_kind
@pytest.mark.parametrize("garbage", [b"\0", b"t", b"\xff" * 9])
def test_a_message_with_garbage_behind_is_refused(message: pg.PgOutput, garbage: bytes) -> None:
    with pytest.raises(ProtocolError):
        pg.decode(encode(message) + garbage)


@given(messages.messages)
def test_any_message_is_read_back(message: pg.PgOutput) -> None:
    assert pg.decode(encode(message)) == message


@given(st.binary(max_size=80))
def test_random_bytes_give_a_message_or_a_protocol_error(data: bytes) -> None:
    try:
        message = pg.decode(data)
    except ProtocolError:
        return
    if not isinstance(message, pg.StreamAbort):  # its optional LSN and time are not kept
        assert pg.decode(encode(message)) == message


@given(messages.messages, st.data())
@settings(max_examples=300)
def test_one_flipped_byte_gives_a_message_or_a_protocol_error(
    message: pg.PgOutput, data: st.DataObject
) -> None:
    frame = bytearray(encode(message))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] = data.draw(st.integers(0, 255))
    with suppress(ProtocolError):
        pg.decode(bytes(frame))


def test_an_unknown_tag_is_refused() -> None:
    for tag in set(range(256)) - set(b"BCORYIUDTMA"):
        with pytest.raises(ProtocolError, match="unknown tag"):
            pg.decode(bytes([tag]) + b"\0" * 40)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"I" + struct.pack(">I", 1) + b"K\0\0", id="insert without a new row"),
        pytest.param(b"D" + struct.pack(">I", 1) + b"N\0\0", id="delete with a new row"),
        pytest.param(b"I" + struct.pack(">I", 1) + b"N\0\1x", id="unknown cell tag"),
        pytest.param(
            b"I" + struct.pack(">I", 1) + b"N\0\1t\xff\xff\xff\xff", id="cell longer than the message"
        ),
        pytest.param(b"D" + struct.pack(">I", 1) + b"O\0\1u", id="unchanged cell in an old row"),
        pytest.param(b"U" + struct.pack(">I", 1) + b"K\0\1nN\0\2nn", id="rows of two lengths"),
        pytest.param(b"T" + struct.pack(">IB", 2**32 - 1, 0), id="four billion relations"),
        pytest.param(b"T" + struct.pack(">IBI", 1, 4, 1), id="unknown truncate option"),
        pytest.param(b"C\1" + b"\0" * 24, id="commit flags"),
        pytest.param(b"M\2" + b"\0" * 13, id="message flags"),
        pytest.param(b"R" + struct.pack(">I", 1) + b"s\0t\0x\0\0", id="unknown replica identity"),
        pytest.param(b"R" + struct.pack(">I", 1) + b"\xff\0t\0d\0\0", id="name that is not UTF-8"),
        pytest.param(b"R" + struct.pack(">I", 1) + b"s\0\0d\0\0", id="relation without a name"),
        pytest.param(
            b"R" + struct.pack(">I", 1) + b"s\0t\0d\0\1\0\0" + b"\0" * 8, id="column without a name"
        ),
        pytest.param(
            b"R" + struct.pack(">I", 1) + b"s\0t\0d\0\1\2c\0" + b"\0" * 8, id="unknown column flags"
        ),
    ],
)
def test_nonsense_inside_a_message_is_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        pg.decode(frame)


def test_an_error_says_where() -> None:
    with pytest.raises(ProtocolError, match=r"pgoutput message b'B': 8 bytes expected at byte 9 of 12"):
        pg.decode(encode(EVERY_KIND[0])[:12])


def test_a_stream_abort_of_the_parallel_kind_is_read() -> None:
    assert pg.decode(encode(pg.StreamAbort(1, 2)) + b"\0" * 16) == pg.StreamAbort(1, 2)
