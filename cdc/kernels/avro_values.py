"""The kernel that reads records in Avro: where each wanted value lies, and of what kind it is. No Python objects.

``read_records`` goes over one record after the other, led by the types of their schema:

    a value      of a union: its branch first.   A record, array or map: one level deeper.   Anything else is read.
    what follows the next member, item or pair is a value.   When there is none: one level up.

What is wanted becomes what ``find_spans`` notes of JSON texts: strings lie in the records themselves, everything else
is written behind them. Arrays, maps and records that are wanted as a whole become JSON texts. A record that does not
have what its schema says gets a status and the place of the problem; the others do not notice.

Every value but null has a byte, so counts cannot make loops that are longer than a record; and what is written of one
is bounded by its size. Floating point numbers are left to the caller, with room for their texts.
"""

from __future__ import annotations

from typing import NamedTuple

from tailrace.cdc.kernels.avro_scalars import (
    FLOAT_ROOM,
    FLOATS,
    K_ARRAY,
    K_MAP,
    K_NULL,
    K_RECORD,
    NEXT,
    TO,
    Floats,
    Program,
    scalar,
)
from tailrace.cdc.kernels.avro_text import (
    BRANCH,
    FULL,
    LARGE,
    LONG_NUMBER,
    checked_text,
    number,
    put_byte,
    put_bytes,
    put_quoted,
    sized,
)
from tailrace.cdc.kernels.json_spans import Spans, Verdicts
from tailrace.cdc.kernels.json_text import (
    ARRAY,
    CUT,
    NINE,
    NULL,
    NUMBER,
    OBJECT,
    OK,
    QUOTE,
    STRING,
    TRAILING,
)
from tailrace.cdc.kernels.rows import Bytes, Ints, Ints32
from tailrace.eventstore.compiled.compiler import kernel, part

DONE, MORE_TEXT, MORE_FLOATS = range(3)
HEADER = 5  # a zero and the number of the schema, in four bytes
_GROWTH, _SPARE = 16, 1024  # what is written of a record: so many times its size, and so much

# Which branch of a union is null (``decoding.avro.schema``).
_NO_UNION, _FIRST, _LAST, _ALONE = range(4)
_COMMA, _COLON, _OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = (ord(sign) for sign in ",:{}[]")
_SPACE = ord(" ")


class Levels(NamedTuple):
    """The open records, arrays and maps: their type; the number of the next member, or how many items are left in a
    block; whether something was written."""

    node: Ints32
    left: Ints32
    filled: Ints32


@part
def _record(
    data: Bytes,
    at: int,
    end: int,
    record: int,
    records: int,
    base: int,
    program: Program,
    levels: Levels,
    spans: Spans,
    out: Bytes,
    to: int,
    limit: int,
    floats: Floats,
    state: Ints,
) -> tuple[int, int, int]:
    """One record: (status, place of the problem, where the next text is written). ``base``: where texts begin."""
    depth, node, text_depth, text_cell = 0, 0, -1, -1
    while True:
        kind, union, text = program.kind[node], program.union[node], text_depth >= 0
        cell = -1 if text or program.slot[node] < 0 else program.slot[node] * records + record
        if union != _NO_UNION:
            status, at, branch = number(data, at, end, 64)
            if status != OK:
                return status, at, to
            if not 0 <= branch < (1 if union == _ALONE else 2):
                return BRANCH, at, to
            if (union == _FIRST and branch == 0) or (union == _LAST and branch == 1):
                kind = K_NULL
        if kind == K_NULL:
            if text:
                to = put_bytes(out, to, limit, out, 9, 4)
            elif cell >= 0:
                spans.at[cell], spans.size[cell], spans.kind[cell] = base + 9, 4, NULL
        elif kind >= K_ARRAY:
            if cell >= 0:
                spans.at[cell], spans.size[cell] = base + to, 0
                spans.kind[cell] = ARRAY if kind == K_ARRAY else OBJECT
                if not program.looked[node]:
                    text, text_depth, text_cell = True, depth, cell
            if text:
                to = put_byte(out, to, limit, _OPEN_LIST if kind == K_ARRAY else _OPEN)
            levels.node[depth], levels.left[depth], levels.filled[depth] = node, 0, 0
            depth += 1
        else:
            status, at, to = scalar(
                data, at, end, node, cell, text, base, program, spans, out, to, limit, floats, state
            )
            if status != OK:
                return status, at, to
        while True:
            if to < 0:
                return FULL, at, to
            if not depth:
                return (OK if at == end else TRAILING), at, to
            level = depth - 1
            inside, left = levels.node[level], levels.left[level]
            kind = program.kind[inside]
            if kind == K_RECORD:
                more = left < program.total[inside]
                node, left = program.first[inside] + left, left + 1
            else:
                if not left:
                    status, at, items = number(data, at, end, 64)
                    if status == OK and items < 0:  # so many, and then how many bytes they have
                        items = -items
                        status, at, _ = number(data, at, end, 64)
                    if status == OK and items < 0:
                        status = LONG_NUMBER
                    if status == OK and items > end - at:
                        status = CUT
                    if status != OK:
                        return status, at, to
                    left = items
                more = left > 0
                node, left = program.first[inside], left - 1
            if not more:
                depth = level
                if text_depth >= 0:
                    to = put_byte(out, to, limit, _CLOSE_LIST if kind == K_ARRAY else _CLOSE)
                    if text_depth == depth:
                        spans.size[text_cell] = base + to - spans.at[text_cell]
                        text_depth = -1
                continue
            levels.left[level] = left
            text = text_depth >= 0
            if text:
                if levels.filled[level]:
                    to = put_byte(out, to, limit, _COMMA)
                levels.filled[level] = 1
                if kind == K_RECORD:
                    to = put_bytes(
                        out, to, limit, program.names, program.name_at[node], program.name_size[node]
                    )
            if kind == K_MAP:
                status, at, size = sized(data, at, end)
                if status == OK and text:
                    status = checked_text(data, at, at + size)
                if status != OK:
                    return status, at, to
                if text:
                    to = put_quoted(out, to, limit, data, at, size)
                    to = put_byte(out, to, limit, _COLON)
                at += size
            if to < 0:
                return FULL, at, to
            break


@kernel
def read_records(
    data: Bytes,
    rows: Ints,
    begins: Ints32,
    ends: Ints32,
    base: int,
    program: Program,
    levels: Levels,
    spans: Spans,
    verdicts: Verdicts,
    out: Bytes,
    floats: Floats,
    state: Ints,
) -> int:
    """The records ``rows``, which have one schema, and at least HEADER bytes. Texts are written to ``out``, which
    begins with LITERALS; ``base`` is its place behind ``data``. Returns DONE, or what more room is needed for, to be
    called again. Of a record that is not OK the spans mean nothing."""
    for turn in range(state[NEXT], len(rows)):
        record = rows[turn]
        at, end = begins[record] + HEADER, ends[record]
        begin, noted = state[TO], state[FLOATS]
        room = begin + _GROWTH * (end - at) + _SPARE
        status, place, to = _record(
            data,
            at,
            end,
            record,
            len(begins),
            base,
            program,
            levels,
            spans,
            out,
            begin,
            min(room, len(out)),
            floats,
            state,
        )
        lacks_floats = state[FLOATS] >= len(floats.bits)
        if status == FULL and (lacks_floats or room > len(out)):
            state[NEXT], state[FLOATS] = turn, noted
            return MORE_FLOATS if lacks_floats else MORE_TEXT
        if status == OK:
            state[TO] = to
        else:
            state[FLOATS] = noted
        verdicts.status[record] = LARGE if status == FULL else status
        verdicts.place[record] = place
    state[NEXT] = len(rows)
    return DONE


@kernel
def write_floats(texts: Bytes, offsets: Ints32, floats: Floats, out: Bytes, spans: Spans) -> None:
    """The texts of floating point numbers, which lie as in an Arrow string array, in their places; spaces behind."""
    for each in range(len(offsets) - 1):
        begin, end = offsets[each], offsets[each + 1]
        to, cell, is_word = floats.place[each], floats.cell[each], texts[end - 1] > NINE
        if cell >= 0:
            spans.size[cell], spans.kind[cell] = end - begin, STRING if is_word else NUMBER
        behind = to + FLOAT_ROOM
        if is_word and cell < 0:
            out[to] = QUOTE
            to += 1
        for place in range(begin, end):
            out[to] = texts[place]
            to += 1
        if is_word and cell < 0:
            out[to] = QUOTE
            to += 1
        while to < behind:
            out[to] = _SPACE
            to += 1
