"""Statements on the caller's connection, as coroutines: those of a connection that blocks never wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, LiteralString, TypeAlias

from tailrace.eventstore.streams.database.connection import DatabaseConnection, run

Ask: TypeAlias = Callable[[LiteralString, Mapping[str, object]], Awaitable[Sequence[tuple[Any, ...]]]]
"""Gives the rows of a statement with parameters."""


def ask_of(connection: DatabaseConnection, schema: str | None = None) -> Ask:
    """What runs statements on a connection that blocks, on tables in a schema (default: this process's)."""

    async def ask(query: LiteralString, values: Mapping[str, object]) -> Sequence[tuple[Any, ...]]:
        return run(connection, query, values, schema)

    return ask
