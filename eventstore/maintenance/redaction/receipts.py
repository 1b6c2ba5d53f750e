"""Receipts of redactions: what was erased, from which files, and where values may still lie."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select

from tailrace.eventstore.catalog import leases, tables
from tailrace.eventstore.log import control_epochs
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.metadata.topics import topic_ids
from tailrace.eventstore.model.time import from_micros
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment import hash_chain


@dataclass(frozen=True, slots=True)
class Rewritten:
    """One file that was replaced by one with ``rows`` rows erased."""

    old: str
    new: str
    rows: int


@dataclass(frozen=True, slots=True)
class Remnant:
    """A place where values may still lie, and what to do about it."""

    place: str
    detail: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """``keys`` are all keys that the rows had, the requested one first. ``upto``: rows of later epochs stay as they
    are. ``epoch`` is the control epoch that tells the log's readers; 0 in a plan.

    ``about``: the rows were chosen by this column, and the keys are those of all of them, of many rows.

    Where somebody was forgotten, these are the rows with values that the ``forgotten`` keys had encrypted: they stay as
    they are, and no key of theirs is named."""

    topic: str
    keys: tuple[tuple[str | None, ...], ...]
    columns: tuple[str, ...]
    upto: int
    rows: int
    files: tuple[Rewritten, ...]
    remnants: tuple[Remnant, ...] = ()
    about: str = ""
    forgotten: tuple[str, ...] = ()
    epoch: int = 0
    erased_at: datetime | None = None

    def to_json(self) -> str:
        """What is stored: all but ``epoch`` and ``erased_at``, which have columns of their own."""
        data = asdict(replace(self, epoch=0, erased_at=None))
        return json.dumps(data, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, epoch: int, erased_at: datetime | None) -> Receipt:
        data: Mapping[str, Any] = json.loads(text)
        return cls(
            topic=data["topic"],
            keys=tuple(tuple(key) for key in data["keys"]),
            columns=tuple(data["columns"]),
            upto=data["upto"],
            rows=data["rows"],
            files=tuple(Rewritten(**each) for each in data["files"]),
            remnants=tuple(Remnant(**each) for each in data["remnants"]),
            about=data.get("about", ""),
            forgotten=tuple(data.get("forgotten", ())),
            epoch=epoch,
            erased_at=erased_at,
        )


def add(connection: Connection, topic_id: int, receipt: Receipt) -> Receipt:
    """Store a receipt, inside the transaction of its redaction."""
    now = leases.now(connection)
    values = {"epoch": receipt.epoch, "topic_id": topic_id, "erased_at": now, "receipt": receipt.to_json()}
    connection.execute(insert(tables.redactions).values(values))
    return replace(receipt, erased_at=from_micros(now))


def add_with_epoch(
    log: Log, connection: Connection, source: Row[*tuple[Any, ...]], topic_id: int, receipt: Receipt
) -> Receipt:
    """Store a receipt and the control epoch that tells readers of its topic, whose hash covers it. ``source``: the
    locked row. Whoever commits wakes them (``Waker.notify``)."""
    log.waker.notify_in(connection)
    content = hash_chain.receipt_hash(receipt.to_json())
    epoch = control_epochs.add_control_epoch(connection, log.storage, source, content, {topic_id})
    return add(connection, topic_id, replace(receipt, epoch=epoch))


def erasures(log: Log, topics: Sequence[TopicId]) -> dict[TopicId, int]:
    """Topics among these of which rows were ever erased, each with the control epoch of its last redaction. In one look
    (``Log.look``) asked once: one that comes later has a later epoch."""
    question = ("erasures", *(topic.text for topic in topics))
    found: dict[TopicId, int] = log.look.answer(question, lambda: _erasures(log, topics))
    return found


def _erasures(log: Log, topics: Sequence[TopicId]) -> dict[TopicId, int]:
    table = tables.redactions
    with log.catalog.read() as connection:
        names = {number: topic for topic, number in topic_ids(connection, topics).items()}
        query = select(table.c.topic_id, func.max(table.c.epoch).label("epoch")).group_by(table.c.topic_id)
        return {
            names[row.topic_id]: row.epoch
            for row in connection.execute(query.where(table.c.topic_id.in_(list(names))))
        }


def receipts(log: Log, topics: Sequence[TopicId] = ()) -> list[Receipt]:
    """Receipts of these topics, or of all, oldest first. Raises UsageError for an unknown topic."""
    table = tables.redactions
    query = select(table).order_by(table.c.epoch)
    for topic in topics:
        log.topic(topic)
    with log.catalog.read() as connection:
        if topics:
            ids = topic_ids(connection, topics)
            query = query.where(table.c.topic_id.in_(list(ids.values())))
        rows = connection.execute(query).all()
    return [Receipt.from_json(row.receipt, row.epoch, from_micros(row.erased_at)) for row in rows]
