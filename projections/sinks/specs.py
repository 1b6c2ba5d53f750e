"""Where a projection's rows go, as values: what a user writes into ``@projection(sink=…)``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from tailrace.eventstore.settings import Settings
    from tailrace.projections.sinks.contract import Sink
    from tailrace.projections.sinks.reader import Reader

FieldKind = Literal["text", "string", "i64", "f64", "bool", "date"]
RedisFormat = Literal["hash", "json", "msgpack"]


@dataclass(frozen=True, slots=True)
class PostgresTable:
    """A table behind a view: readers see ``schema.table``.

    ``sink`` names an entry of ``[sinks]``. ``indexes`` are tuples of column names beside the primary key. ``json``
    are text columns that hold JSON: what ``jsonb`` cannot hold is refused when written, and readers see ``jsonb``.
    """

    sink: str
    table: str
    schema: str = "public"
    indexes: tuple[tuple[str, ...], ...] = ()
    json: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RedisCache:
    """One Redis key per row. ``hash``: a hash with one field per column (a NULL has no field); ``json``: an object
    as a string; ``msgpack``: a MessagePack map.

    ``prefix`` starts every physical key; the store's name unless given. Two stores that share a Redis need two.
    ``ttl_seconds``: a row goes by itself so long after it was written last; ``tailrace verify`` holds no missing row
    against the sink then.
    """

    sink: str
    prefix: str | None = None
    format: RedisFormat = "hash"
    ttl_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class SearchIndex:
    """A full-text index. ``fields`` are the columns that can be searched: ``text`` is cut into words, ``string`` is
    matched whole and has 65,530 bytes at most; a longer word of a text is not found. All columns come with a hit."""

    sink: str
    fields: Mapping[str, FieldKind] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ParquetFolder:
    """Parquet files for whatever reads them: ``<path>/<store>/<projection>/live/**/*.parquet``.

    ``partition_by`` are columns that folders are named by (``day=2026-11-20``), as Hive does it; they are not in the
    files. Files that a step replaced stay for ``keep_seconds``, for those who are reading them.
    """

    sink: str
    partition_by: tuple[str, ...] = ()
    keep_seconds: float = 600.0


@runtime_checkable
class OwnSink(Protocol):
    """A sink of a user's own. The object must pickle; what the sink must keep is proved by
    ``tailrace.testing.sink_contract.SinkContract``."""

    def open_sink(self, settings: Settings) -> Sink: ...

    def open_reader(self, settings: Settings, store: str, projection: str) -> Reader: ...


SinkSpec = PostgresTable | RedisCache | SearchIndex | ParquetFolder | OwnSink


def expires(spec: SinkSpec) -> bool:
    """Whether rows of the sink go by themselves: one that is not there any more is no difference then."""
    return isinstance(spec, RedisCache) and spec.ttl_seconds is not None
