"""The schema of this process's domain events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.model.event_schema import EVENTS_SCHEMA, is_schema_name


class _Chosen:
    schema: str = EVENTS_SCHEMA


def use_schema(name: str) -> None:
    """The tables of this process's domain events are in this schema, which ``event_tables.upgrade`` or ``tailrace init
    --events`` made. By default they are in schema ``tailrace``.

    Raises UsageError for a name that is none of up to 63 small letters, digits and ``_``, or is Postgres' own.
    """
    _Chosen.schema = required_schema(name)


def required_schema(name: str | None) -> str:
    """The schema of this name; None: of this process. Raises UsageError."""
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
