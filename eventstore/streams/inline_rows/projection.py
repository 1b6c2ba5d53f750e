"""Which rows follow which events at once.

    @inline("balances", "account", Deposited, Withdrawn)  # row id = the stream's id
    def balances(event: Deposited | Withdrawn, row: Row | None) -> Row | None:
        before = row["balance"] if row else 0
        return {"balance": before + (event.amount if isinstance(event, Deposited) else -event.amount)}

One stream is one row: it is made, changed or deleted. Whatever needs more is a projection of the log.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams.models.event_types import event_type_of
from tailrace.eventstore.streams.stream import Stream

Row: TypeAlias = Mapping[str, Any]
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")


@dataclass(frozen=True, slots=True)
class InlineProjection:
    """A row of ``table`` for each stream of ``category``. Made by ``inline``; calling it calls the function."""

    table: str
    category: str
    models: tuple[type[Any], ...]
    function: Callable[[Any, Row | None], Row | None]
    key: str

    def __call__(self, event: Any, row: Row | None) -> Row | None:
        return self.function(event, row)

    def follow(self, events: Sequence[object], row: Row | None) -> tuple[Row | None, Row | None]:
        """The row after events, whole; and what of it is to be written: None deletes it."""
        written: dict[str, Any] = {}
        for event in events:
            if type(event) in self.models:
                made = self.function(event, row)
                if made is not None and (not isinstance(made, Mapping) or not all(map(_is_name, made))):
                    raise UsageError(
                        f"inline projection {self.table} gave {type(made).__name__} for {type(event).__name__}",
                        hint='give columns and their values, {"balance": 5}, or None to delete the row',
                    )
                written = {} if made is None else {**written, **made}
                row = None if made is None else {**(row or {}), **made}
        return row, None if row is None else written

    def concerns(self, events: Sequence[object]) -> bool:
        """Whether any of these events changes the row."""
        return any(type(event) in self.models for event in events)


def _is_name(column: object) -> bool:
    return isinstance(column, str) and _NAME.fullmatch(column) is not None


_declared: dict[str, dict[str, InlineProjection]] = defaultdict(dict)


def inline(
    table: str, category: str, *models: type[Any], key: str = "id"
) -> Callable[[Callable[[Any, Row | None], Row | None]], InlineProjection]:
    """Decorator: the function keeps a row of ``table`` (``SCHEMA.NAME``; ``NAME`` is in ``public``) for each stream of
    ``category``, whose id is in column ``key``, the primary key or UNIQUE. It is given an event of one of these models
    and the row as it is, as JSON has it (numbers with a fraction are Decimal), and gives the columns to write, or None
    to delete it.

    It runs in every append of this process to the category, in the same transaction; a server's error in it is the
    append's. It must be pure. Raises UsageError for names that are none, models that are no events, and a table that
    another function keeps.
    """
    Stream(category, "any")
    names = [*table.split("."), key]
    if not all(map(_is_name, names)) or len(names) > 3:
        raise UsageError(
            f"{table!r} with key {key!r} is no table", hint='inline("public.balances", …, key="account")'
        )
    if not models:
        raise UsageError(f"inline projection {table} follows no events", hint="name their models")
    for model in models:
        event_type_of(model)

    def declare(function: Callable[[Any, Row | None], Row | None]) -> InlineProjection:
        place = table if "." in table else f"public.{table}"
        made = InlineProjection(place, category, models, function, key)
        other = _declared[category].get(place)
        if other is not None and _name(other.function) != _name(
            function
        ):  # the same again: its module was reloaded
            raise UsageError(
                f"table {place} is kept by {_name(other.function)} and cannot be by {_name(function)} too",
                hint="one function keeps all rows of a category in a table",
            )
        _declared[category][place] = made
        return made

    return declare


def _name(function: Callable[..., object]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"


def inline_projections(category: str | None = None) -> list[InlineProjection]:
    """Those of a category; all."""
    if category is not None:
        return list(_declared[category].values()) if category in _declared else []
    return [each for tables in _declared.values() for each in tables.values()]
