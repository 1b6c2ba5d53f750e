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
    """A table of a Postgres database behind a view.

    Readers query the view ``SCHEMA.TABLE``. Generation N is the table ``SCHEMA.TABLE__gN``; the tables
    ``tailrace_fences`` and ``tailrace_live`` of the same schema say how far each generation is and which one is shown.
    """

    sink: str
    """Name of an entry of ``[sinks]`` with ``kind = "postgres"``."""
    table: str
    """Name of the view."""
    schema: str = "public"
    """Schema of the view and of the tables behind it. It has to exist."""
    indexes: tuple[tuple[str, ...], ...] = ()
    """Columns of further indexes, a tuple for each. The primary key has its own."""
    json: tuple[str, ...] = ()
    """Text columns that hold JSON. Readers see them as ``jsonb``; what ``jsonb`` cannot hold fails the refresh."""


@dataclass(frozen=True, slots=True)
class RedisCache:
    """A key of a Redis or Valkey server for each row.

    A row is the key ``{PREFIX:PROJECTION:gN:bBUCKET}:KEY``, where N is the generation; ``PREFIX:PROJECTION:live`` names
    the generation that readers see. ``open_reader`` finds the key of a row.
    """

    sink: str
    """Name of an entry of ``[sinks]`` with ``kind = "redis"``."""
    prefix: str | None = None
    """Beginning of every key. Default: the store's name. Two stores that share a server need two prefixes."""
    format: RedisFormat = "hash"
    """``hash``: a hash with a field for each column that is not NULL. ``json``: an object as a string. ``msgpack``: a
    MessagePack map as a string."""
    ttl_seconds: float | None = None
    """Time after which a row expires that was not written again. ``tailrace verify`` does not report expired rows as
    missing. Default: rows do not expire."""


@dataclass(frozen=True, slots=True)
class SearchIndex:
    """A full-text index. A hit comes with all columns of its row.

    Generation N is a tantivy index in the folder ``PATH/STORE/PROJECTION/gN``.
    """

    sink: str
    """Name of an entry of ``[sinks]`` with ``kind = "search"``."""
    fields: Mapping[str, FieldKind] = field(default_factory=dict)
    """Columns that can be searched, with their kinds. ``text`` is cut into words. ``string`` is matched whole and has
    65,530 bytes at most. ``i64``, ``f64``, ``bool`` and ``date`` are compared as values."""


@dataclass(frozen=True, slots=True)
class ParquetFolder:
    """Parquet files that any tool can read.

    Readers open ``PATH/STORE/PROJECTION/live/**/*.parquet``. ``live`` is a link to the folder of the latest step of the
    generation that is shown.
    """

    sink: str
    """Name of an entry of ``[sinks]`` with ``kind = "parquet"``."""
    partition_by: tuple[str, ...] = ()
    """Columns that name folders (``day=2026-11-20``), as in Hive. They are not in the files."""
    keep_seconds: float = 600.0
    """Time that files which a step replaced stay for readers that have opened them."""


@runtime_checkable
class OwnSink(Protocol):
    """A sink of a user's own: a frozen dataclass, or a pydantic model, at the top of its module, with fields that JSON
    can hold. The catalog keeps them with each generation, so none may be a secret; lists come back as tuples.
    ``tailrace.testing.sink_contract.SinkContract`` is the suite of tests that the sink must pass."""

    def open_sink(self, settings: Settings) -> Sink:
        """What writes rows."""

    def open_reader(self, settings: Settings, store: str, projection: str) -> Reader:
        """What reads rows of the generation that is shown, without Spark."""


SinkSpec = PostgresTable | RedisCache | SearchIndex | ParquetFolder | OwnSink


def expires(spec: SinkSpec) -> bool:
    """Whether rows of the sink expire: a missing row is no difference then."""
    return isinstance(spec, RedisCache) and spec.ttl_seconds is not None
