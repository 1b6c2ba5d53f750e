"""Which buckets of a first load are complete in its table: the fence's row says it, committed together with their rows.

So a load that was cut off goes on after these buckets. Nobody reads the table before it has a fence. If two processes
load it, the one that finds buckets it did not write is fenced.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

import psycopg
from psycopg import sql

from tailrace.eventstore.errors import Fenced
from tailrace.eventstore.model.position import Fence
from tailrace.projections.sinks.contract import Target
from tailrace.projections.sinks.postgres.connect import begin

COLUMN = "loading"


@dataclass(frozen=True, slots=True)
class LoadedBuckets:
    """The step of which these ``buckets`` are in."""

    log_id: str
    epoch: int
    epoch_hash: str
    buckets: tuple[int, ...] = ()

    @classmethod
    def of(cls, to: Fence) -> LoadedBuckets:
        return cls(to.log_id, to.epoch, to.epoch_hash)

    def is_of(self, to: Fence) -> bool:
        return replace(self, buckets=()) == LoadedBuckets.of(to)

    def to_text(self) -> str:
        return json.dumps(asdict(self))


class LoadingRow:
    """The row of one generation in the fences' table, locked by the open transaction."""

    def __init__(self, connection: psycopg.Connection, fences: sql.Identifier, target: Target) -> None:
        self._connection, self._fences, self._target = connection, fences, target

    def read(self) -> LoadedBuckets | None:
        _, text = self._row(sql.SQL(""))
        return None if text is None else _parse(text)

    def forget(self) -> None:
        self._set(None)

    def add(self, before: LoadedBuckets, bucket: int) -> LoadedBuckets:
        """Commit what was written of a bucket, and begin the next transaction. Raises Fenced when another process wrote
        between the two."""
        after = replace(before, buckets=(*before.buckets, bucket))
        self._set(after.to_text())
        self._connection.commit()
        begin(self._connection)
        epoch, text = self._row(sql.SQL(" FOR UPDATE"))
        if epoch is not None or text != after.to_text():
            raise Fenced(
                f"{self._target}: another process loads it, too, and went on after bucket {bucket}",
                hint="let that one finish; what it wrote is the same",
            )
        return after

    def _row(self, lock: sql.SQL) -> tuple[int | None, str | None]:
        query = "SELECT epoch, loading FROM {} WHERE store = %s AND projection = %s AND generation = %s{}"
        row = self._connection.execute(sql.SQL(query).format(self._fences, lock), self._identity).fetchone()
        return (None, None) if row is None else (row[0], row[1])

    def _set(self, text: str | None) -> None:
        query = "UPDATE {} SET loading = %s WHERE store = %s AND projection = %s AND generation = %s"
        self._connection.execute(sql.SQL(query).format(self._fences), (text, *self._identity))

    @property
    def _identity(self) -> tuple[str, str, int]:
        return self._target.store, self._target.projection, self._target.generation


def _parse(text: str) -> LoadedBuckets:
    data = json.loads(text)
    return LoadedBuckets(**{**data, "buckets": tuple(data["buckets"])})
