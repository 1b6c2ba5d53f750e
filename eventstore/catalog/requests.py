"""Requests to a source's writer: rows that other processes add, and that it executes and answers.

Only the writer writes to a topic, so a process that wants a table read again, or decoding tried again, adds a
request. It is for one topic. Its writer sets it ``running``, then ``done`` or ``failed``, each with a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, insert, select, update

from tailrace.eventstore.catalog import tables
from tailrace.eventstore.catalog.database import Catalog
from tailrace.eventstore.errors import IntegrityError, UsageError
from tailrace.eventstore.model.time import from_micros, now_micros
from tailrace.eventstore.model.topic import TopicId


class RequestState(StrEnum):
    ASKED = "asked"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


RATE_MAX = 10**12  # rows per second
OPEN = (RequestState.ASKED, RequestState.RUNNING)


@dataclass(frozen=True, slots=True)
class Request:
    """``kind`` names the work (``snapshot``, …); ``detail`` is what came of it so far."""

    id: int
    source: str
    kind: str
    topic: TopicId
    options: Mapping[str, Any]
    state: RequestState
    detail: str
    asked_at: datetime
    ended_at: datetime | None


class Requests:
    """The requests of one store. Safe to share between threads."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def ask(self, kind: str, topics: Sequence[TopicId], **options: Any) -> list[Request]:
        """Leave one request per topic. One that is open already for the same work is given back instead."""
        table = tables.requests
        ids: list[int] = []
        with self._catalog.write() as connection:
            for topic in topics:
                found = connection.scalar(
                    select(table.c.id).where(
                        table.c.kind == kind, table.c.topic == topic.text, table.c.state.in_(OPEN)
                    )
                )
                values = {
                    "source": topic.source,
                    "kind": kind,
                    "topic": topic.text,
                    "options": json.dumps(options),
                    "state": RequestState.ASKED.value,
                    "detail": "",
                    "asked_at": now_micros(),
                    "ended_at": None,
                }
                if found is None:
                    found = connection.execute(
                        insert(table).values(values).returning(table.c.id)
                    ).scalar_one()
                ids.append(int(found))
        return self.get(ids)

    def get(self, ids: Collection[int]) -> list[Request]:
        table = tables.requests
        with self._catalog.read() as connection:
            query = select(table).where(table.c.id.in_(list(ids))).order_by(table.c.id)
            return [_request(row) for row in connection.execute(query)]

    def list_open(self, source: str, kind: str) -> list[Request]:
        """Requests that are not answered, oldest first."""
        table = tables.requests
        query = select(table).where(table.c.source == source, table.c.kind == kind, table.c.state.in_(OPEN))
        with self._catalog.read() as connection:
            return [_request(row) for row in connection.execute(query.order_by(table.c.id))]

    def answer(self, ids: Collection[int], state: RequestState, detail: str) -> None:
        """Only the source's writer calls this."""
        table = tables.requests
        ended = None if state in OPEN else now_micros()
        with self._catalog.write() as connection:
            connection.execute(
                update(table)
                .where(table.c.id.in_(list(ids)))
                .values(state=state.value, detail=detail, ended_at=ended)
            )


def _request(row: Row[*tuple[Any, ...]]) -> Request:
    """Any writer of the catalog may write one. Raises IntegrityError for what ``ask`` would not."""
    asked_at = from_micros(row.asked_at)
    assert asked_at is not None
    try:
        topic, options, state = TopicId.parse(row.topic), json.loads(row.options), RequestState(row.state)
        rate = options.get("rows_per_second")
        if rate is not None and not (isinstance(rate, int) and 0 <= rate < RATE_MAX):
            raise ValueError("a rate that is none")
    except (ValueError, AttributeError, RecursionError, UsageError):
        raise IntegrityError(
            f"request {row.id} in the catalog is not one that Tailrace wrote",
            hint=f"find out who did; DELETE FROM requests WHERE id = {row.id}, and ask again",  # noqa: S608
        ) from None
    return Request(
        id=row.id,
        source=row.source,
        kind=row.kind,
        topic=topic,
        options=options,
        state=state,
        detail=row.detail,
        asked_at=asked_at,
        ended_at=from_micros(row.ended_at),
    )
