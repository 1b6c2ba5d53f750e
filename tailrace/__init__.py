"""Tailrace tails the Postgres write-ahead log into an immutable event store and rebuilds projections from it.

What this module exports is the public interface, with ``tailrace.errors`` and ``tailrace.testing`` (docs/api.md).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailrace.config.load import load_settings
    from tailrace.eventstore.model.redacted import Erased
    from tailrace.eventstore.model.topic import TopicId
    from tailrace.eventstore.store import Store
    from tailrace.eventstore.streams import (
        ANY,
        NO_STREAM,
        STREAM_EXISTS,
        Appended,
        Conflict,
        Stream,
        append,
        event,
        load,
    )
    from tailrace.projections import (
        Changes,
        Computed,
        Events,
        ParquetFolder,
        PostgresTable,
        RedisCache,
        Result,
        SearchIndex,
        State,
        Through,
        projection,
    )
    from tailrace.projections.generations.wait import NotYet, wait_for
    from tailrace.projections.sinks.reader import GenerationMovedBack
    from tailrace.reader import open_reader

__version__ = "0.1.0"

# Where each public name lives. It is imported at its first use, so that `import tailrace` costs nothing and a base
# install need not have what it does not use.
_HOMES = {
    "STREAM_EXISTS": "tailrace.eventstore.streams",
    "NO_STREAM": "tailrace.eventstore.streams",
    "ANY": "tailrace.eventstore.streams",
    "Appended": "tailrace.eventstore.streams",
    "Changes": "tailrace.projections",
    "Computed": "tailrace.projections",
    "Conflict": "tailrace.eventstore.streams",
    "Erased": "tailrace.eventstore.model.redacted",
    "Events": "tailrace.projections",
    "GenerationMovedBack": "tailrace.projections.sinks.reader",
    "NotYet": "tailrace.projections.generations.wait",
    "ParquetFolder": "tailrace.projections",
    "PostgresTable": "tailrace.projections",
    "RedisCache": "tailrace.projections",
    "Result": "tailrace.projections",
    "SearchIndex": "tailrace.projections",
    "State": "tailrace.projections",
    "Store": "tailrace.eventstore.store",
    "Stream": "tailrace.eventstore.streams",
    "Through": "tailrace.projections",
    "TopicId": "tailrace.eventstore.model.topic",
    "append": "tailrace.eventstore.streams",
    "event": "tailrace.eventstore.streams",
    "load": "tailrace.eventstore.streams",
    "load_settings": "tailrace.config.load",
    "open_reader": "tailrace.reader",
    "projection": "tailrace.projections",
    "wait_for": "tailrace.projections.generations.wait",
}

__all__ = [
    "ANY",
    "NO_STREAM",
    "STREAM_EXISTS",
    "Appended",
    "Changes",
    "Computed",
    "Conflict",
    "Erased",
    "Events",
    "GenerationMovedBack",
    "NotYet",
    "ParquetFolder",
    "PostgresTable",
    "RedisCache",
    "Result",
    "SearchIndex",
    "State",
    "Store",
    "Stream",
    "Through",
    "TopicId",
    "__version__",
    "append",
    "event",
    "load",
    "load_settings",
    "open_reader",
    "projection",
    "wait_for",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
