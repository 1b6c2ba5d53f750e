"""The kernel that finds wanted members in JSON texts: where each value lies, and of what kind it is. No Python objects.

``find_spans`` goes over one record after the other, each one JSON text with an object at its root:

    VALUE    a string, number or literal: its span is noted if it is wanted.   An object or array: one level deeper.
    NAME     the member's name is looked up among the wanted ones of its object; then VALUE.
    AFTER    a comma: NAME or VALUE again.   The end of the object or array: its span is noted, one level up.

A record that is not JSON, or has a wanted name twice, gets a status and the place of the problem; the others do not
notice. Names are looked for in the order last seen: where the same member of the same object had the same name in an
earlier record, comparing the two is enough. So it is for a member that is ``opaque``, such as a schema: one that is
equal, byte by byte, to the last one is skipped.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tailrace.cdc.kernels.json_text import (
    ABSENT,
    ARRAY,
    BACKSLASH,
    CUT,
    DEEP,
    MINUS,
    MISSING,
    NINE,
    NO_OBJECT,
    NUMBER,
    OBJECT,
    OK,
    QUOTE,
    STRING,
    SYNTAX,
    TRAILING,
    TWICE,
    ZERO,
    escape,
    literal,
    number,
    skip_space,
    string,
    utf8,
)
from tailrace.cdc.kernels.rows import Bytes, Ints, Ints32
from tailrace.eventstore.compiled.compiler import kernel, part

DEPTH = 256
"""How deep objects and arrays may nest."""

_VALUE, _FIRST_NAME, _NAME, _FIRST_ITEM, _AFTER = range(5)
_COMMA, _COLON, _OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = (ord(sign) for sign in ",:{}[]")
# Places in ``opaque``: of the opaque member seen last, where it began, its size, and its record.
_AT, _SIZE, _RECORD = range(3)


class Wanted(NamedTuple):
    """A tree of names. A node is an object that is looked into; its members are ``first[node]`` to ``first[node + 1]``.
    By member: its name, where its value is noted, the node that it is (-1: none), and whether it is opaque. By node:
    whether a name that is not wanted is to be noted, and where its hints begin."""

    first: Ints32
    name_at: Ints32
    name_size: Ints32
    names: Bytes
    slot: Ints32
    node: Ints32
    opaque: Bytes
    closed: Bytes
    hints: Ints32


class Hints(NamedTuple):
    """By node and place in its object: the name last seen there, and which member it is (-1: not wanted)."""

    at: Ints32
    size: Ints32
    member: Ints32


class Stack(NamedTuple):
    """The open objects and arrays: node of an object (-1: none that is looked into), how many members it had, whether
    it is an object, where it began, and where its value is noted (-1: nowhere)."""

    node: Ints32
    members: Ints32
    is_object: Ints32
    begin: Ints32
    slot: Ints32


class Spans(NamedTuple):
    """By slot, and in it by record: where the text of a value begins, its size, and its kind. Strings are without
    quotes."""

    at: Ints32
    size: Ints32
    kind: Bytes


class Verdicts(NamedTuple):
    """By record: status and place of the problem; a name that is not wanted in a closed node (size -1: none); the
    record in which its opaque member is found first (-1: it has none)."""

    status: Bytes
    place: Ints32
    stray_at: Ints32
    stray_size: Ints32
    same_as: Ints32


@part
def _same(data: Bytes, one: int, other: int, size: int) -> bool:
    """Whether ``size`` bytes are equal. In steps whose loop has no way out, so that many bytes are compared at once."""
    step = 0
    while step < size:
        behind = min(step + 256, size)
        differs = np.uint8(0)
        for place in range(step, behind):
            differs |= data[one + place] ^ data[other + place]
        if differs:
            return False
        step = behind
    return True


@part
def _is_name(data: Bytes, signs: Bytes, at: int, size: int, kind: int, wanted: Wanted, member: int) -> bool:
    """Whether a name in the text is that of a wanted member. Escapes are resolved, as UTF-8, while comparing."""
    place, length = wanted.name_at[member], int(wanted.name_size[member])
    if kind == STRING and length != size:
        return False
    end, behind = at + size, place + length
    while at < end:
        count, word = 1, int(data[at])
        if word == BACKSLASH:
            _, at, code = escape(data, signs, at, end)
            count, word = utf8(code)
        else:
            at += 1
        if place + count > behind:
            return False
        for byte in range(count):
            if wanted.names[place + byte] != (word >> (8 * (count - 1 - byte))) & 0xFF:
                return False
        place += count
    return bool(place == behind)


@part
def _member(
    data: Bytes,
    signs: Bytes,
    at: int,
    size: int,
    kind: int,
    node: int,
    place: int,
    wanted: Wanted,
    hints: Hints,
) -> int:
    """Which member of the node has this name, -1: none."""
    hint = wanted.hints[node] + place
    hinted = hint < wanted.hints[node + 1]
    if hinted and hints.size[hint] == size and _same(data, hints.at[hint], at, size):
        return int(hints.member[hint])
    found = -1
    for member in range(wanted.first[node], wanted.first[node + 1]):
        if _is_name(data, signs, at, size, kind, wanted, member):
            found = member
            break
    if hinted:
        hints.at[hint], hints.size[hint], hints.member[hint] = at, size, found
    return found


@part
def _name(data: Bytes, signs: Bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """A name and its colon: (status, where its value may begin or the problem is, its size, its kind)."""
    if data[at] != QUOTE:
        return SYNTAX, at, 0, STRING
    status, quote, kind = string(data, signs, at + 1, end)
    if status != OK:
        return status, quote, 0, kind
    size = quote - at - 1
    at = skip_space(data, quote + 1, end)
    if at >= end:
        return CUT, at, size, kind
    return (OK if data[at] == _COLON else SYNTAX), at + 1, size, kind


@part
def _scalar(data: Bytes, signs: Bytes, at: int, end: int) -> tuple[int, int, int, int, int]:
    """What is neither object nor array: (status, its end or the problem's place, where its text begins, the text's
    size, kind)."""
    if data[at] == QUOTE:
        status, quote, kind = string(data, signs, at + 1, end)
        return status, (quote + 1 if status == OK else quote), at + 1, quote - at - 1, kind
    if data[at] == MINUS or ZERO <= data[at] <= NINE:
        status, behind = number(data, at, end)
        return status, behind, at, behind - at, NUMBER
    status, behind, kind = literal(data, at, end)
    return status, behind, at, behind - at, kind


@part
def _record(
    data: Bytes,
    signs: Bytes,
    begin: int,
    end: int,
    record: int,
    records: int,
    wanted: Wanted,
    hints: Hints,
    stack: Stack,
    spans: Spans,
    verdicts: Verdicts,
    opaque: Ints,
) -> tuple[int, int]:
    """One record: (status, place of the problem)."""
    at, depth, state = skip_space(data, begin, end), 0, _VALUE
    slot, node, compared = -1, 0, False
    if at < end and data[at] != _OPEN:
        return NO_OBJECT, at
    while True:
        at = skip_space(data, at, end)
        if at >= end:
            return CUT, at
        byte = data[at]
        if (byte == _CLOSE and state == _FIRST_NAME) or (byte == _CLOSE_LIST and state == _FIRST_ITEM):
            state = _AFTER
        if state in (_FIRST_NAME, _NAME):
            begin = at + 1
            status, at, size, kind = _name(data, signs, at, end)
            if status != OK:
                return status, at
            slot, node, compared, state = -1, -1, False, _VALUE
            inside = stack.node[depth - 1]
            if inside < 0:
                continue
            place = stack.members[depth - 1]
            stack.members[depth - 1] = place + 1
            member = _member(data, signs, begin, size, kind, inside, place, wanted, hints)
            if member >= 0:
                slot, node, compared = wanted.slot[member], wanted.node[member], bool(wanted.opaque[member])
                if spans.kind[slot * records + record] != MISSING:
                    return TWICE, begin
            elif wanted.closed[inside] and verdicts.stray_size[record] < 0:
                verdicts.stray_at[record], verdicts.stray_size[record] = begin, size
        elif state == _AFTER:
            is_object = stack.is_object[depth - 1]
            if byte == _COMMA:
                slot, node, compared, state = -1, -1, False, (_NAME if is_object else _VALUE)
            elif byte != (_CLOSE if is_object else _CLOSE_LIST):
                return SYNTAX, at
            else:
                depth -= 1
                if stack.slot[depth] >= 0:
                    spans.size[stack.slot[depth] * records + record] = at + 1 - stack.begin[depth]
                if not depth:
                    at = skip_space(data, at + 1, end)
                    return (OK if at == end else TRAILING), at
            at += 1
        elif byte in (_OPEN, _OPEN_LIST):
            is_object = byte == _OPEN
            cell = slot * records + record
            if slot >= 0:
                spans.at[cell], spans.kind[cell] = at, (OBJECT if is_object else ARRAY)
            if compared and is_object:
                size = opaque[_SIZE]
                if opaque[_RECORD] >= 0 and end - at >= size and _same(data, opaque[_AT], at, size):
                    verdicts.same_as[record], spans.size[cell] = opaque[_RECORD], size
                    at, state = at + size, _AFTER
                    continue
                verdicts.same_as[record] = record
            if depth >= DEPTH:
                return DEEP, at
            stack.node[depth], stack.members[depth] = (node if is_object else -1), 0
            stack.is_object[depth], stack.begin[depth], stack.slot[depth] = is_object, at, slot
            slot, node, compared, state = -1, -1, False, (_FIRST_NAME if is_object else _FIRST_ITEM)
            depth, at = depth + 1, at + 1
        else:
            status, at, place, size, kind = _scalar(data, signs, at, end)
            if status != OK:
                return status, at
            if slot >= 0:
                cell = slot * records + record
                spans.at[cell], spans.size[cell], spans.kind[cell] = place, size, kind
            state = _AFTER


@kernel
def find_spans(
    data: Bytes,
    signs: Bytes,
    begins: Ints32,
    ends: Ints32,
    wanted: Wanted,
    hints: Hints,
    stack: Stack,
    spans: Spans,
    verdicts: Verdicts,
    opaque: Ints,
) -> None:
    """All records; ``ends`` is -1 where there is none. ``spans.kind`` is MISSING everywhere before, ``hints.size``,
    ``stray_size``, ``same_as`` and ``opaque`` (three numbers) are -1. Of a record that is not OK the spans mean
    nothing."""
    records = len(begins)
    for record in range(records):
        verdicts.status[record], verdicts.place[record] = ABSENT, 0
        if ends[record] < 0:
            continue
        status, place = _record(
            data,
            signs,
            begins[record],
            ends[record],
            record,
            records,
            wanted,
            hints,
            stack,
            spans,
            verdicts,
            opaque,
        )
        verdicts.status[record], verdicts.place[record] = status, place
        if verdicts.same_as[record] != record:
            continue
        opaque[_RECORD] = -1
        for member in range(len(wanted.opaque)):
            if wanted.opaque[member] and status == OK:
                cell = wanted.slot[member] * records + record
                opaque[_AT], opaque[_SIZE], opaque[_RECORD] = spans.at[cell], spans.size[cell], record
