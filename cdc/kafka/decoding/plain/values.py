"""Which JSON values a column of each type of Postgres is read from, as the texts that Postgres has for them.

A number is read into types of numbers alone, true and false into boolean alone, a string into everything else; and into
numbers, because many producers write large ones so. What would have to be guessed is bad: a number for a moment (of
which unit?), a moment without a zone where one is needed. ``fitted`` is the second half: a value beyond its type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.cdc.columnar.values import convert
from tailrace.cdc.kafka.decoding import fields
from tailrace.cdc.kafka.decoding.fields import element_of
from tailrace.cdc.kafka.decoding.values import arrays, numbers, texts, times
from tailrace.cdc.kafka.decoding.values.cells import (
    STRINGS,
    Cells,
    Reader,
    Texts,
    decoded,
    each,
    kept,
    mostly,
)
from tailrace.cdc.kernels import json_text
from tailrace.eventstore.model.postgres_text import postgres_texts
from tailrace.eventstore.model.schema import NUMERIC, Column

_LENGTH_HEADER = 4  # VARHDRSZ
_BPCHAR, _VARCHAR, _JSONS = 1042, 1043, (114, 3802)
_DIGITS_MAX = 1000  # of a number in JSON
_MOMENT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?"
_ZONE = r"(Z|[+-][0-9]{2}:?[0-9]{2})"
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_ANY = tuple(range(json_text.FALSE, json_text.ARRAY + 1))


def reader_of(column: Column, unit: float | None = None) -> Reader:
    """``unit``: how many µs a number in a column of moments counts; None: a number is bad there."""
    element = element_of(column)
    if element is not None:
        return arrays.array(reader_of(element, unit))
    match column.meant_oid:
        case fields.BOOL:
            return numbers.boolean
        case fields.INT2 | fields.INT4 | fields.INT8 | fields.OID:
            return _integer
        case fields.FLOAT4 | fields.FLOAT8 as oid:
            return _floating(single=oid == fields.FLOAT4)
        case oid if oid == NUMERIC:
            return _decimal
        case fields.STAMPS | fields.ZONED_STAMPS as oid:
            return _moment(unit, zoned=oid == fields.ZONED_STAMPS)
        case fields.UUIDS:
            return _each_string(_uuid)
        case fields.BYTEA:
            return _each_string(_binary)
        case oid if oid in _JSONS:
            return _document
        case oid if oid in (_BPCHAR, _VARCHAR) and column.meant_typmod >= _LENGTH_HEADER:
            return _limited(column.meant_typmod - _LENGTH_HEADER, padded=oid == _BPCHAR)
    return texts.string


def fitted(column: Column, found: Texts) -> Texts:
    """What the column can hold; a key's as Postgres prints it, for its text is what keys are told apart by."""
    if pa.types.is_string(column.arrow):
        return found
    typed, unfit = convert(found.texts, column)
    bad = sorted({*found.bad, *(unfit or ())})
    return Texts(postgres_texts(typed) if column.key else found.texts, bad)


def _each_string(parse: Callable[[str], str | None]) -> Reader:
    return lambda cells: each(cells, parse, *STRINGS)


def _integer(cells: Cells) -> Texts:
    return kept(cells, json_text.NUMBER, *STRINGS)


def _floating(*, single: bool) -> Reader:
    numeric = numbers.floating(single=single, exact=True)

    def read(cells: Cells) -> Texts:
        found = numeric(cells)
        words = pc.invert(pc.is_in(cells.strings(), pa.array(_NOT_FINITE)))
        strings = pa.array((cells.kinds == STRINGS[0]) | (cells.kinds == STRINGS[1]))
        wrong = pc.indices_nonzero(pc.and_(strings, words)).to_pylist()
        return Texts(found.texts, sorted({*found.bad, *wrong}))

    return read


def _decimal(cells: Cells) -> Texts:
    def parse(text: str) -> str | None:
        if re.fullmatch(r"-?[0-9]{1,1000}(\.[0-9]{1,1000})?([eE][-+]?[0-9]{1,4})?", text) is None:
            return None
        number = Decimal(text)
        return format(number, "f") if abs(number.adjusted()) <= _DIGITS_MAX else None

    return mostly(
        cells, r"^-?[0-9]{1,40}(\.[0-9]{1,40})?$", lambda each: each, parse, json_text.NUMBER, *STRINGS
    )


def _moment(unit: float | None, *, zoned: bool) -> Reader:
    zone = "+00" if zoned else ""
    counted = times.stamp(unit) if unit is not None else None

    def read(cells: Cells) -> Texts:
        is_number = cells.kinds == json_text.NUMBER
        if counted is None or not is_number.any():
            return _written(cells, zoned=zoned)
        none, mask = pa.scalar(None, pa.binary()), pa.array(is_number)
        kinds = [is_number, ~is_number]
        one, other = (
            Cells(pc.if_else(pa.array(each), cells.texts, none), cells.kinds * each) for each in kinds
        )
        numbered, written = counted(one), _written(other, zoned=zoned)
        shown = pc.binary_join_element_wise(numbered.texts.cast(pa.string()), zone, "")
        return Texts(pc.if_else(mask, shown, written.texts), sorted({*numbered.bad, *written.bad}))

    return read


def _written(cells: Cells, *, zoned: bool) -> Texts:
    pattern = re.compile(_MOMENT + (_ZONE if zoned else ""))

    def parse(text: str) -> str | None:
        if pattern.fullmatch(text) is None:
            return None
        moment = datetime.fromisoformat(re.sub(r"(\.[0-9]{6})[0-9]+", r"\1", text))
        kind = pa.timestamp("us", "UTC") if zoned else pa.timestamp("us")
        return str(postgres_texts(pa.array([moment], kind))[0].as_py())

    return each(cells, parse, *STRINGS)


def _uuid(text: str) -> str | None:
    return text.lower() if _UUID.fullmatch(text) else None


def _binary(text: str) -> str:
    """Hex behind \\x, as Postgres writes it; otherwise base64, which has no backslash."""
    data = bytes.fromhex(text[2:]) if text.startswith("\\x") else decoded(text)
    return "\\x" + data.hex()


def _document(cells: Cells) -> Texts:
    """Any value, as it is written: a string with its quotes again."""
    quoted = pa.array((cells.kinds == STRINGS[0]) | (cells.kinds == STRINGS[1]))
    strings = cells.strings()
    if pc.any(quoted, min_count=0).as_py():
        again = [
            None if text is None else json.dumps(text, ensure_ascii=False) for text in strings.to_pylist()
        ]
        strings = pc.if_else(quoted, pa.array(again, pa.string()), strings)
    return Texts(strings, kept(cells, *_ANY).bad)


def _limited(characters: int, *, padded: bool) -> Reader:
    def read(cells: Cells) -> Texts:
        found = kept(cells, *STRINGS)
        strings = cells.strings()
        if padded:
            strings = pc.utf8_rpad(strings, characters)
        long = pc.indices_nonzero(pc.fill_null(pc.greater(pc.utf8_length(strings), characters), False))
        return Texts(strings, sorted({*found.bad, *long.to_pylist()}))

    return read
