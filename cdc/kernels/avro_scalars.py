"""Parts of the kernel over records in Avro: the types of a schema, and the values that hold nothing else."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.cdc.kernels.avro_text import (
    BRANCH,
    FULL,
    NO_ROOM,
    TRUTH,
    checked_text,
    number,
    put_base64,
    put_byte,
    put_bytes,
    put_number,
    put_quoted,
    sized,
)
from tailrace.cdc.kernels.json_spans import Spans
from tailrace.cdc.kernels.json_text import CUT, FALSE, NUMBER, OK, QUOTE, STRING, TRUE
from tailrace.cdc.kernels.rows import Bytes, Ints, Ints32
from tailrace.eventstore.compiled.compiler import part

LITERALS = b"truefalsenull"
"""What the room for texts begins with."""
FLOAT_ROOM = 26  # of the text of a floating point number, with quotes

# Kinds of types (``decoding.avro.schema``).
K_NULL, K_BOOLEAN, K_INT, K_LONG, K_FLOAT, K_DOUBLE, K_BYTES, K_STRING, K_ENUM, K_ARRAY, K_MAP, K_RECORD = (
    range(12)
)

# Places in ``state``: the next record, where the next text is written, how many floating point numbers were read.
NEXT, TO, FLOATS = range(3)


class Program(NamedTuple):
    """A schema as a tree, the root first, members of a type behind each other. By type: kind; which branch is null;
    where its value is noted (-1: nowhere); whether it is looked into; its first member or symbol, and how many it has;
    and its own name as a member, as JSON has it. By symbol its place and size in ``names``."""

    kind: Bytes
    union: Bytes
    slot: Ints32
    looked: Bytes
    first: Ints32
    total: Ints32
    name_at: Ints32
    name_size: Ints32
    symbol_at: Ints32
    symbol_size: Ints32
    names: Bytes


class Floats(NamedTuple):
    """Floating point numbers: their bits; whether there are 32; where their text goes; their cell (-1: in a text)."""

    bits: Ints
    single: Bytes
    place: Ints32
    cell: Ints32


@part
def _float(data: Bytes, at: int, size: int, to: int, cell: int, floats: Floats, state: Ints) -> bool:
    """Whether there was room to note it."""
    count = state[FLOATS]
    if count >= len(floats.bits):
        return False
    bits = 0
    for place in range(size):
        bits |= int(data[at + place]) << (8 * place)
    floats.bits[count], floats.single[count] = bits, size == 4
    floats.place[count], floats.cell[count] = to, cell
    state[FLOATS] = count + 1
    return True


@part
def scalar(
    data: Bytes,
    at: int,
    end: int,
    node: int,
    cell: int,
    text: bool,
    base: int,
    program: Program,
    spans: Spans,
    out: Bytes,
    to: int,
    limit: int,
    floats: Floats,
    state: Ints,
) -> tuple[int, int, int]:
    """What holds nothing else: (status, its end, where the next text is written). It is noted in a cell, or written
    inside of a ``text``, or neither."""
    kind, begin = program.kind[node], to
    noted, place, size = STRING, base + to, -1
    if kind == K_BOOLEAN:
        if at >= end:
            return CUT, at, to
        byte = int(data[at])
        if byte > 1:
            return TRUTH, at, to
        at += 1
        noted, place, size = (TRUE, base, 4) if byte else (FALSE, base + 4, 5)
        if text:
            to = put_bytes(out, to, limit, out, place - base, size)
    elif kind in (K_FLOAT, K_DOUBLE):
        size = 4 if kind == K_FLOAT else 8
        if end - at < size:
            return CUT, at, to
        if text or cell >= 0:
            if limit - to < FLOAT_ROOM or not _float(data, at, size, to, cell, floats, state):
                return FULL, at, NO_ROOM
            to += FLOAT_ROOM
        at, noted = at + size, NUMBER
    elif kind in (K_BYTES, K_STRING):
        status, at, size = sized(data, at, end)
        if status != OK:
            return status, at, to
        if kind == K_STRING and (text or cell >= 0):
            status = checked_text(data, at, at + size)
            if status != OK:
                return status, at, to
            if text:
                to = put_quoted(out, to, limit, data, at, size)
            place = at
        elif text or cell >= 0:
            if text:
                to = put_byte(out, to, limit, QUOTE)
            to = put_base64(out, to, limit, data, at, size)
            if text:
                to = put_byte(out, to, limit, QUOTE)
        at += size
        size = size if kind == K_STRING else to - begin
    else:
        status, at, value = number(data, at, end, 64 if kind == K_LONG else 32)
        if status != OK:
            return status, at, to
        if kind == K_ENUM:
            if not 0 <= value < program.total[node]:
                return BRANCH, at, to
            symbol = program.first[node] + value
            where, length = program.symbol_at[symbol], program.symbol_size[symbol]
            if text:
                to = put_quoted(out, to, limit, program.names, where, length)
            elif cell >= 0:
                to = put_bytes(out, to, limit, program.names, where, length)
        elif text or cell >= 0:
            to, noted = put_number(out, to, limit, value), NUMBER
        size = to - begin
    if cell >= 0:
        spans.at[cell], spans.size[cell], spans.kind[cell] = place, size, noted
    return (OK if to >= 0 else FULL), at, to
