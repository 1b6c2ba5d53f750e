"""From a projection's sink specification to the sink, or its reader.

The only module that knows every system. The modules of a system, and its driver, are imported when one is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.eventstore.errors import UsageError, optional_part
from tailrace.projections.sinks.contract import NoSink
from tailrace.projections.sinks.specs import ParquetFolder, PostgresTable, RedisCache, SearchIndex

if TYPE_CHECKING:
    from tailrace.eventstore.settings import Settings, SinkKind, SinkSettings
    from tailrace.projections.sinks.contract import Sink, Target
    from tailrace.projections.sinks.reader import Reader
    from tailrace.projections.sinks.specs import SinkSpec


def open_sink(spec: SinkSpec, settings: Settings) -> Sink:
    """The sink of a projection's specification. Does not connect yet.

    Raises NoSink for a name that is not in ``[sinks]``, UsageError for a sink of another kind, OperatorError when its
    extra (``redis``, ``search``) is not installed.
    """
    match spec:
        case PostgresTable():
            from tailrace.projections.sinks.postgres.sink import PostgresSink

            return PostgresSink(spec, sink_settings(settings, spec.sink, "postgres"))
        case RedisCache():
            with optional_part("a Redis sink", "redis"):
                from tailrace.projections.sinks.redis.sink import RedisSink

            return RedisSink(spec, sink_settings(settings, spec.sink, "redis"))
        case SearchIndex():
            with optional_part("a search index", "search"):
                from tailrace.projections.sinks.search.sink import SearchSink

            return SearchSink(spec, sink_settings(settings, spec.sink, "search"))
        case ParquetFolder():
            from tailrace.projections.sinks.parquet.sink import ParquetSink

            return ParquetSink(spec, sink_settings(settings, spec.sink, "parquet"))
        case _:
            return spec.open_sink(settings)


def open_reader(settings: Settings, store: str, projection: str, spec: SinkSpec) -> Reader:
    """A reader of one projection's sink. Connects when first used.

    Raises NoSink for a name that is not in ``[sinks]``, UsageError for a sink of another kind, OperatorError when its
    extra is not installed.
    """
    match spec:
        case PostgresTable():
            from tailrace.projections.sinks.postgres.reader import PostgresReader

            return PostgresReader(spec, sink_settings(settings, spec.sink, "postgres"), store, projection)
        case RedisCache():
            with optional_part("a Redis sink", "redis"):
                from tailrace.projections.sinks.redis.reader import RedisReader

            return RedisReader(spec, sink_settings(settings, spec.sink, "redis"), store, projection)
        case SearchIndex():
            with optional_part("a search index", "search"):
                from tailrace.projections.sinks.search.reader import SearchReader

            return SearchReader(spec, sink_settings(settings, spec.sink, "search"), store, projection)
        case ParquetFolder():
            from tailrace.projections.sinks.parquet.reader import ParquetReader

            return ParquetReader(spec, sink_settings(settings, spec.sink, "parquet"), store, projection)
        case _:
            return spec.open_reader(settings, store, projection)


def place_of(spec: SinkSpec, settings: Settings, target: Target) -> str:
    """Where the sink has one generation, whether or not readers are shown it; "" for a user's own sink."""
    number = target.generation
    match spec:
        case PostgresTable():
            return f"table {spec.schema}.{spec.table}__g{number} of sink {spec.sink}"
        case RedisCache():
            base = f"{spec.prefix or target.store}:{target.projection}:g{number}"
            return f"keys {{{base}:bBUCKET}}:KEY of sink {spec.sink}"
        case SearchIndex() | ParquetFolder():
            latest = "/current" if isinstance(spec, ParquetFolder) else ""
            folder = f"{settings.sinks[spec.sink].path}/{target.store}/{target.projection}/g{number}{latest}"
            return f"folder {folder} of sink {spec.sink}"
        case _:
            return ""


def sink_settings(settings: Settings, name: str, kind: SinkKind) -> SinkSettings:
    """The entry of ``[sinks]``, if it is of this kind and has the value that the kind needs."""
    from tailrace.eventstore.settings import SINK_ADDRESS

    configured = settings.sinks.get(name)
    if configured is None:
        known = ", ".join(sorted(settings.sinks)) or "none"
        raise NoSink(
            f"there is no sink {name!r}", hint=f"add [sinks.{name}] to tailrace.toml; known sinks: {known}"
        )
    if configured.kind != kind:
        raise UsageError(
            f"sink {name!r} is of kind {configured.kind}, the projection needs {kind}",
            hint=f"name another sink in the projection, or change kind in [sinks.{name}]",
        )
    needed = SINK_ADDRESS[kind]
    if getattr(configured, needed) is None:
        raise UsageError(f"sink {name!r} has no {needed}", hint=f"set {needed} in [sinks.{name}]")
    return configured
