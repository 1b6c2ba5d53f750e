"""Binary values are found in their messages and become the text that the server prints; what is damaged is refused."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from tailrace.cdc.wire import pgoutput as pg
from tailrace.cdc.wire.binary import PLAIN, BinaryCell, binary_cells, parse_copy_row, replace_cells
from tailrace.eventstore.errors import ProtocolError
from tests.cdc.messages import encode

HEADER = b"w" + bytes(24)
U = UUID("00112233-4455-6677-8899-aabbccddeeff")


def array(layout: str, *numbers: int) -> bytes:
    """As int2vector and oidvector are sent: dimensions, nulls, type, length and lower bound, then the elements."""
    cells = b"".join(struct.pack(">i" + layout, struct.calcsize(">" + layout), number) for number in numbers)
    return struct.pack(">iiIii", 1, 0, 21, len(numbers), 0) + cells


VALUES = [
    (16, b"\1", b"t"), (16, b"\0", b"f"), (17, b"\0\xff", rb"\x00ff"), (19, b"name", b"name"),
    (20, struct.pack(">q", -(2**63)), b"-9223372036854775808"), (21, struct.pack(">h", -2), b"-2"),
    (23, struct.pack(">i", -3), b"-3"), (26, struct.pack(">I", 2**32 - 1), b"4294967295"),
    (2950, U.bytes, str(U).encode()), (3802, b'\1{"a": 1}', b'{"a": 1}'), (25, b"", b""),
    (22, array("h", 1, -2, 3), b"1 -2 3"), (30, array("I", 4_000_000_000), b"4000000000"),
    (22, struct.pack(">iiI", 0, 0, 21), b""),
]  # fmt: skip


@pytest.mark.parametrize(("oid", "sent", "printed"), VALUES)
def test_a_value_has_the_text_that_the_server_prints(oid: int, sent: bytes, printed: bytes) -> None:
    assert bytes(PLAIN[oid](memoryview(sent))) == printed


@pytest.mark.parametrize(
    ("oid", "sent"),
    [
        (16, b""), (20, bytes(7)), (21, bytes(3)), (23, b""), (26, bytes(5)), (2950, bytes(15)), (2950, bytes(17)),
        (3802, b""), (3802, b"\2{}"), (3802, b"\0{}"), (22, b"\0\0\0"), (22, array("h", 1)[:-1]),
        (22, array("h", 1) + bytes(3)), (22, array("q", 1)),
    ],
)  # fmt: skip
def test_what_its_type_does_not_send_is_refused(oid: int, sent: bytes) -> None:
    with pytest.raises(ProtocolError, match="not what its type sends"):
        PLAIN[oid](memoryview(sent))


B = pg.Binary
ROWS: list[tuple[pg.PgOutput, list[tuple[int, bytes]]]] = [
    (pg.Insert(7, (b"1", B(b"xy"), pg.NULL, B(b""))), [(1, b"xy"), (3, b"")]),
    (pg.Insert(7, ()), []),
    (pg.Update(7, (B(b"a"), pg.UNCHANGED)), [(0, b"a")]),
    (pg.Update(7, (b"1", B(b"new")), key=(B(b"old"), pg.NULL)), [(0, b"old"), (1, b"new")]),
    (pg.Update(7, (b"1", B(b"new")), old=(b"1", B(b"old"))), [(1, b"old"), (1, b"new")]),
    (pg.Delete(7, key=(B(b"k"), pg.NULL)), [(0, b"k")]),
    (pg.Delete(7, old=(b"1", B(b"o"))), [(1, b"o")]),
]
rows = pytest.mark.parametrize(("message", "found"), ROWS)


@rows
def test_binary_cells_of_a_row_change_are_found_and_replaced(
    message: pg.Insert | pg.Update | pg.Delete, found: list[tuple[int, bytes]]
) -> None:
    frame = HEADER + encode(message)
    cells = binary_cells(frame)
    assert [(cell.relid, cell.column, frame[cell.start : cell.end]) for cell in cells] == [
        (7, column, data) for column, data in found
    ]

    def as_text(row: pg.Tuple | None) -> pg.Tuple | None:
        return row and tuple(cell.data.upper() + b"!" if isinstance(cell, B) else cell for cell in row)

    parts = [name for name in ("new", "key", "old") if hasattr(message, name)]
    printed: Any = {name: as_text(getattr(message, name)) for name in parts}
    texts = [data.upper() + b"!" for _, data in found]
    assert replace_cells(frame, cells, texts) == HEADER + encode(replace(message, **printed))


@rows
def test_a_row_change_that_is_cut_short_or_goes_on_is_refused(
    message: pg.PgOutput, found: list[tuple[int, bytes]]
) -> None:
    frame = HEADER + encode(message)
    for end in range(len(HEADER) + 1, len(frame)):
        with pytest.raises(ProtocolError):
            binary_cells(frame[:end])
    with pytest.raises(ProtocolError, match="does not end with its cells"):
        binary_cells(frame + b"\0")


def test_other_frames_have_no_binary_cells_and_a_cell_of_no_kind_is_refused() -> None:
    for frame in (b"", HEADER, HEADER + encode(pg.Begin(1, 2, 3)), b"k" + bytes(17)):
        assert binary_cells(frame) == []
    with pytest.raises(ProtocolError, match="unknown cell tag 120"):
        binary_cells(HEADER + encode(pg.Insert(7, (pg.NULL,)))[:-1] + b"x")
    assert replace_cells(b"ab", [], []) == b"ab"
    assert BinaryCell(1, 2, 3, 4) == BinaryCell(1, 2, 3, 4)


COPY = b"PGCOPY\n\xff\r\n\0" + bytes(8)


def copied(*cells: bytes | None) -> bytes:
    parts = [struct.pack(">i", -1) if each is None else struct.pack(">i", len(each)) + each for each in cells]
    return struct.pack(">H", len(cells)) + b"".join(parts)


@pytest.mark.parametrize("head", [b"", COPY])
def test_a_row_of_copy_is_read_with_or_without_the_header(head: bytes) -> None:
    cells = (b"1", None, b"", b"\xff\xff")
    assert parse_copy_row(head + copied(*cells), 4) == [*cells]
    assert parse_copy_row(head + b"\xff\xff", 4) is None


@pytest.mark.parametrize("head", [b"", COPY])
def test_a_row_of_copy_that_is_cut_short_or_has_other_cells_is_refused(head: bytes) -> None:
    row = head + copied(b"1", None, b"")
    for end in range(len(head), len(row)):
        with pytest.raises(ProtocolError):
            parse_copy_row(row[:end], 3)
    for damaged, columns in ((row, 2), (row, 4), (row + b"\0", 3)):
        with pytest.raises(ProtocolError, match="other cells than were asked for"):
            parse_copy_row(damaged, columns)
