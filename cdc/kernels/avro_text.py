"""Avro's binary encoding in parts for kernels, and the JSON texts of its values.

Arrays are accessed without bounds checks, so every position is compared with the end of the record first, and all that
is written with the room there is: a part that writes returns where it ended, NO_ROOM when it would not fit.
"""

from __future__ import annotations

import numpy as np

from tailrace.cdc.kernels.json_text import BACKSLASH, CUT, NUL, OK, QUOTE
from tailrace.cdc.kernels.rows import Bytes
from tailrace.eventstore.compiled.compiler import part
from tailrace.eventstore.compiled.memory import copy_bytes

# What is wrong with a record, beside CUT, NUL and TRAILING of JSON texts. FULL is nothing wrong: more room is needed.
LONG_NUMBER, BRANCH, TRUTH, NOT_UTF8, LARGE, REFUSED, FULL = range(32, 39)
NO_ROOM = -1
_DIGITS_MAX = 20  # of 64 bits, with the sign
_MINUS, _ZERO, _U, _EQUALS, _PLUS, _SLASH = (ord(sign) for sign in "-0u=+/")
_HEX_LETTER = ord("a") - 10
_ALL = 0x7FFFFFFFFFFFFFFF


@part
def number(data: Bytes, at: int, end: int, bits: int) -> tuple[int, int, int]:
    """(Status, end, value) of a number of 32 or 64 bits: seven bits a byte, the lowest first, the sign the lowest."""
    raw, shift = 0, 0
    while True:
        if at >= end:
            return CUT, at, 0
        byte = int(data[at])
        at += 1
        if shift == 63 and byte > 1:
            return LONG_NUMBER, at, 0
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            return LONG_NUMBER, at, 0
    value = (raw >> 1 & _ALL) ^ -(raw & 1)
    if bits == 32 and not -0x80000000 <= value <= 0x7FFFFFFF:
        return LONG_NUMBER, at, 0
    return OK, at, value


@part
def sized(data: Bytes, at: int, end: int) -> tuple[int, int, int]:
    """(Status, where the bytes behind their number begin, their number): all of them are there."""
    status, at, size = number(data, at, end, 64)
    if status == OK and not 0 <= size <= end - at:
        status = CUT
    return status, at, size


@part
def _is_utf8(data: Bytes, at: int, end: int) -> bool:
    while at < end:
        byte = int(data[at])
        at += 1
        if byte < 0x80:
            continue
        if 0xC2 <= byte < 0xE0:
            more, low, high = 1, 0x80, 0xBF
        elif 0xE0 <= byte < 0xF0:
            more = 2
            low = 0xA0 if byte == 0xE0 else 0x80
            high = 0x9F if byte == 0xED else 0xBF  # surrogates
        elif 0xF0 <= byte < 0xF5:
            more = 3
            low = 0x90 if byte == 0xF0 else 0x80
            high = 0x8F if byte == 0xF4 else 0xBF
        else:
            return False
        if end - at < more or not low <= data[at] <= high:
            return False
        for place in range(at + 1, at + more):
            if data[place] & 0xC0 != 0x80:
                return False
        at += more
    return True


@part
def checked_text(data: Bytes, at: int, end: int) -> int:
    """The status of a string: UTF-8, without U+0000. Loops without a way out look at many bytes at once."""
    high, zeros = np.uint8(0), np.uint8(0)
    for place in range(at, end):
        high |= data[place]
        zeros |= np.uint8(data[place] == 0)
    if zeros:
        return NUL
    return OK if high < 0x80 or _is_utf8(data, at, end) else NOT_UTF8


@part
def put_bytes(out: Bytes, to: int, limit: int, data: Bytes, at: int, size: int) -> int:
    if to < 0 or limit - to < size:
        return NO_ROOM
    spare = min(len(data) - at, len(out) - to)
    copy_bytes(out.ctypes.data + to, data.ctypes.data + at, size, spare)
    return to + size


@part
def put_byte(out: Bytes, to: int, limit: int, byte: int) -> int:
    if to < 0 or to >= limit:
        return NO_ROOM
    out[to] = byte
    return to + 1


@part
def put_number(out: Bytes, to: int, limit: int, value: int) -> int:
    if to < 0 or limit - to < _DIGITS_MAX:
        return NO_ROOM
    if value < 0:
        out[to] = _MINUS
        to += 1
    else:
        value = -value  # of both signs the negative numbers are more
    digits, rest = 1, value
    while rest <= -10:
        rest = (rest + (10 - rest % 10) % 10) // 10
        digits += 1
    for place in range(to + digits - 1, to - 1, -1):
        digit = (10 - value % 10) % 10
        out[place] = _ZERO + digit
        value = (value + digit) // 10
    return to + digits


@part
def _letter(number: int) -> int:
    """Of base64."""
    if number < 26:
        return number + 65
    if number < 52:
        return number + 71
    if number < 62:
        return number - 4
    return _PLUS if number == 62 else _SLASH


@part
def put_base64(out: Bytes, to: int, limit: int, data: Bytes, at: int, size: int) -> int:
    if to < 0 or limit - to < (size + 2) // 3 * 4:
        return NO_ROOM
    end = at + size
    while at < end:
        left = min(end - at, 3)
        word = int(data[at]) << 16
        if left > 1:
            word |= int(data[at + 1]) << 8
        if left > 2:
            word |= int(data[at + 2])
        out[to], out[to + 1] = _letter(word >> 18), _letter(word >> 12 & 63)
        out[to + 2] = _letter(word >> 6 & 63) if left > 1 else _EQUALS
        out[to + 3] = _letter(word & 63) if left > 2 else _EQUALS
        at, to = at + 3, to + 4
    return to


@part
def put_quoted(out: Bytes, to: int, limit: int, data: Bytes, at: int, size: int) -> int:
    """A JSON string."""
    if to < 0 or limit - to < size + 2:
        return NO_ROOM
    out[to] = QUOTE
    to += 1
    for place in range(at, at + size):
        byte = int(data[place])
        needed = 6 if byte < 0x20 else 2 if byte in (QUOTE, BACKSLASH) else 1
        if limit - to < needed + 1:
            return NO_ROOM
        if needed == 6:
            high, low = byte >> 4, byte & 15
            out[to], out[to + 1], out[to + 2], out[to + 3] = BACKSLASH, _U, _ZERO, _ZERO
            out[to + 4] = _ZERO + high
            out[to + 5] = _ZERO + low if low < 10 else _HEX_LETTER + low
        elif needed == 2:
            out[to], out[to + 1] = BACKSLASH, byte
        else:
            out[to] = byte
        to += needed
    out[to] = QUOTE
    return to + 1
