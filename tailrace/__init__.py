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
        Aggregate,
        Appended,
        AppendTo,
        Boundary,
        Committed,
        Conflict,
        Decider,
        Every,
        Handled,
        Json,
        Query,
        RawEvent,
        Recorded,
        Rejected,
        Stream,
        Tag,
        aio,
        append,
        append_all,
        context,
        event,
        handle,
        load,
        load_all,
        load_boundary,
        on,
        position,
        state_of,
        upcast,
        upcaster,
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
    "ANY": "tailrace.eventstore.streams",
    "NO_STREAM": "tailrace.eventstore.streams",
    "STREAM_EXISTS": "tailrace.eventstore.streams",
    "Aggregate": "tailrace.eventstore.streams",
    "AppendTo": "tailrace.eventstore.streams",
    "Appended": "tailrace.eventstore.streams",
    "Boundary": "tailrace.eventstore.streams",
    "Changes": "tailrace.projections",
    "Committed": "tailrace.eventstore.streams",
    "Computed": "tailrace.projections",
    "Conflict": "tailrace.eventstore.streams",
    "Decider": "tailrace.eventstore.streams",
    "Erased": "tailrace.eventstore.model.redacted",
    "Events": "tailrace.projections",
    "Every": "tailrace.eventstore.streams",
    "GenerationMovedBack": "tailrace.projections.sinks.reader",
    "Handled": "tailrace.eventstore.streams",
    "Json": "tailrace.eventstore.streams",
    "NotYet": "tailrace.projections.generations.wait",
    "ParquetFolder": "tailrace.projections",
    "PostgresTable": "tailrace.projections",
    "Query": "tailrace.eventstore.streams",
    "RawEvent": "tailrace.eventstore.streams",
    "Recorded": "tailrace.eventstore.streams",
    "RedisCache": "tailrace.projections",
    "Rejected": "tailrace.eventstore.streams",
    "Result": "tailrace.projections",
    "SearchIndex": "tailrace.projections",
    "State": "tailrace.projections",
    "Store": "tailrace.eventstore.store",
    "Stream": "tailrace.eventstore.streams",
    "Tag": "tailrace.eventstore.streams",
    "Through": "tailrace.projections",
    "TopicId": "tailrace.eventstore.model.topic",
    "aio": "tailrace.eventstore.streams",
    "append": "tailrace.eventstore.streams",
    "append_all": "tailrace.eventstore.streams",
    "context": "tailrace.eventstore.streams",
    "event": "tailrace.eventstore.streams",
    "handle": "tailrace.eventstore.streams",
    "load": "tailrace.eventstore.streams",
    "load_all": "tailrace.eventstore.streams",
    "load_boundary": "tailrace.eventstore.streams",
    "load_settings": "tailrace.config.load",
    "on": "tailrace.eventstore.streams",
    "open_reader": "tailrace.reader",
    "position": "tailrace.eventstore.streams",
    "projection": "tailrace.projections",
    "state_of": "tailrace.eventstore.streams",
    "upcast": "tailrace.eventstore.streams",
    "upcaster": "tailrace.eventstore.streams",
    "wait_for": "tailrace.projections.generations.wait",
}

__all__ = [
    "ANY",
    "NO_STREAM",
    "STREAM_EXISTS",
    "Aggregate",
    "AppendTo",
    "Appended",
    "Boundary",
    "Changes",
    "Committed",
    "Computed",
    "Conflict",
    "Decider",
    "Erased",
    "Events",
    "Every",
    "GenerationMovedBack",
    "Handled",
    "Json",
    "NotYet",
    "ParquetFolder",
    "PostgresTable",
    "Query",
    "RawEvent",
    "Recorded",
    "RedisCache",
    "Rejected",
    "Result",
    "SearchIndex",
    "State",
    "Store",
    "Stream",
    "Tag",
    "Through",
    "TopicId",
    "__version__",
    "aio",
    "append",
    "append_all",
    "context",
    "event",
    "handle",
    "load",
    "load_all",
    "load_boundary",
    "load_settings",
    "on",
    "open_reader",
    "position",
    "projection",
    "state_of",
    "upcast",
    "upcaster",
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
