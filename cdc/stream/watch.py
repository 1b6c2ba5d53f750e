"""Check the source beside a running session: new topics, open requests, tables nobody captures."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

from psycopg import Connection

from tailrace.cdc.context import Task
from tailrace.cdc.policy.patterns import TablePatterns
from tailrace.cdc.postgres.connect import connect
from tailrace.cdc.postgres.ddl_trigger import Trigger, read_trigger
from tailrace.cdc.postgres.publication import Publication, read_publication
from tailrace.cdc.postgres.tables import Table, apply_publication, read_tables, written_tables
from tailrace.cdc.setup.adopted import unconfirmed
from tailrace.cdc.setup.known_partitions import remember_partitions
from tailrace.cdc.setup.table_changes import (
    loadable_tables,
    lost_topics,
    reidentified_topics,
    republished_topics,
)
from tailrace.cdc.setup.table_choice import own_tables, problem_of, uncaptured_tables
from tailrace.cdc.stream import requests
from tailrace.cdc.topics import Topics, TopicsChanged
from tailrace.eventstore.errors import TransientError
from tailrace.eventstore.model.topic import TopicId

Row = tuple[object, ...]
_CHECK_SECONDS = 0.5
_TABLES_SECONDS = 5.0
_SHARE = 4  # where checks take long (many tables), pauses are that many times as long


class Watcher:
    """Runs in a thread of its own. ``loading``: incomplete topics that the session loads. ``unconfirmed``: the source
    was taken over, and that was not confirmed when the session began."""

    def __init__(self, task: Task, loading: Collection[TopicId], *, unconfirmed: bool = False) -> None:
        self._unconfirmed = unconfirmed
        self._store = task.store
        self._source = task.name
        self._address = task.address
        self._loading = loading
        self._progress = task.progress
        self._patterns = TablePatterns.parse(task.settings.tables)
        self._policies = task.policies
        self._tables_at = 0.0

    def run(self, stop: threading.Event) -> None:
        """Returns when ``stop`` is set; raises TopicsChanged when the session must begin again."""
        while not stop.is_set():
            try:
                with connect(self._address, "tailrace watch") as connection:
                    pause = _CHECK_SECONDS
                    while not stop.wait(pause):
                        began = time.monotonic()
                        self._check(connection)
                        pause = max(_CHECK_SECONDS, _SHARE * (time.monotonic() - began))
            except TopicsChanged:
                raise
            except TransientError:
                stop.wait(_CHECK_SECONDS)  # the stream finds out too, and reconnects

    def _check(self, connection: Connection[Row]) -> None:
        state = self._store.source(self._source)
        assert state is not None
        publication = read_publication(connection, state.publication, self._address)
        topics = Topics.read(self._store, self._source)
        lost = lost_topics(topics, publication)
        if lost:
            raise TopicsChanged("; ".join(f"{topic.text}: {reason}" for topic, reason in lost.items()))
        if self._unconfirmed and unconfirmed(self._store, state) is None:
            raise TopicsChanged("taking the source over was confirmed")
        requests.answer(self._store, self._source)
        if requests.is_waiting(self._store, self._source):
            raise TopicsChanged("there are requests to read or decode topics again")
        if any(topic not in self._loading for topic in topics.pending_loads):
            loadable = loadable_tables(topics, publication, read_tables(connection, self._address))
            ready = [topic for topic in loadable.values() if topic not in self._loading]
            if ready:
                raise TopicsChanged(f"{_names(ready)} waiting for first load")
        republished = republished_topics(topics, publication)
        if republished and not any(topic in self._loading for topic in topics.incomplete):
            raise TopicsChanged(f"{_names(republished)} with other partitions")
        if publication is not None and time.monotonic() >= self._tables_at:
            self._tables_at = time.monotonic() + _TABLES_SECONDS
            tables = apply_publication(read_tables(connection, self._address), publication)
            remember_partitions(self._store, self._source, self._policies, tables, topics.schemas)
            by_trigger = read_trigger(connection, self._address) is Trigger.ACTIVE
            changed = [] if by_trigger else reidentified_topics(topics, tables)
            if changed:
                raise TopicsChanged(
                    f"{_names(changed)} with other columns or another key than the stream shows"
                )
            schema = self._store.catalog.schema if self._store.catalog.kind == "postgres" else None
            written = written_tables(connection, self._address, tables)
            self._warn(publication, tables)
            own = own_tables(tables, schema, written)
            pending = uncaptured_tables(tables, self._patterns, publication, topics, own)
            self._progress.set_pending(table.text for table in pending)
            for table in pending:
                self._progress.report(
                    f"table {table.text} matches the source's patterns but is not captured; `tailrace init` takes it up"
                )

    def _warn(self, publication: Publication, tables: Collection[Table]) -> None:
        """Report changes made in the source that lose changes or refuse writes."""
        if publication.mismatch:
            self._progress.report(
                f"publication {publication.name} was changed and loses changes: {publication.mismatch}; repair it: its "
                "topics are then read again"
            )
        for table in tables:
            if table.relid in publication.entries and (problem := problem_of(table)) is not None:
                keyless = table.columns and not table.key and not table.published_badly
                refused = "; the server refuses UPDATE and DELETE of it" if keyless else ""
                self._progress.report(
                    f"published table {table.text}: {problem[0]}{refused}: "
                    f"{problem[1]}, or take it out of publication {publication.name}"
                )


def _names(topics: Collection[TopicId]) -> str:
    return ", ".join(topic.text for topic in topics)
