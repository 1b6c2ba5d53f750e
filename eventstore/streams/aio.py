"""Domain events for asyncio: the functions of the same names, awaited.

    async with await psycopg.AsyncConnection.connect(dsn) as connection:  # or one of SQLAlchemy's
        await aio.handle(connection, account, "42", Withdraw(amount))

There is one implementation of both. What a function does, and raises, its twin says.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, cast, overload
from uuid import UUID

from tailrace.eventstore.streams.boundaries.boundary import Boundary, loading_boundary
from tailrace.eventstore.streams.boundaries.query import Query
from tailrace.eventstore.streams.database.connection import (
    AsyncDatabaseConnection,
    in_transaction,
    run_async,
)
from tailrace.eventstore.streams.database.source import AnyAsyncConnection, async_keeper_of
from tailrace.eventstore.streams.deciding.aggregate import Aggregate, AnyAggregate
from tailrace.eventstore.streams.deciding.decider import Command, Decider, Event, State
from tailrace.eventstore.streams.deciding.handle import Committed, Handled, committed, handling, replaying
from tailrace.eventstore.streams.deciding.transactions import (
    AWAITED,
    AsyncTransactionOwner,
    async_position,
    committing,
    owns_awaited_transactions,
)
from tailrace.eventstore.streams.forget import Forgotten, forgetting
from tailrace.eventstore.streams.load import loading, loading_all
from tailrace.eventstore.streams.outcomes import ANY, Appended, Conflict, Expected
from tailrace.eventstore.streams.reacting.manager import Output, ProcessManager
from tailrace.eventstore.streams.reacting.react import reacting
from tailrace.eventstore.streams.recorded import Recorded
from tailrace.eventstore.streams.stream import Stream
from tailrace.eventstore.streams.writing.append import appending
from tailrace.eventstore.streams.writing.emit import emitting
from tailrace.eventstore.streams.writing.several import AppendTo, appending_all

__all__ = [
    "append",
    "append_all",
    "emit",
    "forget",
    "handle",
    "load",
    "load_all",
    "load_boundary",
    "position",
    "react",
    "state_of",
]


async def append(
    connection: AnyAsyncConnection,
    stream: Stream,
    events: Sequence[object],
    expected: int | Expected = ANY,
    metadata: Mapping[str, Any] | None = None,
    event_ids: Sequence[UUID] | None = None,
    boundary: Boundary | None = None,
) -> Appended | Conflict:
    """``tailrace.append``."""
    keeper = async_keeper_of(connection)
    return await appending(keeper, stream, events, expected, metadata, event_ids, boundary)


async def append_all(
    connection: AnyAsyncConnection,
    appends: Sequence[AppendTo],
    guards: Mapping[Stream, int | Expected] | None = None,
    metadata: Mapping[str, Any] | None = None,
    boundary: Boundary | None = None,
) -> tuple[Appended, ...] | Conflict:
    """``tailrace.append_all``."""
    return await appending_all(async_keeper_of(connection), appends, guards, metadata, boundary)


async def load(
    connection: AnyAsyncConnection,
    stream: Stream,
    from_version: int = 1,
    to_version: int | None = None,
    until: datetime | None = None,
) -> list[Recorded[Any]]:
    """``tailrace.load``."""
    return await loading(async_keeper_of(connection), stream, from_version, to_version, until)


def load_all(
    connection: AnyAsyncConnection, category: str, prefix: str = "", page: int = 1000
) -> AsyncIterator[Recorded[Any]]:
    """``tailrace.load_all``, with ``async for``."""
    return loading_all(async_keeper_of(connection), category, prefix, page)


async def load_boundary(connection: AnyAsyncConnection, query: Query) -> Boundary:
    """``tailrace.load_boundary``."""
    return await loading_boundary(async_keeper_of(connection), query)


@overload
async def handle(
    target: AsyncTransactionOwner,
    decider: Decider[Command, State, Event],
    id: str,
    command: Command,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> Committed[State, Event]: ...


@overload
async def handle(
    target: AnyAsyncConnection,
    decider: Decider[Command, State, Event],
    id: str,
    command: Command,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> Handled[State, Event]: ...


@overload
async def handle(
    target: AsyncTransactionOwner,
    decider: type[AnyAggregate],
    id: str,
    command: Callable[[AnyAggregate], object],
    *,
    metadata: Mapping[str, Any] | None = None,
) -> Committed[AnyAggregate, Any]: ...


@overload
async def handle(
    target: AnyAsyncConnection,
    decider: type[AnyAggregate],
    id: str,
    command: Callable[[AnyAggregate], object],
    *,
    metadata: Mapping[str, Any] | None = None,
) -> Handled[AnyAggregate, Any]: ...


async def handle(
    target: AnyAsyncConnection | AsyncTransactionOwner,
    decider: Decider[Any, Any, Any] | type[Aggregate],
    id: str,
    command: Any,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> Handled[Any, Any]:
    """``tailrace.handle``; a decision is not awaited, for it is pure. The owner of transactions is a SQLAlchemy
    ``AsyncEngine``, or an ``AsyncConnectionPool`` of psycopg."""
    if owns_awaited_transactions(target):
        work = partial(handling, decider=decider, id=id, command=command, metadata=metadata)
        return await committed(AWAITED, target, lambda connection: work(async_keeper_of(connection)))
    keeper = async_keeper_of(cast("AnyAsyncConnection", target))
    return await handling(keeper, decider, id, command, metadata=metadata)


async def react(
    target: AsyncDatabaseConnection | AsyncTransactionOwner,
    manager: ProcessManager[Any, Any],
    recorded: Recorded[Any],
) -> tuple[Output, ...] | None:
    """``tailrace.react``."""

    async def work(connection: AsyncDatabaseConnection) -> tuple[Output, ...] | None:
        async with in_transaction(connection):
            return await reacting(partial(run_async, connection), manager, recorded)

    if owns_awaited_transactions(target):
        result, _ = await committing(AWAITED, target, work)
        return result
    return await work(cast("AsyncDatabaseConnection", target))


@overload
async def state_of(
    connection: AnyAsyncConnection,
    decider: Decider[Any, State, Any],
    id: str,
    *,
    version: int | None = None,
    at: datetime | None = None,
) -> Handled[State, Any]: ...


@overload
async def state_of(
    connection: AnyAsyncConnection,
    decider: type[AnyAggregate],
    id: str,
    *,
    version: int | None = None,
    at: datetime | None = None,
) -> Handled[AnyAggregate, Any]: ...


async def state_of(
    connection: AnyAsyncConnection,
    decider: Decider[Any, Any, Any] | type[Aggregate],
    id: str,
    *,
    version: int | None = None,
    at: datetime | None = None,
) -> Handled[Any, Any]:
    """``tailrace.state_of``."""
    return await replaying(async_keeper_of(connection), decider, id, version=version, at=at)


async def emit(
    connection: AsyncDatabaseConnection,
    stream: Stream,
    events: Sequence[object],
    metadata: Mapping[str, Any] | None = None,
) -> tuple[UUID, ...]:
    """``tailrace.emit``."""
    return await emitting(partial(run_async, connection), stream, events, metadata)


async def forget(connection: AsyncDatabaseConnection, subject: str) -> Forgotten:
    """``tailrace.forget``."""
    return await forgetting(partial(run_async, connection), partial(in_transaction, connection), subject)


async def position(connection: AsyncDatabaseConnection) -> str:
    """``tailrace.position``."""
    return await async_position(connection)
