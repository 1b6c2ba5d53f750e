"""Reading the live generation of a projection from an application: without Spark, the log or the catalog."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Protocol, Self

import pyarrow as pa

from tailrace.eventstore.errors import OperatorError, TransientError, UsageError
from tailrace.projections.sinks.columns import is_list

Row = dict[str, Any]
"""Column name to Python value: int, float, Decimal, str, bytes, date, time, datetime (``timezone.utc``), list, None."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A row that a search found. ``score`` compares hits of one search only. ``highlights`` has, for each ``text``
    column with words of the query, the part with most of them: escaped HTML with these words inside ``<b>``."""

    score: float
    row: Row
    highlights: Mapping[str, str] = field(default_factory=dict)


class GenerationMovedBack(TransientError):
    """A rollback, or a promotion of an older generation, took place: the live generation ``live`` is older than
    ``seen``, of which the reader has given rows. Forget what was kept of those rows and read again: the next call reads
    ``live``.

    Generations are ordered by when they were built. One that was built later for a past position (``--stale-ok``) is
    no older one."""

    def __init__(self, projection: str, seen: int, live: int) -> None:
        super().__init__(
            f"projection {projection!r} went back from generation {seen} to generation {live}",
            hint="forget what was kept of the newer one, then read again",
        )
        self.seen, self.live = seen, live


class SeenGeneration:
    """The generation whose rows a reader gave last. Threads that share a reader look up and note in any order, so each
    call says what was ``seen`` when it began."""

    def __init__(self, projection: str) -> None:
        self._projection = projection
        self._seen: int | None = None
        self._lock = threading.Lock()

    @property
    def seen(self) -> int | None:
        """None: it gave none yet."""
        return self._seen

    def reads(self, live: int, seen: int | None) -> None:
        """Note that rows of generation ``live`` are given next; ``seen`` is from before it was looked up. Raises
        GenerationMovedBack when it is an older one, unless another thread noted the same meanwhile."""
        with self._lock:
            noted = self._seen == live
            if self._seen == seen or live > max(self._seen or 0, seen or 0):
                self._seen = live
        if seen is not None and live < seen and not noted:
            raise GenerationMovedBack(self._projection, seen, live)


class Reader(Protocol):
    """Reads the live generation of one projection, across promotions. Threads may share it.

    A key is the value of the key column, or a tuple of values in the key's order, each of the type of its column
    (``tailrace.projections.sinks.keys``). All methods raise UsageError for any other key, OperatorError while no
    generation is live, TransientError when the sink is out of reach, GenerationMovedBack once after a rollback.
    """

    def get(self, key: object) -> Row | None:
        """The row of a key, None when there is none."""

    def many(self, keys: Sequence[object]) -> list[Row | None]:
        """The rows of keys, in the order of the keys, by one round trip. All are of one generation."""

    def search(self, query: str, limit: int = 10) -> list[Hit]:
        """The best hits first. Raises UsageError from a reader whose sink cannot search, and for a bad query."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class KeyReader(ABC):
    """What readers share: one key is a list of one, and a ``with`` block closes them."""

    @abstractmethod
    def many(self, keys: Sequence[object]) -> list[Row | None]: ...

    @abstractmethod
    def close(self) -> None: ...

    def get(self, key: object) -> Row | None:
        return self.many([key])[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def python_rows(rows: pa.Table | pa.RecordBatch) -> list[Row]:
    """Rows as every reader gives them."""
    found: list[Row] = rows.to_pylist()
    zoned = [column.name for column in rows.schema if _is_zoned(column.type)]
    for row in found:
        row.update({name: in_utc(row[name]) for name in zoned})
    return found


def in_utc(value: Any) -> Any:
    """A datetime with a zone, or a list of them, in ``timezone.utc``; other values unchanged."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    if isinstance(value, list):
        return [in_utc(cell) for cell in value]
    return value


def _is_zoned(kind: pa.DataType) -> bool:
    cell = kind.value_type if is_list(kind) else kind
    return bool(pa.types.is_timestamp(cell) and cell.tz)


def cannot_search(projection: str, instead: str) -> UsageError:
    return UsageError(f"the sink of projection {projection!r} cannot be searched", hint=instead)


def nothing_live_error(projection: str) -> OperatorError:
    return OperatorError(
        f"no generation of projection {projection!r} is live in the sink that is read",
        hint=f"tailrace rebuild {projection}; if it is live, read with its store's name and its definition's sink",
    )
