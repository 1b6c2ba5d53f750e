"""The text of values that came in binary, as their types' output functions print it under capture's settings.

Plain types are printed here (``tailrace.cdc.wire.binary``). All others go through the server: a parameter in binary,
selected as text, passes its type's receive function and then its output function, and nothing is written. Types that
need the catalog to print (``regclass``) are printed as the catalog is now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from psycopg import Connection, pq

from tailrace.cdc.postgres import errors
from tailrace.cdc.postgres.connect import Address, connect, encoding_of, translate_errors
from tailrace.cdc.wire.binary import PLAIN, Render
from tailrace.eventstore.errors import TransientError

Row = tuple[object, ...]
_VALUES_AT_ONCE = 1000  # a result has at most 1664 columns
_BYTES_AT_ONCE = 64 << 20
_DOING = "asking for the text of values in binary"
# A domain sends what its base type sends, and may hold what its constraints refuse by now.
_BASES = """
WITH RECURSIVE given AS (
  SELECT oid, oid AS base, typbasetype, typtype FROM pg_catalog.pg_type WHERE oid = ANY (%s::bigint[]::oid[])
  UNION ALL
  SELECT g.oid, t.oid, t.typbasetype, t.typtype FROM given g JOIN pg_catalog.pg_type t ON t.oid = g.typbasetype
)
SELECT oid::bigint, base::bigint, typtype::text FROM given WHERE typtype <> 'd'
"""


class Unrenderable(Exception):
    """A value that has no text: its place among the values given, and why."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Base:
    """What values of a type are sent as. ``label``: as an enum's label, which is what is printed."""

    oid: int
    label: bool

    @property
    def plain(self) -> Render | None:
        return bytes if self.label else PLAIN.get(self.oid)


def read_bases(connection: Connection[Row], address: Address, oids: Iterable[int]) -> dict[int, Base]:
    """The base types of types by oid; those that are gone are missing."""
    with translate_errors("reading the catalog", address):
        rows = connection.execute(_BASES, [sorted(set(oids))]).fetchall()
    return {int(str(oid)): Base(int(str(base)), kind == "e") for oid, base, kind in rows}


class Renderer:
    """Renders values as text, over a connection of its own that is opened when it is first needed."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Connection[Row] | None = None
        self._bases: dict[int, Base] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def texts(self, values: Sequence[tuple[int, memoryview]]) -> list[bytes]:
        """The texts of values, given with the oids of their types. Raises Unrenderable, TransientError."""
        self._learn({oid for oid, _ in values} - self._bases.keys())
        found: list[bytes] = [b""] * len(values)
        missing: list[int] = []
        for place, (oid, data) in enumerate(values):
            base = self._bases.get(oid)
            if base is None:
                raise Unrenderable(place, f"its type (oid {oid}) was dropped since")
            if base.plain is None:
                missing.append(place)
            else:
                found[place] = base.plain(data)
        for places in _batches(missing, values):
            for place, text in zip(places, self._ask(places, values), strict=True):
                found[place] = text
        return found

    def _learn(self, oids: set[int]) -> None:
        if not oids:
            return
        if self._connection is None:
            self._connection = connect(self._address, "tailrace capture")
        self._bases |= read_bases(self._connection, self._address, oids)

    def _ask(self, places: Sequence[int], values: Sequence[tuple[int, memoryview]]) -> list[bytes]:
        assert self._connection is not None
        pgconn = self._connection.pgconn
        pgconn.exec_(b"SET client_encoding = '" + encoding_of(pgconn).encode() + b"'")
        result = pgconn.exec_params(
            b"SELECT " + b", ".join(b"$%d" % (at + 1) for at in range(len(places))),
            [bytes(values[place][1]) for place in places],
            [self._bases[values[place][0]].oid for place in places],
            [pq.Format.BINARY] * len(places),
            pq.Format.TEXT,
        )
        if result.status == pq.ExecStatus.TUPLES_OK:
            return [result.get_value(0, at) or b"" for at in range(len(places))]
        error = errors.from_result(result, _DOING, self._address.text)
        if isinstance(error, TransientError):
            raise error
        if len(places) == 1:
            raise Unrenderable(places[0], error.message)
        return [text for place in places for text in self._ask([place], values)]


def _batches(places: Sequence[int], values: Sequence[tuple[int, memoryview]]) -> Iterator[list[int]]:
    batch: list[int] = []
    size = 0
    for place in places:
        batch.append(place)
        size += len(values[place][1])
        if len(batch) >= _VALUES_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
