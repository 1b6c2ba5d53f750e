"""Which values the fields of inputs and sinks take. A module is loaded without a type checker, and a value that only
fails when it is used would be told as a mistake of ours, far from where it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard, get_args

from tailrace.projections.definition.model import Changes, Events, OnUnreadable, Result, State, Through
from tailrace.projections.sinks.specs import (
    FieldKind,
    ParquetFolder,
    PostgresTable,
    RedisCache,
    RedisFormat,
    SearchIndex,
)


@dataclass(frozen=True, slots=True)
class _Wanted:
    words: str
    fits: Callable[[object], bool]


def wrong_values(given: object) -> Iterator[tuple[str, str]]:
    """Fields of an input or a sink whose value cannot be used: what is wrong, and what is wanted."""
    for name, wanted in _FIELDS.get(type(given), {}).items():
        value = getattr(given, name)
        if not wanted.fits(value):
            owner = type(given).__name__
            yield f"{name} of {owner} is {told(value)}", f"{owner}({name}=…) takes {wanted.words}"


def told(value: object) -> str:
    """A value and its type, as messages name it."""
    text = repr(value)
    return f"{text if len(text) <= _LONGEST else text[:_LONGEST] + '…'} ({type(value).__name__})"


_LONGEST = 80


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # not NaN


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_texts(value: object) -> bool:
    return isinstance(value, tuple | list) and all(map(_is_text, value))


def _maps_texts_to(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: (
        isinstance(value, Mapping) and all(_is_text(key) and fits(held) for key, held in value.items())
    )


def _one_of(words: tuple[str, ...]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and value in words


def _or_none(wanted: _Wanted) -> _Wanted:
    return _Wanted(f"{wanted.words}, or None", lambda value: value is None or wanted.fits(value))


def _or_each(words: str, fits: Callable[[object], bool]) -> _Wanted:
    """One for all columns, or one for each."""
    each = _maps_texts_to(fits)
    return _Wanted(words, lambda value: fits(value) or each(value))


_POLICIES, _KINDS, _FORMATS = get_args(OnUnreadable), get_args(FieldKind), get_args(RedisFormat)
_TEXT = _Wanted("a text", _is_text)
_TEXTS = _Wanted('a tuple of column names, ("status",) for one', _is_texts)
_FLAG = _Wanted("True or False", lambda value: isinstance(value, bool))
_SECONDS = _Wanted("a number of seconds", is_number)
_AFFECTS = _Wanted(
    'a column ("customer_id"), a tuple of columns, a mapping of key columns to columns, Through, or None',
    lambda value: (
        value is None
        or isinstance(value, Through)
        or _is_text(value)
        or (isinstance(value, tuple) and _is_texts(value))
        or _maps_texts_to(_is_text)(value)
    ),
)
_READ = {"topic": _TEXT, "affects": _AFFECTS}
_FIELDS: Mapping[type, Mapping[str, _Wanted]] = {
    State: {
        **_READ,
        "columns": _or_none(_TEXTS),
        "cast": _Wanted('a mapping of columns to Spark types: {"price": "decimal(20,4)"}', _maps_texts_to(_is_text)),
        "on_unreadable": _or_each(
            f"one of {', '.join(_POLICIES)}, or a mapping of columns to these", _one_of(_POLICIES)
        ),
        "erased": _FLAG,
    },
    Changes: _READ,
    Events: _READ,
    Result: {"projection": _TEXT, "affects": _AFFECTS},
    PostgresTable: {
        "sink": _TEXT,
        "table": _TEXT,
        "schema": _TEXT,
        "indexes": _Wanted(
            'a tuple of tuples of column names: (("status",),)',
            lambda value: isinstance(value, tuple | list) and all(map(_is_texts, value)),
        ),
        "json": _TEXTS,
    },
    RedisCache: {
        "sink": _TEXT,
        "prefix": _Wanted("a text, or None", lambda value: value is None or isinstance(value, str)),
        "format": _Wanted(f"one of {', '.join(_FORMATS)}", _one_of(_FORMATS)),
        "ttl_seconds": _or_none(_SECONDS),
    },
    SearchIndex: {
        "sink": _TEXT,
        "fields": _Wanted(
            f'a mapping of columns to kinds of fields ({", ".join(_KINDS)}): {{"note": "text"}}',
            _maps_texts_to(_one_of(_KINDS)),
        ),
    },
    ParquetFolder: {
        "sink": _TEXT,
        "partition_by": _TEXTS,
        "keep_seconds": _Wanted("a number of seconds, 0 or more", lambda value: is_number(value) and value >= 0),
    },
}  # fmt: skip
