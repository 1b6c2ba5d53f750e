"""Handle a command: load the stream, decide, append; again when somebody else was faster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast, overload

from tailrace.eventstore.errors import TransientError, UsageError
from tailrace.eventstore.streams.blocking import finish
from tailrace.eventstore.streams.boundaries.boundary import loading_boundary
from tailrace.eventstore.streams.boundaries.query import Query
from tailrace.eventstore.streams.context import metadata_json
from tailrace.eventstore.streams.database.source import AnyConnection, keeper_of
from tailrace.eventstore.streams.deciding.aggregate import Aggregate, AggregateBehaviour, AnyAggregate
from tailrace.eventstore.streams.deciding.decider import Behaviour, Command, Decider, Event, State
from tailrace.eventstore.streams.deciding.snapshots import UNREADABLE
from tailrace.eventstore.streams.deciding.transactions import (
    BLOCKING,
    TransactionOwner,
    Way,
    committing,
    owns_transactions,
)
from tailrace.eventstore.streams.inline_rows.apply import apply_inline, with_rows
from tailrace.eventstore.streams.load import up_to
from tailrace.eventstore.streams.models.upcasters import Place, read_events
from tailrace.eventstore.streams.outcomes import Expected
from tailrace.eventstore.streams.rows import EventType, Keeper, Part, Row, Snapshot
from tailrace.eventstore.streams.stream import Stream
from tailrace.eventstore.streams.writing.append import new_rows

# A conflict leaves the head row locked, so two are enough; a keeper without locks may need more.
_TRIES: Final = 10

HandledState = TypeVar("HandledState")
HandledEvent = TypeVar("HandledEvent")


@dataclass(frozen=True, slots=True)
class Handled(Generic[HandledState, HandledEvent]):
    """What a command did: the ``events`` it led to (none: it changed nothing), the ``state`` after them, and the
    stream's ``version`` (of a decider with a boundary 0, if there are no events)."""

    state: HandledState
    events: tuple[HandledEvent, ...]
    version: int


@dataclass(frozen=True, slots=True)
class Committed(Handled[HandledState, HandledEvent]):
    """It is committed, and in the log at ``position``: readers that have come there see it (``wait_for``)."""

    position: str


@overload
def handle(
    target: TransactionOwner,
    decider: Decider[Command, State, Event],
    id: str,
    command: Command,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> Committed[State, Event]: ...


@overload
def handle(
    target: AnyConnection,
    decider: Decider[Command, State, Event],
    id: str,
    command: Command,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> Handled[State, Event]: ...


@overload
def handle(
    target: TransactionOwner,
    decider: type[AnyAggregate],
    id: str,
    command: Callable[[AnyAggregate], object],
    *,
    metadata: Mapping[str, Any] | None = None,
) -> Committed[AnyAggregate, Any]: ...


@overload
def handle(
    target: AnyConnection,
    decider: type[AnyAggregate],
    id: str,
    command: Callable[[AnyAggregate], object],
    *,
    metadata: Mapping[str, Any] | None = None,
) -> Handled[AnyAggregate, Any]: ...


def handle(
    target: AnyConnection | TransactionOwner,
    decider: Decider[Any, Any, Any] | type[Aggregate],
    id: str,
    command: Any,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> Handled[Any, Any]:
    """Load stream ``id`` of the decider's category, decide the ``command``, and append the events it leads to.

    On a connection it works in the caller's transaction, which it neither commits nor rolls back. When somebody else
    appended meanwhile, it loads and decides again: under READ COMMITTED a conflict fails no transaction, the next look
    sees the winner, and after a conflict nobody else can append before this transaction ends. Under
    REPEATABLE READ and SERIALIZABLE the server's error (40001) is the caller's.

    On a SQLAlchemy engine or a pool of psycopg it commits a transaction of its own, tries again after 40001 and 40P01
    too, and says at which position of the log the events are. For an aggregate the command is a function that calls it.

    A decider with a boundary decides on the events inside it; stream ``id`` is where the new ones go, wherever it is.
    Somebody else was faster when there is another event inside.

    What the decision raises comes out as it is, ``Rejected`` above all, and nothing is appended. Raises TransientError
    when the stream changed at each of some tries; otherwise what ``load`` and ``append`` raise.
    """
    behaviour = behaviour_of(decider)
    stream = Stream(behaviour.category, id)
    about = metadata_json(metadata)
    if owns_transactions(target):
        work = partial(_handle_on, behaviour, stream, command, about)
        return finish(committed(BLOCKING, target, lambda connection: work(keeper_of(connection))))
    return finish(_handle_on(behaviour, stream, command, about, keeper_of(cast("AnyConnection", target))))


async def handling(
    keeper: Keeper,
    decider: Decider[Any, Any, Any] | type[Aggregate],
    id: str,
    command: Any,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> Handled[Any, Any]:
    """``handle`` in the caller's transaction, where something keeps the streams."""
    behaviour = behaviour_of(decider)
    stream = Stream(behaviour.category, id)
    return await _handle_on(behaviour, stream, command, metadata_json(metadata), keeper)


async def committed(
    way: Way, owner: Any, work: Callable[[Any], Awaitable[Handled[HandledState, HandledEvent]]]
) -> Committed[HandledState, HandledEvent]:
    """What ``work`` handled in a transaction of its own, and where the log has it."""
    done, position = await committing(way, owner, work)
    return Committed(done.state, done.events, done.version, position)


def behaviour_of(decider: Decider[Any, Any, Any] | type[Aggregate]) -> Behaviour[Any, Any, Any]:
    return decider if isinstance(decider, Decider) else AggregateBehaviour(decider)


@overload
def state_of(
    connection: AnyConnection,
    decider: Decider[Any, State, Any],
    id: str,
    *,
    version: int | None = None,
    at: datetime | None = None,
) -> Handled[State, Any]: ...


@overload
def state_of(
    connection: AnyConnection,
    decider: type[AnyAggregate],
    id: str,
    *,
    version: int | None = None,
    at: datetime | None = None,
) -> Handled[AnyAggregate, Any]: ...


def state_of(
    connection: AnyConnection,
    decider: Decider[Any, Any, Any] | type[Aggregate],
    id: str,
    *,
    version: int | None = None,
    at: datetime | None = None,
) -> Handled[Any, Any]:
    """The state of stream ``id``, without a command: now, up to a ``version``, or as it was ``at`` a time. Its
    ``version`` says of how many events. Raises what ``load`` raises, and UsageError for a decider with a boundary."""
    return finish(replaying(keeper_of(connection), decider, id, version=version, at=at))


async def replaying(
    keeper: Keeper,
    decider: Decider[Any, Any, Any] | type[Aggregate],
    id: str,
    *,
    version: int | None = None,
    at: datetime | None = None,
) -> Handled[Any, Any]:
    """``state_of``, where something keeps the streams."""
    behaviour = behaviour_of(decider)
    if behaviour.boundary is not None:
        raise UsageError(
            f"decider {behaviour.category!r} has a boundary: its state is not that of a stream",
            hint="load_boundary(connection, query) reads the events inside it",
        )
    stream = Stream(behaviour.category, id)
    if version is None and at is None:
        found = await _replay(keeper, behaviour, stream)
        return Handled(found.state, (), found.version)
    rows = list(up_to(await keeper.read(stream, 1, version), at))
    state = behaviour.fold(behaviour.begin(id), events_of(stream, rows))
    return Handled(state, (), rows[-1].version if rows else 0)


async def _handle_on(
    behaviour: Behaviour[Any, Any, Any], stream: Stream, command: object, metadata: str, keeper: Keeper
) -> Handled[Any, Any]:
    if behaviour.boundary is not None:
        return await _handle_inside(keeper, behaviour, behaviour.boundary(command), stream, command, metadata)
    for _ in range(_TRIES):
        before = await _replay(keeper, behaviour, stream)
        events, state = behaviour.run(command, before.state)
        if not events:
            return Handled(state, events, before.version)
        rows = await new_rows(keeper.keys, events)
        async with with_rows(keeper, [stream.category]):
            reached = await keeper.write(stream, before.version, rows, metadata)
            if reached > 0:
                await apply_inline(keeper, stream, events)
        if reached > 0:
            size = before.bytes_since + sum(len(row.data) for row in rows)
            kept = behaviour.snapshots
            # A state of erased values need not be one whose JSON reads back.
            if kept is not None and not before.erased and kept.every.due(reached - before.since, size):
                keys = before.keys.union(*(row.keys for row in rows))
                await keeper.write_snapshot(stream, Snapshot(reached, kept.dump(state), keys), kept.code)
            return Handled(state, events, reached)
    raise _always_changed(str(stream))


async def _handle_inside(
    keeper: Keeper,
    behaviour: Behaviour[Any, Any, Any],
    query: Query,
    stream: Stream,
    command: object,
    metadata: str,
) -> Handled[Any, Any]:
    for _ in range(_TRIES):
        boundary = await loading_boundary(keeper, query)
        before = behaviour.fold(behaviour.begin(stream.id), (each.data for each in boundary.events))
        events, state = behaviour.run(command, before)
        if not events:
            return Handled(state, events, 0)
        part = Part(stream, Expected.ANY.value, await new_rows(keeper.keys, events))
        async with with_rows(keeper, [stream.category]):
            failed, (version,) = await keeper.write_all([part], metadata, boundary.asked)
            if not failed:
                await apply_inline(keeper, stream, events)
        if not failed:
            return Handled(state, events, version)
    raise _always_changed(repr(query))


def _always_changed(what: str) -> TransientError:
    return TransientError(
        f"{what} changed at each of {_TRIES} tries to decide a command",
        hint="try again; what so many write to at once may better be several",
    )


@dataclass(frozen=True, slots=True)
class _Replayed(Generic[HandledState]):
    """A stream's state at ``version``, read from a snapshot at ``since`` (0: from the beginning) and events behind it
    of so many bytes; the keys of the personal values that it follows from, and whether some of these are erased."""

    state: HandledState
    version: int
    since: int
    bytes_since: int
    keys: frozenset[str]
    erased: bool


async def _replay(keeper: Keeper, behaviour: Behaviour[Any, State, Any], stream: Stream) -> _Replayed[State]:
    state, since, keys = behaviour.begin(stream.id), 0, frozenset[str]()
    kept = behaviour.snapshots
    if kept is None:
        rows: Sequence[Row] = await keeper.read(stream, 1)
    else:
        snapshot, rows = await keeper.read_tail(stream, kept.code)
        found: Any = UNREADABLE if snapshot is None else kept.load(snapshot.state)
        if snapshot is not None and found is not UNREADABLE:
            state, since, keys = found, snapshot.version, snapshot.keys
        elif snapshot is not None:
            rows = await keeper.read(stream, 1)
    state = behaviour.fold(state, events_of(stream, rows))
    return _Replayed(
        state,
        rows[-1].version if rows else since,
        since,
        sum(len(row.data) for row in rows),
        keys.union(*(row.keys for row in rows)),
        any(row.erased for row in rows),
    )


def events_of(stream: Stream, rows: Sequence[Row]) -> Iterator[Any]:
    """Stored rows as today's code has their data."""
    for row in rows:
        kind, place = EventType(row.type, row.schema_version), Place(stream, row.version, row.event_id)
        for _, data in read_events(kind, row.data, place):
            yield data
