"""A snapshot that is made on purpose: from the log, where the events are not in their table any more."""

from __future__ import annotations

from typing import Any

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.streams.blocking import finish
from tailrace.eventstore.streams.database.source import AnyConnection, keeper_of
from tailrace.eventstore.streams.deciding.decider import Decider
from tailrace.eventstore.streams.deciding.handle import events_of
from tailrace.eventstore.streams.rows import Keeper, Snapshot
from tailrace.eventstore.streams.stream import Stream


def keep_snapshot(
    connection: AnyConnection, decider: Decider[Any, Any, Any], id: str, streams: Keeper | None = None
) -> int:
    """Make the snapshot of a stream of all its events, whatever is due, and give its version. ``streams``: where they
    are read (``store.streams(SOURCE)``, the log), by default on the connection.

    Raises UsageError for a decider without snapshots, and for a stream without events; otherwise what ``load`` does.
    """
    kept = decider.snapshots
    if kept is None:
        raise UsageError(
            f"decider {decider.category!r} keeps no snapshots", hint="Decider(…, snapshot=Every(events=200))"
        )
    keeper, stream = keeper_of(connection), Stream(decider.category, id)
    rows = finish((streams or keeper).read(stream, 1))
    if not rows:
        raise UsageError(f"{stream} has no events", hint="is the log behind, or the id another one?")
    state = decider.fold(decider.begin(id), events_of(stream, rows))
    keys = frozenset[str]().union(*(row.keys for row in rows))
    finish(keeper.write_snapshot(stream, Snapshot(rows[-1].version, kept.dump(state), keys), kept.code))
    return rows[-1].version
