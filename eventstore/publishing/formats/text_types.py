"""Types that the log keeps as Postgres' text, and for which Debezium has a form of its own: that text as JSON.

A text without such a form (an infinite interval, an array of several dimensions) is left as it is, as a string.
Sources: Debezium's documentation, "Data type mappings" of the PostgreSQL connector; Postgres' array_out, interval_out
(IntervalStyle postgres), hstore_out.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Mapping

from tailrace.eventstore.model.schema import NUMERIC, Column

Form = Callable[[str], str | None]
"""The JSON text of a value; None when it has none."""

_OID, _POINT, _MONEY, _INTERVAL, _TIMETZ, _BIT, _VARBIT = 26, 600, 790, 1186, 1266, 1560, 1562
_ELEMENTS = {1028: _OID, 1270: _TIMETZ, 791: _MONEY, 1187: _INTERVAL, 1231: NUMERIC}
_INTERVAL_TEXT = re.compile(
    r"(?:(-?\d+) years? ?)?(?:([+-]?\d+) mons? ?)?(?:([+-]?\d+) days? ?)?(?:([+-]?)(\d+):(\d\d):(\d\d(?:\.\d+)?))?"
)
_TIMETZ_TEXT = re.compile(r"(\d\d):(\d\d):(\d\d)(\.\d+)?([+-]\d\d)(?::(\d\d))?(?::(\d\d))?")
_POINT_TEXT = re.compile(r"\(([^,()]+),([^,()]+)\)")
_PAIR = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:NULL|"((?:[^"\\]|\\.)*)")(?:, |$)', re.S)
_ITEM = re.compile(r'(?:"((?:[^"\\]|\\.)*)"|([^{}",\\]+))(?:,|$)', re.S)
_ESCAPED = re.compile(r"\\(.)", re.S)
_DAY = 24 * 60 * 60


def form_of(column: Column) -> Form | None:
    """How texts of a column are sent; None: as they are."""
    if column.policy:
        return None
    if column.type_name.endswith("[]"):
        element = _FORMS.get(_ELEMENTS.get(column.meant_oid, 0), _string)
        return lambda text: _array(text, element)
    if column.type_name.rsplit(".", 1)[-1].strip('"') == "hstore":
        return _hstore
    if column.meant_oid == _BIT and column.meant_typmod in (-1, 1):
        return _flag
    return _FORMS.get(column.meant_oid)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _number(text: str) -> str:
    return text


def _money(text: str) -> str:
    return _string(text.replace("$", "").replace(",", ""))


def _flag(text: str) -> str:
    return "true" if text == "1" else "false"


def _bits(text: str) -> str:
    """The first bit of the text is the highest; the lowest byte comes first."""
    data = int(text or "0", 2).to_bytes((len(text) + 7) // 8, "little")
    return _string(base64.b64encode(data).decode())


def _timetz(text: str) -> str | None:
    """In UTC."""
    found = _TIMETZ_TEXT.fullmatch(text)
    if found is None:
        return None
    hours, minutes, seconds = (int(found[part]) for part in (1, 2, 3))
    zone = int(found[5][1:]) * 3600 + int(found[6] or 0) * 60 + int(found[7] or 0)
    since = hours * 3600 + minutes * 60 + seconds - (-zone if found[5][0] == "-" else zone)
    since = since if since == _DAY else since % _DAY
    return _string(f"{since // 3600:02}:{since // 60 % 60:02}:{since % 60:02}{found[4] or ''}Z")


def _interval(text: str) -> str | None:
    """ISO 8601, each part with its sign."""
    found = _INTERVAL_TEXT.fullmatch(text)
    if found is None or not text:
        return None
    days = "".join(
        f"{int(found[part])}{unit}" for part, unit in ((1, "Y"), (2, "M"), (3, "D")) if found[part]
    )
    if found[5] is None:
        return _string(f"P{days}")
    sign = "-" if found[4] == "-" else ""
    hours, minutes, seconds = (found[part].lstrip("0") or "0" for part in (5, 6, 7))
    seconds = f"0{seconds}" if seconds.startswith(".") else seconds
    return _string(f"P{days}T{sign}{hours}H{sign}{minutes}M{sign}{seconds}S")


def _point(text: str) -> str | None:
    found = _POINT_TEXT.fullmatch(text)
    if found is None:
        return None
    x, y = found[1], found[2]
    data = base64.b64encode(struct.pack("<BIdd", 1, 1, float(x), float(y))).decode()
    return f'{{"x":{_double(x)},"y":{_double(y)},"wkb":"{data}","srid":null}}'


def _double(text: str) -> str:
    return _string(text) if text.lstrip("-") in ("NaN", "Infinity") else text


def _hstore(text: str) -> str | None:
    """A JSON object in a string."""
    pairs, at = {}, 0
    while at < len(text):
        found = _PAIR.match(text, at)
        if found is None:
            return None
        pairs[_plain(found[1])] = None if found[2] is None else _plain(found[2])
        at = found.end()
    return _string(json.dumps(pairs, ensure_ascii=False))


def _array(text: str, element: Form) -> str | None:
    """Of one dimension, with the usual bounds."""
    if not (text.startswith("{") and text.endswith("}")):
        return None
    items, at, inner = [], 0, text[1:-1]
    while at < len(inner):
        found = _ITEM.match(inner, at)
        if found is None:
            return None
        if found[1] is None and found[2] == "NULL":
            items.append("null")
        else:
            value = _plain(found[1]) if found[1] is not None else found[2]
            items.append(element(value) or _string(value))
        at = found.end()
    return f"[{','.join(items)}]"


def _plain(text: str) -> str:
    return _ESCAPED.sub(r"\1", text)


_FORMS: Mapping[int, Form] = {
    _OID: _number,
    _POINT: _point,
    _MONEY: _money,
    _INTERVAL: _interval,
    _TIMETZ: _timetz,
    _BIT: _bits,
    _VARBIT: _bits,
}
