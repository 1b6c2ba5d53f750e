"""The grammar of JSON texts (RFC 8259) in parts for kernels, and the texts of values that were found in one.

Arrays are accessed without bounds checks, so every position is compared with the end of the text first. That bytes are
UTF-8 is not checked here.
"""

from __future__ import annotations

import numpy as np

from tailrace.cdc.kernels.rows import Bytes, Ints32
from tailrace.eventstore.compiled.compiler import kernel, part
from tailrace.eventstore.compiled.memory import copy_bytes

# Kinds of values. ESCAPED: a string with a backslash in it.
MISSING, NULL, FALSE, TRUE, NUMBER, STRING, ESCAPED, OBJECT, ARRAY = range(9)

# What is wrong with a text. ABSENT: there is none.
OK, ABSENT, CUT, SYNTAX, CONTROL, ESCAPE, SURROGATE, NUL, DEEP, TWICE, TRAILING, NO_OBJECT = range(12)

QUOTE, BACKSLASH, MINUS, ZERO, NINE = (ord(sign) for sign in '"\\-09')
_PLUS, _DOT, _U, _E, _BIG_E, _COMMA = (ord(sign) for sign in "+.ueE,")
_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = (ord(sign) for sign in "{}[]")
_SIMPLE = 1  # bytes of a string that mean themselves
_ESCAPED_SIGNS = 256
SIGNS: Bytes = np.zeros(512, np.uint8)
"""For the kernels: which bytes are plain ones of a string; and behind, what the letter of an escape stands for."""
SIGNS[0x20:256] = _SIMPLE
SIGNS[[QUOTE, BACKSLASH]] = 0
for _letter, _sign in zip('"\\/bfnrt', '"\\/\b\f\n\r\t', strict=True):
    SIGNS[_ESCAPED_SIGNS + ord(_letter)] = ord(_sign)


@part
def skip_space(data: Bytes, at: int, end: int) -> int:
    while at < end and (data[at] == 0x20 or data[at] == 0x0A or data[at] == 0x0D or data[at] == 0x09):
        at += 1
    return at


@part
def _hex(data: Bytes, at: int, end: int) -> int:
    """The number of four hexadecimal digits, -1 when there are none."""
    if end - at < 4:
        return -1
    number = 0
    for place in range(4):
        byte = int(data[at + place])
        if 0x30 <= byte <= 0x39:
            digit = byte - 0x30
        elif 0x41 <= byte <= 0x46 or 0x61 <= byte <= 0x66:
            digit = (byte & 0xDF) - 0x37
        else:
            return -1
        number = number << 4 | digit
    return number


@part
def escape(data: Bytes, signs: Bytes, at: int, end: int) -> tuple[int, int, int]:
    """The escape whose backslash is at ``at``: (status, its end, code point)."""
    if end - at < 2:
        return CUT, at, 0
    letter = data[at + 1]
    if letter != _U:
        sign = int(signs[_ESCAPED_SIGNS + letter])
        return (OK if sign else ESCAPE), at + 2, sign
    code = _hex(data, at + 2, end)
    if code < 0:
        return ESCAPE, at, 0
    if code == 0:
        return NUL, at, 0
    if 0xD800 <= code < 0xE000:
        low = -1
        if code < 0xDC00 and end - at >= 12 and data[at + 6] == BACKSLASH and data[at + 7] == _U:
            low = _hex(data, at + 8, end)
        if not 0xDC00 <= low < 0xE000:
            return SURROGATE, at, 0
        return OK, at + 12, 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
    return OK, at + 6, code


@part
def string(data: Bytes, signs: Bytes, at: int, end: int) -> tuple[int, int, int]:
    """A string from behind its quote on: (status, where its closing quote or the problem is, STRING or ESCAPED)."""
    kind = STRING
    while True:
        while at < end and signs[data[at]] == _SIMPLE:
            at += 1
        if at >= end:
            return CUT, at, kind
        if data[at] == QUOTE:
            return OK, at, kind
        if data[at] != BACKSLASH:
            return CONTROL, at, kind
        kind = ESCAPED
        status, behind, _ = escape(data, signs, at, end)
        if status != OK:
            return status, at, kind
        at = behind


@part
def _digits(data: Bytes, at: int, end: int) -> int:
    while at < end and ZERO <= data[at] <= NINE:
        at += 1
    return at


@part
def number(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """(Status, end) of a number, as RFC 8259 has them."""
    if data[at] == MINUS:
        at += 1
    begin = at
    at = _digits(data, at, end)
    if at == begin or (at - begin > 1 and data[begin] == ZERO):
        return SYNTAX, at
    if at < end and data[at] == _DOT:
        begin = at + 1
        at = _digits(data, begin, end)
        if at == begin:
            return SYNTAX, at
    if at < end and (data[at] == _E or data[at] == _BIG_E):
        at += 1
        if at < end and (data[at] == _PLUS or data[at] == MINUS):
            at += 1
        begin = at
        at = _digits(data, begin, end)
        if at == begin:
            return SYNTAX, at
    return OK, at


@part
def literal(data: Bytes, at: int, end: int) -> tuple[int, int, int]:
    """(Status, end, kind) of what is neither string, number, object nor array."""
    if end - at >= 4:
        word = int(data[at]) << 24 | int(data[at + 1]) << 16 | int(data[at + 2]) << 8 | int(data[at + 3])
        if word == 0x6E756C6C:
            return OK, at + 4, NULL
        if word == 0x74727565:
            return OK, at + 4, TRUE
        if word == 0x66616C73 and end - at >= 5 and data[at + 4] == _E:
            return OK, at + 5, FALSE
    return SYNTAX, at, NULL


@part
def utf8(code: int) -> tuple[int, int]:
    """How many bytes a code point has, and those in one number, the first on top."""
    if code < 0x80:
        return 1, code
    if code < 0x800:
        return 2, (0xC0 | code >> 6) << 8 | (0x80 | code & 0x3F)
    low = (0x80 | code >> 6 & 0x3F) << 8 | (0x80 | code & 0x3F)
    if code < 0x10000:
        return 3, (0xE0 | code >> 12) << 16 | low
    return 4, (0xF0 | code >> 18) << 24 | (0x80 | code >> 12 & 0x3F) << 16 | low


@kernel
def measure(
    data: Bytes, signs: Bytes, at: Ints32, size: Ints32, kind: Bytes, offsets: Ints32, valid: Bytes
) -> int:
    """Offsets and validity bits of values as texts, as an Arrow binary array has them (one offset more than values,
    bits all zero before). A null, and what is missing, is NULL. Returns how many are NULL. Values are those that
    ``find_spans`` noted in records that are OK."""
    total, nulls = 0, 0
    for value in range(len(at)):
        offsets[value] = total
        if kind[value] <= NULL:
            nulls += 1
            continue
        valid[value >> 3] |= np.uint8(1 << (value & 7))
        if kind[value] != ESCAPED:
            total += size[value]
            continue
        place, end = at[value], at[value] + size[value]
        while place < end:
            if data[place] == BACKSLASH:
                _, behind, code = escape(data, signs, place, end)
                count, _ = utf8(code)
                total += count
                place = behind
            else:
                total += 1
                place += 1
    offsets[len(at)] = total
    return nulls


@kernel
def write(data: Bytes, signs: Bytes, at: Ints32, size: Ints32, kind: Bytes, out: Bytes) -> None:
    """The bytes of the values that ``measure`` measured, one behind the other."""
    to = 0
    for value in range(len(at)):
        if kind[value] <= NULL:
            continue
        place, end = at[value], at[value] + size[value]
        if kind[value] != ESCAPED:
            spare = min(len(data) - place, len(out) - to)
            copy_bytes(out.ctypes.data + to, data.ctypes.data + place, size[value], spare)
            to += size[value]
            continue
        while place < end:
            if data[place] == BACKSLASH:
                _, behind, code = escape(data, signs, place, end)
                count, word = utf8(code)
                for byte in range(count):
                    out[to + byte] = (word >> (8 * (count - 1 - byte))) & 0xFF
                to += count
                place = behind
            else:
                out[to] = data[place]
                to += 1
                place += 1


@part
def _nested(data: Bytes, signs: Bytes, at: int, end: int) -> int:
    """The end of an object or array that is known to be well formed."""
    depth = 0
    while at < end:
        byte = data[at]
        if byte == QUOTE:
            _, at, _ = string(data, signs, at + 1, end)
        elif byte in (_OPEN, _OPEN_LIST):
            depth += 1
        elif byte in (_CLOSE, _CLOSE_LIST):
            depth -= 1
        at += 1
        if not depth:
            return at
    return end


@kernel
def find_items(
    data: Bytes, signs: Bytes, offsets: Ints32, lengths: Ints32, at: Ints32, size: Ints32, kind: Bytes
) -> int:
    """The elements of arrays, whose texts lie as in an Arrow binary array and are known to be well formed: how many
    each has (-1: it is no array) and, where there is room, places, sizes and kinds of all. Returns how many there
    are."""
    items = 0
    for row in range(len(lengths)):
        place, end = offsets[row], offsets[row + 1]
        lengths[row] = -1
        if place == end or data[place] != _OPEN_LIST:
            continue
        first = items
        place = skip_space(data, place + 1, end)
        while place < end and data[place] != _CLOSE_LIST:
            begin, of_kind, byte = place, NUMBER, data[place]
            if byte == QUOTE:
                begin = place + 1
                _, behind, of_kind = string(data, signs, begin, end)
                place = behind + 1
            elif byte in (_OPEN, _OPEN_LIST):
                of_kind = OBJECT if byte == _OPEN else ARRAY
                place = behind = _nested(data, signs, place, end)
            elif byte == MINUS or ZERO <= byte <= NINE:
                _, behind = number(data, place, end)
                place = behind
            else:
                _, behind, of_kind = literal(data, place, end)
                place = behind
            if items < len(at):
                at[items], size[items], kind[items] = begin, behind - begin, of_kind
            items += 1
            place = skip_space(data, place, end)
            if place < end and data[place] == _COMMA:
                place = skip_space(data, place + 1, end)
            elif place < end and data[place] != _CLOSE_LIST:
                break  # not well formed, though it was said to be
        lengths[row] = items - first
    return items
