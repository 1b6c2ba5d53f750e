"""One input of a process, exactly once: its state, what it leads to, and that it came, in one transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, cast
from uuid import NAMESPACE_OID, UUID, uuid5

from tailrace.eventstore.errors import TransientError, UsageError
from tailrace.eventstore.streams.blocking import finish
from tailrace.eventstore.streams.context import context, metadata_json
from tailrace.eventstore.streams.database.connection import Ask, DatabaseConnection, ask_of, in_transaction
from tailrace.eventstore.streams.database.source import SourceStreams
from tailrace.eventstore.streams.database.timers import DueTimer, Timers
from tailrace.eventstore.streams.deciding.decider import Rejected
from tailrace.eventstore.streams.deciding.handle import behaviour_of, handling
from tailrace.eventstore.streams.deciding.snapshots import UNREADABLE, Every
from tailrace.eventstore.streams.deciding.transactions import (
    BLOCKING,
    TransactionOwner,
    committing,
    owns_transactions,
)
from tailrace.eventstore.streams.models.event_types import codec_of, event
from tailrace.eventstore.streams.models.upcasters import Place, read_events
from tailrace.eventstore.streams.personal.keys import KeyStore
from tailrace.eventstore.streams.reacting.manager import (
    Cancel,
    Do,
    Due,
    End,
    Output,
    ProcessManager,
    Refused,
    Timer,
)
from tailrace.eventstore.streams.recorded import Recorded
from tailrace.eventstore.streams.rows import EventType, Row, Snapshot
from tailrace.eventstore.streams.stream import Stream
from tailrace.eventstore.streams.writing.append import new_rows

_TRIES: Final = 10
_REFUSALS_MAX: Final = 10  # one after the other: more is a circle
_STATELESS, _EVERY = "stateless", Every(events=50)


@event("tailrace_reacted")
@dataclass(frozen=True)
class Reacted:
    """What is kept of an input, in the stream of the instance: the event (by its stored type), or that a timer was due
    or a command refused, or that an operator ended it; what it led to, in words; and whether the instance ended."""

    kind: Literal["event", "due", "refused", "ended"]
    data: dict[str, Any]
    type: str = ""
    version: int = 0
    did: tuple[str, ...] = ()
    ended: bool = False


def react(
    target: DatabaseConnection | TransactionOwner, manager: ProcessManager[Any, Any], recorded: Recorded[Any]
) -> tuple[Output, ...] | None:
    """React to an event: run its commands, set and cancel its timers. Gives what it led to; None for an event that is
    for no instance, for one that ended, or that was reacted to before: it may come as often as it likes.

    On a connection it is part of the caller's transaction, if there is one; on a SQLAlchemy engine or a pool of psycopg
    it commits one of its own, again after 40001 and 40P01. What commands raise comes out as it is, and nothing of it is
    done, but for ``Rejected``, which is an input. Raises UsageError for other outputs than those of processes,
    TransientError when somebody else always was faster.
    """

    async def work(connection: DatabaseConnection) -> tuple[Output, ...] | None:
        async with in_transaction(connection):
            return await reacting(ask_of(connection), manager, recorded)

    if owns_transactions(target):
        result, _ = finish(committing(BLOCKING, target, work))
        return result
    return finish(work(cast("DatabaseConnection", target)))


async def reacting(
    ask: Ask, manager: ProcessManager[Any, Any], recorded: Recorded[Any]
) -> tuple[Output, ...] | None:
    """``react`` inside a transaction."""
    instance = manager.instance_of(recorded.data)
    if instance is None:
        return None
    id = uuid5(NAMESPACE_OID, f"{manager.name}/{recorded.event_id}/{recorded.part}")
    return await _reacting(ask, manager, instance, recorded.data, id, partial(context, recorded))


def fire_timer(owner: TransactionOwner, manager: ProcessManager[Any, Any], attempts: int = 5) -> bool:
    """React to one timer that is due, if any is; whether one was. One that fails is tried again later, with growing
    pauses, and after so many attempts waits until somebody asks for it; others go on. Raises errors of the database."""
    taken: list[DueTimer] = []

    async def fire(connection: DatabaseConnection) -> None:
        taken.clear()
        ask = ask_of(connection)
        timer = await Timers(ask, manager.name).take()
        if timer is not None:
            taken.append(timer)
            due = Due(timer.name, timer.at, timer.instance)
            await _reacting(
                ask, manager, timer.instance, due, timer.id, partial(context, causation_id=str(timer.id))
            )

    try:
        finish(committing(BLOCKING, owner, fire))
    except Exception as error:
        if not taken:
            raise
        (timer,) = taken
        said = f"{type(error).__name__}: {error}"
        pause = min(0.2 * 2**timer.tries, 300.0)

        async def note(connection: DatabaseConnection) -> None:
            await Timers(ask_of(connection), manager.name).failed(timer.id, said, attempts, pause)

        finish(committing(BLOCKING, owner, note))
    return bool(taken)


async def _reacting(
    ask: Ask,
    manager: ProcessManager[Any, Any],
    instance: str,
    input: object,
    id: UUID,
    because: Callable[[], AbstractContextManager[None]],
    refusals: int = 0,
) -> tuple[Output, ...] | None:
    streams, stream = SourceStreams(ask), Stream(manager.name, instance)
    with because():
        for _ in range(_TRIES):
            past = await _past(streams, manager, stream)
            if past.ended and not refusals:
                return None
            outputs = manager.outputs(input, past.state)
            reacted, keys = await _reacted(streams.keys, input, outputs, ended=past.ended)
            new = await new_rows(streams.keys, [reacted], [id])
            outcome, reached = await streams.write_once(stream, past.version, new, metadata_json(None))
            if outcome == "repeated":
                return None
            if outcome == "appended":
                state = manager.after(past.state, input)
                now = _Past(state, reached, past.since, reacted.ended, past.keys | keys, past.erased)
                await _keep(streams, manager, stream, now, len(new[0].data))
                for number, output in enumerate(outputs):
                    refused = await _do(ask, manager.name, instance, output)
                    if refused is not None:
                        if refusals == _REFUSALS_MAX:
                            raise UsageError(
                                f"process {manager.name!r} answers refused commands with refused commands",
                                hint="end it where a command is refused again",
                            )
                        inner = uuid5(id, str(number))
                        await _reacting(ask, manager, instance, refused, inner, context, refusals + 1)
                return outputs
    raise TransientError(f"{stream} changed at each of {_TRIES} tries to react", hint="try again")


@dataclass(frozen=True, slots=True)
class _Past:
    """What an instance had so far: its state and whether it ended, at a version of its stream. ``since``: that of its
    snapshot, 0 without one. ``keys``: those of the personal values that the state follows from."""

    state: Any
    version: int
    since: int
    ended: bool
    keys: frozenset[str] = frozenset()
    erased: bool = False  # some of these


async def _past(streams: SourceStreams, manager: ProcessManager[Any, Any], stream: Stream) -> _Past:
    past, rows = _Past(manager.initial_state, 0, 0, ended=False), None
    code = _code(manager)
    if code is not None:
        snapshot, rows = await streams.read_tail(stream, code)
        if snapshot is not None:
            kept = json.loads(snapshot.state)
            state = manager.initial_state
            if manager.snapshots is not None:
                state = manager.snapshots.load(json.dumps(kept["state"]))
            if state is UNREADABLE:
                rows = None
            else:
                past = _Past(state, snapshot.version, snapshot.version, kept["ended"], snapshot.keys)
    for row in await streams.read(stream, 1) if rows is None else rows:
        reacted = codec_of(Reacted).parse(row.data)
        state = past.state
        if manager.evolve is not None:
            for input in _inputs(stream, row, reacted):
                state = manager.after(state, input)
        past = replace(
            past,
            state=state,
            version=row.version,
            ended=past.ended or reacted.ended,
            keys=past.keys | row.keys,
            erased=past.erased or row.erased,
        )
    return past


def has_ended(rows: Sequence[Row]) -> bool:
    """Whether an instance did, by the rows of its stream."""
    return any(codec_of(Reacted).parse(row.data).ended for row in rows)


def _code(manager: ProcessManager[Any, Any]) -> str | None:
    """Whose snapshots these are; None where there are none. Without ``evolve`` there is no state to be wrong."""
    if manager.evolve is None:
        return _STATELESS
    return None if manager.snapshots is None else manager.snapshots.code


async def _keep(
    streams: SourceStreams, manager: ProcessManager[Any, Any], stream: Stream, now: _Past, size: int
) -> None:
    """Keep a snapshot where one is due."""
    code = _code(manager)
    every = _EVERY if manager.evolve is None else manager.snapshot
    if code is not None and not now.erased and every is not None and every.due(now.version - now.since, size):
        state = None if manager.snapshots is None else json.loads(manager.snapshots.dump(now.state))
        text = json.dumps({"ended": now.ended, "state": state})
        await streams.write_snapshot(stream, Snapshot(now.version, text, now.keys), code)


def _inputs(stream: Stream, row: Row, reacted: Reacted) -> list[object]:
    """The input that was kept, as today's code has it."""
    match reacted.kind:
        case "due":
            at = datetime.fromisoformat(reacted.data["at"])
            return [Due(reacted.data["name"], at, stream.id)]
        case "refused":
            return [Refused(**reacted.data, key=stream.id)]
        case "event":
            place = Place(stream, row.version, row.event_id)
            kind = EventType(reacted.type, reacted.version)
            return [each for _, each in read_events(kind, json.dumps(reacted.data), place)]
        case "ended":
            return []


async def _reacted(
    store: KeyStore, input: object, outputs: Sequence[Output], *, ended: bool
) -> tuple[Reacted, frozenset[str]]:
    """What is kept of an input, its personal values encrypted, and with which keys."""
    did = tuple(map(_words, outputs))
    ended = ended or any(isinstance(each, End) for each in outputs)
    match input:
        case Due(name=name, at=at):
            data = {"name": name, "at": at.isoformat()}
            return Reacted(kind="due", data=data, did=did, ended=ended), frozenset()
        case Refused(stream=stream, command=command, reason=reason):
            data = {"stream": stream, "command": command, "reason": reason}
            return Reacted(kind="refused", data=data, did=did, ended=ended), frozenset()
        case _:
            (row,) = await new_rows(store, [input])
            name, version = row.type
            kept = Reacted(
                kind="event", data=json.loads(row.data), type=name, version=version, did=did, ended=ended
            )
            return kept, row.keys


def _words(output: Output) -> str:
    match output:
        case Do(decider=decider, id=id, command=command):
            return f"do {type(command).__name__} on {behaviour_of(decider).category}/{id}"
        case Timer(name=name, at=at):
            return f"timer {name} at {at.isoformat()}"
        case Cancel(name=name):
            return f"cancel {name}"
        case End():
            return "end"


async def _do(ask: Ask, process: str, instance: str, output: Output) -> Refused | None:
    """One output; that a command was refused is an input of the process."""
    timers = Timers(ask, process)
    match output:
        case Do(decider=decider, id=id, command=command):
            try:
                await handling(SourceStreams(ask), decider, id, command)
            except Rejected as refused:
                stream = f"{behaviour_of(decider).category}/{id}"
                return Refused(stream, type(command).__name__, refused.reason, instance)
        case Timer(name=name, at=at):
            await timers.put(instance, name, at)
        case Cancel(name=name):
            await timers.cancel(instance, name)
        case End():
            await timers.end(instance)
    return None
