"""Fields of a message are read in network byte order, each within its bounds, or the error says where."""

from __future__ import annotations

import struct

import pytest

from tailrace.cdc.wire.buffer import FieldReader
from tailrace.eventstore.errors import ProtocolError


def test_fields_are_read_one_behind_the_other() -> None:
    numbers = (255, 65_535, -1, 2**32 - 1, -2, 2**64 - 1)
    reader = FieldReader(struct.pack(">BHiIqQ", *numbers) + "ü\0\0rest".encode())
    assert reader.offset == 0 and reader.left == 27 + 8
    read = (reader.byte, reader.uint16, reader.int32, reader.uint32, reader.int64, reader.uint64)
    assert tuple(field() for field in read) == numbers
    assert (reader.offset, reader.string(), reader.string(), reader.take(0)) == (27, "ü", "", b"")
    assert (reader.left, reader.take(4), reader.left) == (4, b"rest", 0)
    reader.finish()
    assert FieldReader(b"\0").string() == ""


@pytest.mark.parametrize(
    ("name", "size"), [("byte", 1), ("uint16", 2), ("int32", 4), ("uint32", 4), ("int64", 8), ("uint64", 8)]
)
def test_a_field_that_is_cut_short_is_refused_and_nothing_of_it_is_read(name: str, size: int) -> None:
    reader = FieldReader(b"k" + bytes(size - 1), "frame")
    reader.take(1)
    with pytest.raises(ProtocolError, match=f"^frame b'k': {size} bytes expected at byte 1 of {size}\n"):
        getattr(reader, name)()
    assert reader.offset == 1


def test_what_cannot_be_read_says_where() -> None:
    reader = FieldReader(b"ab\xff\0c")
    for count in (-1, 6):
        with pytest.raises(ProtocolError, match=rf"message b'a': {count} bytes expected at byte 0 of 5"):
            reader.take(count)
    with pytest.raises(ProtocolError, match="a name is not UTF-8 at byte 0"):
        reader.string()
    reader.take(4)
    with pytest.raises(ProtocolError, match="a string has no end at byte 4"):
        reader.string()
    with pytest.raises(ProtocolError, match="bytes behind the end of the message at byte 4 of 5"):
        reader.finish()
