"""A query of the user's, run in the source at a position that the log has: one SELECT in a read-only transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import pyarrow as pa
from psycopg import sql

from tailrace.cdc.context import Task
from tailrace.cdc.postgres import errors
from tailrace.cdc.postgres.connect import Address, quote, translate_errors
from tailrace.cdc.repair.position import Patience, Row, SnapshotAtLog, snapshot_at_log
from tailrace.cdc.topics import Topics
from tailrace.eventstore.errors import OperatorError, TailraceError, UsageError
from tailrace.eventstore.model.schema import Column
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import PostgresSourceSettings
from tailrace.eventstore.store import Store

_ROWS = 10_000  # of one fetch
_PADDED, _PADDED_LIST = 1042, 1014  # character(n), and an array of it
_INSTANT = 1184  # timestamptz
# Errors of the query's own: it cannot be understood (42), does what is not supported or allowed (0A, 25), or fails on
# values (21, 22).
_OF_THE_QUERY = ("0A", "21", "22", "25", "42")


class QueryFailed(UsageError):
    """The source does not take the query, or fails while it computes it."""


@dataclass(frozen=True, slots=True)
class SourceAtLog:
    """The source at ``lsn``: what stands for a topic in a query, and its answers. ``what`` is asked, for messages."""

    snapshot: SnapshotAtLog
    address: Address
    topics: Topics
    what: str

    @property
    def lsn(self) -> int:
        return self.snapshot.lsn

    def relation(self, topic: TopicId, columns: Sequence[Column]) -> str:
        """What stands behind FROM for the rows and these columns of a topic, before an alias. Raises OperatorError when
        the source does not have them any more."""
        table = self.snapshot.tables.get(self.topics.relid(topic))
        if table is None:
            raise OperatorError(
                f"the source has no table of topic {topic.text} any more",
                hint="`tailrace status` says what became of it",
            )
        named = f"{'' if table.kind == 'p' else 'ONLY '}{quote(table.schema)}.{quote(table.name)}"
        here = {column.id: column.name for column in columns}
        there = {column.id: column.name for column in (*table.columns, *table.generated)}
        if here == there and not table.row_filter:
            return named
        for number, name in here.items():
            if number not in there:
                raise OperatorError(
                    f"column {name} of topic {topic.text} was dropped in the source",
                    hint="leave it out of the query",
                )
        cells = ", ".join(f"{quote(there[number])} AS {quote(name)}" for number, name in here.items())
        where = f" WHERE ({table.row_filter})" if table.row_filter else ""
        return f"(SELECT {cells} FROM {named}{where})"  # noqa: S608 (quoted names, the server's own condition)

    def columns(self, query: str) -> Mapping[str, int]:
        """The oids of the types of a query's columns, by name. Raises QueryFailed, also for a name that is there
        twice."""
        with self._running(), self._cursor() as cursor:
            cursor.execute(_composed(f"{_select('*', query)} LIMIT 0"))
            described = cursor.description or []
        names = [column.name for column in described]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise QueryFailed(
                f"{self.what} has two columns {', '.join(twice)} in the source", hint="rename one of them"
            )
        return {column.name: column.type_code for column in described}

    def texts(
        self, query: str, columns: Mapping[str, int], lists: Collection[str]
    ) -> Iterator[pa.RecordBatch]:
        """The rows, in some of the query's columns: what Postgres prints; of ``lists`` the JSON of arrays. Padded texts
        come without the padding, moments in UTC. Raises QueryFailed."""
        cells = ", ".join(_cell(name, oid, as_list=name in lists) for name, oid in columns.items())
        with self._running(), self._cursor() as cursor:
            cursor.execute(_composed(_select(cells, query)))
            while rows := cursor.fetchmany(_ROWS):
                texts = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
                yield pa.RecordBatch.from_arrays(texts, names=list(columns))

    def _cursor(self) -> psycopg.ServerCursor[Row]:
        """It is declared by the extended protocol, which takes one statement."""
        return psycopg.ServerCursor(self.snapshot.connection, "answer")

    @contextmanager
    def _running(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self._failure(error) from None

    def _failure(self, error: psycopg.Error) -> TailraceError:
        words = errors.server_text(error)
        if words is None or not (error.sqlstate or "").startswith(_OF_THE_QUERY):
            return errors.from_psycopg(error, f"asking {self.what}", self.address.text)
        return QueryFailed(
            f"the source does not answer {self.what}: {words} (SQLSTATE {error.sqlstate})",
            hint="it runs there as it is written: write it in SQL that Postgres knows",
        )


@contextmanager
def source_at_log(
    store: Store,
    name: str,
    settings: PostgresSourceSettings,
    topics: Sequence[TopicId],
    what: str,
    patience: Patience,
    time_zone: str = "UTC",
) -> Iterator[SourceAtLog]:
    """The source at a position that the log has, with the tables of some topics, to ask ``what``, whose clocks are in
    ``time_zone``. Raises what ``snapshot_at_log`` raises."""
    task = Task.of(store, name, settings)
    with snapshot_at_log(task, topics, patience, f"verify --against-source {name}") as snapshot:
        with translate_errors("setting up the session", task.address):
            # The user's query finds what it would find in a session of the user's.
            snapshot.connection.execute("SET LOCAL search_path TO DEFAULT")
            snapshot.connection.execute("SET LOCAL cursor_tuple_fraction = 1")
            snapshot.connection.execute("SELECT pg_catalog.set_config('TimeZone', %s, true)", [time_zone])
        yield SourceAtLog(snapshot, task.address, Topics.read(store, name), what)


def _select(cells: str, query: str) -> str:
    return f"SELECT {cells} FROM (\n{query}\n) AS answer"  # noqa: S608 (one SELECT of the user's, read only)


def _cell(name: str, oid: int, *, as_list: bool) -> str:
    """What the output function of a type prints (``format`` does that; a cast to text differs for some types)."""
    cell = quote(name)
    if as_list:
        return f"pg_catalog.to_json({cell}{'::text[]' if oid == _PADDED_LIST else ''})::text"
    if oid == _PADDED:
        return f"{cell}::text"
    if oid == _INSTANT:
        return f"({cell} AT TIME ZONE 'UTC')::text || '+00'"
    return f"CASE WHEN pg_catalog.num_nulls({cell}) = 0 THEN pg_catalog.format('%s', {cell}) END"


def _composed(text: str) -> sql.SQL:
    return sql.SQL(text)
