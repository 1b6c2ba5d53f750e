"""A sink over any store of texts with transactions: the easiest way to a sink of your own.

Implement ``Transactions`` (for SQLite, LMDB, FoundationDB, a table of some database) and get the whole contract:
fences, generations, promotion, readers. ``examples/sqlite_sink.py`` does it in sixty lines.

Names are ``STORE/PROJECTION/live`` (the live generation), ``STORE/PROJECTION/GENERATION`` (schema, key and fence) and
``STORE/PROJECTION/GENERATION/row/KEY`` (a row as a JSON object).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa

from tailrace.eventstore.errors import Fenced, UsageError
from tailrace.eventstore.model.position import Fence
from tailrace.projections.sinks.contract import (
    SinkSnapshot,
    Target,
    check_step,
    column_problems,
    key_texts,
    keys_for,
    raise_problems,
    require_same_log,
    rows_for,
)
from tailrace.projections.sinks.rows import from_objects, schema_to_text, to_json_texts

_SCAN_ROWS = 10_000


class Texts(Protocol):
    """Texts by name inside one transaction, which sees its own writes."""

    def get(self, name: str) -> str | None: ...

    def put(self, name: str, text: str) -> None: ...

    def delete(self, name: str) -> None:
        """It is no error to delete a name that does not exist."""

    def below(self, prefix: str) -> Iterator[tuple[str, str]]:
        """All names with this beginning and their texts, in any order."""


class Transactions(Protocol):
    """A store with transactions. When the block has ended, all its writes are durable; after an exception or a kill,
    none is. Transactions that change the same names run one after another. Raises TransientError when the store is out
    of reach, OperatorError with a hint for what a person has to change."""

    def __call__(self) -> AbstractContextManager[Texts]: ...


class _Left(Exception):
    """A load was left without ``commit``: its transaction is undone."""


@dataclass(slots=True)
class Meta:
    """A generation as the store knows it."""

    schema: str
    key: tuple[str, ...]
    fence: Fence | None = None
    log_id: str | None = None

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Meta:
        data = json.loads(text)
        fence = Fence(**data["fence"]) if data["fence"] else None
        return cls(data["schema"], tuple(data["key"]), fence, data.get("log_id"))


class KeyValueSink:
    """The atomic sink over ``Transactions``."""

    kind: Literal["atomic", "monotonic"] = "atomic"

    def __init__(self, transactions: Transactions) -> None:
        self._begin = transactions

    def check(self, target: Target) -> list[str]:
        raise_problems(target, column_problems(target))
        with self._begin():
            return []

    def create(self, target: Target) -> None:
        with self._begin() as texts:
            meta = _meta(texts, target)
            require_same_log(target, meta.log_id if meta else None)
            if meta is None or meta.fence is None:  # one without content may get other columns
                fresh = Meta(schema_to_text(target.schema), target.key, log_id=target.log_id)
                texts.put(_place(target), fresh.to_text())

    def owner(self, target: Target) -> str | None:
        with self._begin() as texts:
            meta = _meta(texts, target)
        return meta.log_id if meta else None

    @contextmanager
    def load(self, target: Target, expected: Fence | None, to: Fence) -> Iterator[_KeyValueLoad]:
        with suppress(_Left), self._begin() as texts:
            meta = _meta(texts, target)
            if meta is None:
                raise UsageError(f"{target} was never created", hint="create it first")
            check_step(target, meta.fence, expected, to)
            load = _KeyValueLoad(texts, target, meta, to)
            yield load
            if not load.committed:
                raise _Left

    def fence(self, target: Target) -> Fence | None:
        with self._begin() as texts:
            meta = _meta(texts, target)
        return meta.fence if meta else None

    def promote(self, target: Target, expected_live: int | None) -> None:
        with self._begin() as texts:
            live = _live(texts, target.store, target.projection)
            if live == target.generation:
                return
            meta = _meta(texts, target)
            if meta is None or meta.fence is None:
                raise UsageError(f"{target} has no content", hint="apply a step first")
            if live != expected_live:
                raise Fenced(
                    f"{target.projection!r}: generation {live} is live, not {expected_live}",
                    hint="somebody else promoted meanwhile; look again and decide",
                )
            texts.put(f"{target.store}/{target.projection}/live", str(target.generation))

    def live(self, store: str, projection: str) -> int | None:
        with self._begin() as texts:
            return _live(texts, store, projection)

    def drop(self, target: Target) -> None:
        with self._begin() as texts:
            meta = _meta(texts, target)
            require_same_log(target, meta.log_id if meta else None)
            if _live(texts, target.store, target.projection) == target.generation:
                raise UsageError(f"{target} is live", hint="promote another one first")
            for name in [name for name, _ in texts.below(_rows(target))]:
                texts.delete(name)
            texts.delete(_place(target))

    def scan(self, target: Target) -> Iterator[pa.RecordBatch]:
        with self.snapshot(target) as found:
            yield from found.rows

    @contextmanager
    def snapshot(self, target: Target) -> Iterator[SinkSnapshot]:
        """All rows are read into memory first, so that no transaction stays open."""
        with self._begin() as texts:
            meta = _meta(texts, target)
            found = [json.loads(text) for _, text in texts.below(_rows(target))]
        yield SinkSnapshot(meta.fence if meta else None, _batches(found, target))


@dataclass(slots=True)
class _KeyValueLoad:
    texts: Texts
    target: Target
    meta: Meta
    to: Fence
    committed: bool = False

    def write(self, bucket: int, upserts: pa.Table, deletes: pa.Table) -> None:
        place = _rows(self.target)
        for key in key_texts(self.target, keys_for(self.target, deletes)):
            self.texts.delete(place + key)
        rows = rows_for(self.target, upserts)
        for key, row in zip(key_texts(self.target, rows), to_json_texts(rows), strict=True):
            self.texts.put(place + key, row)

    def commit(self) -> None:
        self.meta.fence = self.to
        self.texts.put(_place(self.target), self.meta.to_text())
        self.committed = True


def _batches(rows: list[dict[str, Any]], target: Target) -> Iterator[pa.RecordBatch]:
    for first in range(0, len(rows), _SCAN_ROWS):
        yield from_objects(rows[first : first + _SCAN_ROWS], target.schema)


def _place(target: Target) -> str:
    return f"{target.store}/{target.projection}/{target.generation}"


def _rows(target: Target) -> str:
    return f"{_place(target)}/row/"


def _meta(texts: Texts, target: Target) -> Meta | None:
    text = texts.get(_place(target))
    return None if text is None else Meta.from_text(text)


def _live(texts: Texts, store: str, projection: str) -> int | None:
    text = texts.get(f"{store}/{projection}/live")
    return None if text is None else int(text)
