"""Numbers, truth values and bits."""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation, localcontext

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.cdc.kafka.decoding.values.cells import (
    STRINGS,
    Cells,
    Reader,
    Texts,
    decoded,
    each,
    kept,
    mostly,
    other_kinds,
)
from tailrace.cdc.kernels import json_text
from tailrace.cdc.kernels.base64_numbers import LETTERS, read_numbers
from tailrace.eventstore.model.postgres_text import float_text

_NOT_FINITE = {
    "NaN": "NaN", "NAN": "NaN", "Infinity": "Infinity", "-Infinity": "-Infinity",
    "POSITIVE_INFINITY": "Infinity", "NEGATIVE_INFINITY": "-Infinity",
}  # fmt: skip
_DECIMAL = re.compile(r"-?[0-9]+(\.[0-9]+)?(E[-+]?[0-9]+)?")
_PLAIN_SCALE = 6  # up to here Arrow prints decimals without an exponent
_NULL = np.uint8(json_text.NULL)
_NEVER = "$^"  # of any cell
_SCALES = range(-131_072, 16_383 + 1)
_DIGITS_MAX = 200_000  # numeric has up to 131,072 digits before the point and 16,383 behind it


def boolean(cells: Cells) -> Texts:
    return _truth(cells, "t", "f")


def bit(cells: Cells) -> Texts:
    """bit(1), which comes as true or false."""
    return _truth(cells, "1", "0")


def _truth(cells: Cells, true: str, false: str) -> Texts:
    texts = pc.if_else(pa.array(cells.kinds == json_text.TRUE), true, false)
    texts = pc.if_else(cells.texts.is_valid(), texts, pa.scalar(None, pa.string()))
    return Texts(texts, other_kinds(cells, (json_text.TRUE, json_text.FALSE)))


def integer(cells: Cells) -> Texts:
    return kept(cells, json_text.NUMBER)


def floating(*, single: bool, exact: bool = False) -> Reader:
    """What is beyond the type's range stays as it is. ``exact``: as the server prints them; a key's text is hashed."""
    kind = np.float32 if single else np.float64

    def parse(text: str) -> str | None:
        if text in _NOT_FINITE:
            return _NOT_FINITE[text]
        with np.errstate(over="ignore"):
            value = float(kind(text))
        return text if np.isinf(value) else float_text(value, single=single)

    simple = _NEVER if exact else r"^-?[0-9]+(\.[0-9]+)?$"
    return lambda cells: mostly(cells, simple, lambda texts: texts, parse, json_text.NUMBER, *STRINGS)


def decimal(scale: int, negative_scale: int = 0) -> Reader:
    """Connect's Decimal: the digits as a whole number in two's complement, in base64. ``negative_scale``: the column
    keeps no digits in front of the point either, as numeric(3, -2)."""

    def parse(text: str) -> str | None:
        return _rounded(scaled(int.from_bytes(decoded(text), "big", signed=True), scale), negative_scale)

    def read(cells: Cells) -> Texts:
        if negative_scale or not 0 <= scale <= _PLAIN_SCALE:
            return each(cells, parse, *STRINGS)
        easy, fits = _short_decimals(cells, scale)
        wrong = other_kinds(cells, STRINGS)
        if fits.all() and not wrong:
            return Texts(easy)
        rest = pc.if_else(pa.array(fits), pa.scalar(None, pa.binary()), cells.texts)
        odd = each(Cells(rest, cells.kinds), parse, *STRINGS)
        return Texts(pc.if_else(pa.array(fits), easy, odd.texts), sorted({*odd.bad, *wrong}))

    return read


def or_plain(inner: Reader) -> Reader:
    """Decimals that may also be numbers, as they are in headers by Connect's default."""

    def read(cells: Cells) -> Texts:
        plain = cells.kinds == json_text.NUMBER
        if not plain.any():
            return inner(cells)
        mask, none = pa.array(plain), pa.scalar(None, pa.binary())
        numbers = Cells(pc.if_else(mask, cells.texts, none), np.where(plain, cells.kinds, _NULL))
        found = each(numbers, _plain, json_text.NUMBER)
        others = inner(Cells(pc.if_else(mask, none, cells.texts), np.where(plain, _NULL, cells.kinds)))
        texts = pc.if_else(mask, found.texts, others.texts.cast(pa.string()))
        return Texts(texts, sorted({*found.bad, *others.bad}))

    return read


def _short_decimals(cells: Cells, scale: int) -> tuple[pa.Array, NDArray[np.bool_]]:
    """The texts of those of up to 7 bytes, and which these are; a null is one."""
    rows = len(cells.texts)
    _, offsets, data = cells.texts.buffers()
    places = np.frombuffer(offsets, np.int32, rows + 1, cells.texts.offset * 4)
    numbers, fits = np.empty(rows, np.int64), np.empty(rows, np.uint8)
    read_numbers(np.frombuffer(data or b"\0", np.uint8), LETTERS, places, numbers, fits)
    words = np.column_stack([numbers, numbers >> 63])
    null = cells.texts.is_null().to_numpy(zero_copy_only=False)
    known = fits.astype(np.bool_) & ~null
    valid = np.packbits(known, bitorder="little")
    decimals = pa.Array.from_buffers(
        pa.decimal128(38, scale), rows, [pa.py_buffer(valid), pa.py_buffer(words)]
    )
    return decimals.cast(pa.string()), known | null


def variable_decimal(cells: Cells) -> Texts:
    """Each with its own scale."""

    def parse(text: str) -> str | None:
        found = json.loads(text)
        if not isinstance(found, dict) or not isinstance(found.get("value"), str):
            return None
        scale = found.get("scale")
        if type(scale) is not int:
            return None
        return scaled(int.from_bytes(decoded(found["value"]), "big", signed=True), scale)

    return each(cells, parse, json_text.OBJECT)


def decimal_text(negative_scale: int = 0) -> Reader:
    """Decimals as strings, which the server prints in the same way but for those that are no number."""

    def parse(text: str) -> str | None:
        if text in _NOT_FINITE:
            return _NOT_FINITE[text]
        return _rounded(_plain(text), negative_scale)

    simple = _NEVER if negative_scale else r"^-?[0-9]+(\.[0-9]+)?$"
    return lambda cells: mostly(cells, simple, lambda texts: texts, parse, *STRINGS)


def decimal_double(scale: int | None) -> Reader:
    """Decimals as doubles: what the connector left of them, in the scale of the column."""

    def parse(text: str) -> str | None:
        if text in _NOT_FINITE:
            return _NOT_FINITE[text]
        plain = _plain(repr(float(text)).upper())
        if plain is None or scale is None:
            return plain if plain is None else plain.removesuffix(".0")
        with localcontext(prec=_DIGITS_MAX):
            return format(Decimal(plain).quantize(Decimal(1).scaleb(-scale)), "f")

    return lambda cells: each(cells, parse, json_text.NUMBER, *STRINGS)


def money(inner: Reader) -> Reader:
    """As a session with ``lc_monetary = C`` prints it."""

    def read(cells: Cells) -> Texts:
        found = inner(cells)
        texts = [None if text is None else _money(text) for text in found.texts.cast(pa.string()).to_pylist()]
        return Texts(pa.array(texts, pa.string()), found.bad)

    return read


def _money(text: str) -> str:
    sign = "-" if text.startswith("-") else ""
    return f"{sign}${Decimal(text.lstrip('-')):,.2f}"


def bits(length: int) -> Reader:
    """bit(n): bytes with the lowest bits first, in base64."""

    def parse(text: str) -> str | None:
        number = int.from_bytes(decoded(text), "little")
        return format(number, f"0{length}b") if number >> length == 0 else None

    return lambda cells: each(cells, parse, *STRINGS)


def scaled(digits: int, scale: int) -> str:
    """A whole number with the point ``scale`` digits from its end. Raises ValueError when it is longer than any of
    Postgres: a few bytes may say to be a number of any length."""
    if digits.bit_length() > 4 * _DIGITS_MAX or scale not in _SCALES:
        raise ValueError("too many digits")
    sign, text = ("-", _digits(-digits)) if digits < 0 else ("", _digits(digits))
    if scale <= 0:
        return sign + (text + "0" * -scale if digits else text)
    text = text.rjust(scale + 1, "0")
    return f"{sign}{text[:-scale]}.{text[-scale:]}"


def _digits(number: int) -> str:
    """``str`` for numbers of any length: it refuses long ones."""
    return format(Decimal(number), "f")


def _plain(text: str) -> str | None:
    """Without an exponent."""
    if not _DECIMAL.fullmatch(text) or len(text) > _DIGITS_MAX:
        return None
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return format(number, "f") if abs(number.adjusted()) <= _DIGITS_MAX else None


def _rounded(text: str | None, negative_scale: int) -> str | None:
    """Without what is behind the point, of a column whose scale is negative: the connector takes that for a large
    one."""
    return text if text is None or not negative_scale else text.partition(".")[0]
