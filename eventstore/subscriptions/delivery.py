"""Event by event to a handler: retries with back-off, parking, and keys beside each other but each in its order."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
from sqlalchemy import Connection

from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.log.personal_values import opened
from tailrace.eventstore.model.topic import Op, TopicId, TopicKind
from tailrace.eventstore.streams.database.key_places import KeyPlace
from tailrace.eventstore.streams.recorded import Recorded
from tailrace.eventstore.subscriptions import dead_letters
from tailrace.eventstore.subscriptions.assignment import Slot
from tailrace.eventstore.subscriptions.batch import Batch
from tailrace.eventstore.subscriptions.dead_letters import FailedEvent, ParkedEvent
from tailrace.eventstore.subscriptions.rows.cells import dicts
from tailrace.eventstore.subscriptions.rows.changes import COLUMNS_OF_CHANGE, Change, change, column_names
from tailrace.eventstore.subscriptions.rows.events import EventFilter, EventReader, event_rows

_OF_EVENT = ["_offset", "_epoch", "_hash", "key"]

Handler = Callable[["Change | Recorded[Any]"], None]


@dataclass(frozen=True, slots=True)
class Retries:
    """``attempts`` in all; pauses double from ``pause`` to ``longest_pause`` seconds, shortened by chance."""

    attempts: int
    pause: float
    longest_pause: float

    def pauses(self) -> Iterator[float]:
        for number in range(self.attempts - 1):
            yield min(self.pause * 2**number, self.longest_pause) * random.uniform(0.5, 1)


@dataclass(frozen=True, slots=True)
class _Event:
    offset: int
    epoch: int
    key_hash: int
    key: str
    values: Sequence[Change | Recorded[Any]]  # none: of no interest; several: an upcaster split it


class Owner(Protocol):
    """What a delivery needs of the member that owns the partitions."""

    @property
    def database(self) -> Catalog: ...
    @property
    def log(self) -> Log: ...
    @property
    def group_name(self) -> str: ...
    def alive(self) -> None: ...
    def answers_for(self, slot: Slot, key_hash: int) -> Slot | None: ...
    def require(self, connection: Connection, slot: Slot) -> None: ...


class Delivery:
    """What ``Member.process`` runs.

    Each event of a batch goes to the handler; keys beside each other, the events of one key in order. An event whose
    last attempt failed is parked, and later events of its key wait behind it. A replay gives parked events again.
    """

    def __init__(
        self,
        owner: Owner,
        handler: Handler,
        retries: Retries,
        *,
        keep_order: bool,
        workers: int,
        wanted: EventFilter,
    ) -> None:
        self._owner = owner
        self._handler = handler
        self._retries = retries
        self._keep_order = keep_order
        self._wanted = wanted
        self._pool = ThreadPoolExecutor(workers, "tailrace-handler")
        self._domain: dict[TopicId, bool] = {}

    def close(self) -> None:
        self._pool.shutdown()

    def batch(self, batch: Batch, stop: threading.Event) -> list[FailedEvent] | None:
        """Handle a batch; what is to be parked. None when ``stop`` came first: the batch is not done."""
        held = dead_letters.held_keys(self._owner.database, self._owner.group_name, batch.topic)
        failed: list[FailedEvent] = []
        for run in _split_at_truncates(list(self._events(batch.topic, batch.rows))):
            keys: dict[int, list[_Event]] = {}
            for event in run:
                keys.setdefault(event.key_hash, []).append(event)
            handle = partial(self._key, held=frozenset(held), stop=stop)
            for outcome in self._pool.map(handle, keys.values()):
                if outcome is None:
                    return None
                failed += outcome
            held |= {each.key_hash for each in failed if each.holds_key}
        return sorted(failed, key=lambda each: each.offset)

    def _key(
        self, events: Sequence[_Event], held: frozenset[int], stop: threading.Event
    ) -> list[FailedEvent] | None:
        """The events of one key, in order."""
        failed: list[FailedEvent] = []
        waits = events[0].key_hash in held
        for event in events:
            if waits:
                failed.append(self._failure(event, 0, "waits behind an earlier event of its key"))
                continue
            error = self._attempt(event.values, stop)
            if error is None:
                continue
            if stop.is_set():
                return None
            failed.append(self._failure(event, self._retries.attempts, error))
            waits = self._keep_order
        return failed

    def _failure(self, event: _Event, attempts: int, error: str) -> FailedEvent:
        return FailedEvent(
            event.offset, event.epoch, event.key_hash, event.key, attempts, error, self._keep_order
        )

    def _attempt(self, values: Sequence[Change | Recorded[Any]], stop: threading.Event) -> str | None:
        """None when the handler took them; otherwise its last error."""
        error = self._once(values)
        for pause in self._retries.pauses():
            if error is None or stop.wait(pause):
                return error
            self._owner.alive()
            error = self._once(values)
        return error

    def _once(self, values: Sequence[Change | Recorded[Any]]) -> str | None:
        try:
            for value in values:
                self._handler(value)
        except Exception as error:  # noqa: BLE001 (whatever a handler raises is its answer)
            return f"{type(error).__name__}: {error}"
        return None

    def replay(self, stop: threading.Event) -> None:
        """Give parked events again whose replay was requested, of this member's keys, each key's oldest first."""
        database = self._owner.database
        requested = dead_letters.parked_events(database, self._owner.group_name, replay=True)
        keys: dict[tuple[Slot, int], list[ParkedEvent]] = {}
        for each in requested:
            ours = self._owner.answers_for(each.slot, each.key_hash)
            if ours is not None:
                keys.setdefault((ours, each.key_hash), []).append(each)
        for (ours, _), events in keys.items():
            for at, each in enumerate(events):
                error = self._attempt(self._read(each), stop)
                if error is not None and stop.is_set():
                    return
                with database.write() as connection:
                    self._owner.require(connection, ours)
                    if error is None:
                        dead_letters.remove(connection, each.id)
                    else:
                        ids = [one.id for one in events[at:]]
                        dead_letters.record_failure(connection, ids, each.id, self._retries.attempts, error)
                if error is not None:
                    break

    def _read(self, each: ParkedEvent) -> Sequence[Change | Recorded[Any]]:
        log = self._owner.log
        wanted = {each.slot.partition: (each.offset, each.offset + 1)}
        for rows in log.read(each.slot.topic, after_epoch=each.epoch - 1, offsets=wanted):
            table = opened(pa.Table.from_batches([rows]), self._keys_of(each.slot.topic))
            for event in self._events(each.slot.topic, table):
                return event.values
        return ()

    def _keys_of(self, topic: TopicId) -> KeyPlace | None:
        return self._owner.log.keys_of(topic.source) if self._is_events(topic) else None

    def _events(self, topic: TopicId, rows: pa.Table) -> Iterator[_Event]:
        if not rows.num_rows:
            return
        values: Iterable[Sequence[Change | Recorded[Any]]]
        if self._is_events(topic):
            told = dicts(rows.select(_OF_EVENT))
            values = map(EventReader(topic, self._wanted).read, event_rows(rows))
        else:
            told, names = dicts(rows.select([*COLUMNS_OF_CHANGE, "_hash"])), column_names(rows.schema)
            values = ([change(topic, row, names)] for row in told)
        for row, found in zip(told, values, strict=True):
            key = json.dumps(row["key"], default=str, ensure_ascii=False)
            yield _Event(row["_offset"], row["_epoch"], row["_hash"], key, found)

    def _is_events(self, topic: TopicId) -> bool:
        if topic not in self._domain:  # what a topic is never changes
            self._domain[topic] = self._owner.log.topic(topic).kind is TopicKind.EVENTS
        return self._domain[topic]


def _split_at_truncates(events: Sequence[_Event]) -> Iterator[list[_Event]]:
    """A truncate concerns every key: nothing runs beside it."""
    run: list[_Event] = []
    for event in events:
        if any(isinstance(value, Change) and value.op is Op.TRUNCATE for value in event.values):
            yield run
            yield [event]
            run = []
        else:
            run.append(event)
    yield run
