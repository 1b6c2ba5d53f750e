"""The schema of a source database that has the tables of domain events: ``tailrace``, or one of a service's choice.

Statements name ``tailrace``. Where the tables are in another schema, that takes its place when a statement is sent.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, LiteralString

from tailrace.eventstore.errors import UsageError

EVENTS_SCHEMA: Final = "tailrace"
EVENTS_TABLE: Final = "events"

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_OTHERS: Final = ("public", "information_schema")
_NAMED: Final = re.compile(r"\btailrace\.(?!(?:forgetting|emit)\b)|(?<=SCHEMA )tailrace\b")
"""Not in the names of a setting and of messages in the WAL."""


def is_schema_name(text: str) -> bool:
    """Whether a schema of this name can have the tables, and nothing else: not Postgres' own, nor the one that
    everybody's tables are in."""
    return bool(_NAME.fullmatch(text)) and not text.startswith("pg_") and text not in _OTHERS


@functools.lru_cache(maxsize=1000)
def in_schema(text: LiteralString, schema: str) -> LiteralString:
    """A statement whose tables and functions are in this schema, whose name ``is_schema_name``."""
    if schema == EVENTS_SCHEMA:
        return text
    return _NAMED.sub(lambda found: found[0].replace(EVENTS_SCHEMA, f'"{schema}"'), text)


class _Chosen:
    schema: str = EVENTS_SCHEMA


def use_schema(name: str) -> None:
    """The tables of this process's domain events are in this schema, which ``event_tables.upgrade`` or ``tailrace init
    --events`` made. By default they are in schema ``tailrace``.

    Raises UsageError for a name that is none of up to 63 small letters, digits and ``_``, or is Postgres' own.
    """
    _Chosen.schema = chosen_schema(name)


def chosen_schema(name: str | None = None) -> str:
    """The schema of this name; by default, this process's. Raises UsageError."""
    if name is None:
        return _Chosen.schema
    if not is_schema_name(name):
        raise UsageError(
            f"{name!r} is no schema for domain events",
            hint="one that has nothing else, of small letters, digits and _, as in shop_events",
        )
    return name


@contextmanager
def schema_in_use(name: str) -> Iterator[None]:
    """``use_schema`` for a while."""
    before = _Chosen.schema
    use_schema(name)
    try:
        yield
    finally:
        _Chosen.schema = before
