"""The first rows of a bucket as plain commands: a server takes them in a third of the time of scripts.

A script compares the epoch of each row that it finds. A bucket without rows needs no comparison: any other process
that writes to it applies the same step, with the same bytes, until its fence moves.

The life of a bucket's load:

  1. *Watched*: each transaction of rows is executed only if the bucket's fence is as it was read (WATCH).
  2. *Sent*: transactions go over two connections, so that the server works on one while the other's answers are read.
  3. *Ended*: all rows are written; or the fence has moved, or the server refused a transaction. Then scripts write the
     remaining rows, some of them again, and report what is wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from redis import exceptions

from tailrace.eventstore.model.position import Fence
from tailrace.projections.sinks.contract import Target, key_column
from tailrace.projections.sinks.redis.connect import Client, run, server_of
from tailrace.projections.sinks.redis.row_format import (
    Fields,
    Piece,
    RowFormat,
    array_header,
    bulk_string,
    bulk_strings,
    command,
    integers,
)
from tailrace.projections.sinks.rows import content, encode_ahead, join_bytes

# Of one transaction: Redis does nothing else meanwhile.
_ROWS_AT_ONCE = 500
_BYTES_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class _Sent:
    """What was sent to a server: how many rows it contains, and how many answers come back, those to ``_look`` last."""

    rows: int
    data: bytes
    answers: int


class BulkLoad:
    """Plain commands of one step, over its own connections to each server."""

    def __init__(self, client: Client, target: Target, format: RowFormat, ttl_millis: int, to: Fence) -> None:
        self._client, self._target, self._format, self._to = client, target, format, to
        self._ttl = b"%d" % ttl_millis if ttl_millis else b""
        self._connections: dict[str, Sequence[Any]] = {}
        self._empty: dict[str, bool] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hang_up()

    def write(self, tag: str, rows: pa.Table) -> int:
        """Write rows; returns how many of them are written for certain. Scripts have to write the others."""
        if tag not in self._empty:
            self._empty[tag] = run(self._client, [("EXISTS", f"{tag}#keys")]) == [0]
        if not self._empty[tag]:
            return 0
        # The last bucket's fence is let go of: it has moved since, and would refuse this one's first transaction.
        unwatch = _Sent(0, command(b"UNWATCH") + _look(tag), 3)
        done, under_way = 0, deque((connection, unwatch) for connection in self._connection_pair(tag))
        for connection, _ in under_way:
            connection.send_packed_command([unwatch.data])
        for transaction in self._transactions(tag, rows):
            connection, before = under_way.popleft()
            if not self._is_accepted(connection, before):
                self._hang_up()
                return done
            done += before.rows
            connection.send_packed_command([transaction.data])
            under_way.append((connection, transaction))
        for connection, last in under_way:
            if not self._is_accepted(connection, last):
                self._hang_up()
                return done
            done += last.rows
        return done

    def _connection_pair(self, tag: str) -> Sequence[Any]:
        """Two connections to the bucket's server: it works on one while the answers of the other are read."""
        pool = server_of(self._client, tag).connection_pool
        where = str(pool.connection_kwargs)
        if where not in self._connections:
            self._connections[where] = (pool.make_connection(), pool.make_connection())
        return self._connections[where]

    def _hang_up(self) -> None:
        """Close the connections. What is under way may be executed or not: it belongs to this step."""
        for both in self._connections.values():
            for connection in both:
                connection.disconnect()
        self._connections.clear()

    def _is_accepted(self, connection: Any, sent: _Sent) -> bool:
        """Whether the server did what it was sent, and the bucket's fence has not moved."""
        *answers, held = _answers(connection, sent.answers)
        done = answers[-2] if sent.rows else []  # EXEC's, which are None when the fence had moved
        if not isinstance(done, list) or not isinstance(held, list):
            return False
        log_id, epoch = held
        fits = epoch is None or (log_id == self._to.log_id.encode() and int(epoch) < self._to.epoch)
        return fits and not any(isinstance(each, Exception) for each in done)

    def _transactions(self, tag: str, rows: pa.Table) -> Iterator[_Sent]:
        for encoded in encode_ahead(rows, partial(self._encode, tag)):
            yield from encoded

    def _encode(self, tag: str, rows: pa.Table) -> list[_Sent]:
        texts = key_column(self._target, rows)
        manifest, members = f"{tag}#keys".encode(), join_bytes(*bulk_strings(texts))
        commands = self._commands(bulk_strings(texts, f"{tag}:".encode()), rows)
        sent = []
        for start, end in _bounds(commands.rows):
            count = end - start
            parts = (
                command(b"MULTI"),
                array_header(count + 2) + bulk_string(b"SADD") + bulk_string(manifest),
                content(members[start:end]).data,
                commands.head(count),
                content(commands.rows[start:end]).data,
                command(b"EXEC"),
                _look(tag),
            )
            sent.append(_Sent(count, b"".join(parts), 2 + commands.count(count) + 1 + 2))
        return sent

    def _commands(self, key: Sequence[Piece], rows: pa.Table) -> _Commands:
        cells, ttl = self._format.cells(rows, self._to.epoch), self._ttl
        if isinstance(cells, Fields):
            before = (b"*", integers(pc.add(cells.words, 2)), b"\r\n")
            after = (array_header(3), bulk_string(b"PEXPIRE"), *key, bulk_string(ttl)) if ttl else ()
            line = (*before, bulk_string(b"HSET"), *key, *cells.pieces, *after)
            return _Commands(join_bytes(*line), 2 if ttl else 1)
        value = bulk_strings(cells)
        if not ttl:
            return _Commands(join_bytes(*key, *value), 0)
        line = (array_header(5), bulk_string(b"SET"), *key, *value, bulk_string(b"PX"), bulk_string(ttl))
        return _Commands(join_bytes(*line), 1)


@dataclass(frozen=True, slots=True)
class _Commands:
    """Rows as several commands each, or (0) as arguments of one command for all."""

    rows: pa.BinaryArray
    each: int

    def head(self, rows: int) -> bytes:
        return b"" if self.each else array_header(2 * rows + 1) + bulk_string(b"MSET")

    def count(self, rows: int) -> int:
        return rows * self.each or 1


def _look(tag: str) -> bytes:
    """Commands after which a transaction is executed only while the bucket's fence is as they show it."""
    fence = f"{tag}#fence".encode()
    return command(b"WATCH", fence) + command(b"HMGET", fence, b"log_id", b"epoch")


def _answers(connection: Any, count: int) -> list[Any]:
    """So many answers, refusals among them."""
    answers: list[Any] = []
    read = connection.read_response
    while len(answers) < count:
        try:
            while len(answers) < count:
                answers.append(read())
        except exceptions.ResponseError as error:
            answers.append(error)
    return answers


def _bounds(rows: pa.BinaryArray) -> Iterator[tuple[int, int]]:
    """Rows by transaction."""
    ends = np.concatenate(([0], np.cumsum(pc.binary_length(rows).to_numpy(), dtype=np.int64)))
    start = 0
    while start < len(rows):
        fitting = int(np.searchsorted(ends, ends[start] + _BYTES_AT_ONCE, "right")) - 1
        end = min(max(fitting, start + 1), start + _ROWS_AT_ONCE, len(rows))
        yield start, end
        start = end
