"""Tailrace tails the Postgres write-ahead log into an immutable event store and rebuilds projections from it.

What this module exports is the public interface, with ``tailrace.errors`` and ``tailrace.testing`` (docs/api.md).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailrace.config.load import load_settings
    from tailrace.eventstore.errors import NotYet
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
        Cancel,
        Committed,
        Conflict,
        Decider,
        Do,
        Due,
        End,
        Every,
        FileKeys,
        Forgotten,
        Handled,
        InlineProjection,
        Json,
        KeyStore,
        Personal,
        ProcessManager,
        Query,
        RawEvent,
        Recorded,
        Refused,
        Rejected,
        Stream,
        Tag,
        Timer,
        aio,
        append,
        append_all,
        context,
        event,
        forget,
        handle,
        inline,
        load,
        load_all,
        load_boundary,
        on,
        position,
        react,
        state_of,
        upcast,
        upcaster,
        use_keys,
    )
    from tailrace.eventstore.streams.database import event_tables
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
    from tailrace.projections.generations.wait import wait_for
    from tailrace.projections.sinks.reader import GenerationMovedBack
    from tailrace.reader import open_reader

__version__ = "0.1.0"

# Where each public name lives. It is imported at its first use, so that `import tailrace` costs nothing and a base
# install need not have what it does not use.
_HOMES = {
    "ANY": "tailrace.eventstore.streams",
    "Aggregate": "tailrace.eventstore.streams",
    "AppendTo": "tailrace.eventstore.streams",
    "Appended": "tailrace.eventstore.streams",
    "Boundary": "tailrace.eventstore.streams",
    "Cancel": "tailrace.eventstore.streams",
    "Changes": "tailrace.projections",
    "Committed": "tailrace.eventstore.streams",
    "Computed": "tailrace.projections",
    "Conflict": "tailrace.eventstore.streams",
    "Decider": "tailrace.eventstore.streams",
    "Do": "tailrace.eventstore.streams",
    "Due": "tailrace.eventstore.streams",
    "End": "tailrace.eventstore.streams",
    "Erased": "tailrace.eventstore.model.redacted",
    "Events": "tailrace.projections",
    "Every": "tailrace.eventstore.streams",
    "FileKeys": "tailrace.eventstore.streams",
    "Forgotten": "tailrace.eventstore.streams",
    "GenerationMovedBack": "tailrace.projections.sinks.reader",
    "Handled": "tailrace.eventstore.streams",
    "InlineProjection": "tailrace.eventstore.streams",
    "Json": "tailrace.eventstore.streams",
    "KeyStore": "tailrace.eventstore.streams",
    "NO_STREAM": "tailrace.eventstore.streams",
    "NotYet": "tailrace.eventstore.errors",
    "ParquetFolder": "tailrace.projections",
    "Personal": "tailrace.eventstore.streams",
    "PostgresTable": "tailrace.projections",
    "ProcessManager": "tailrace.eventstore.streams",
    "Query": "tailrace.eventstore.streams",
    "RawEvent": "tailrace.eventstore.streams",
    "Recorded": "tailrace.eventstore.streams",
    "RedisCache": "tailrace.projections",
    "Refused": "tailrace.eventstore.streams",
    "Rejected": "tailrace.eventstore.streams",
    "Result": "tailrace.projections",
    "STREAM_EXISTS": "tailrace.eventstore.streams",
    "SearchIndex": "tailrace.projections",
    "State": "tailrace.projections",
    "Store": "tailrace.eventstore.store",
    "Stream": "tailrace.eventstore.streams",
    "Tag": "tailrace.eventstore.streams",
    "Through": "tailrace.projections",
    "Timer": "tailrace.eventstore.streams",
    "TopicId": "tailrace.eventstore.model.topic",
    "aio": "tailrace.eventstore.streams",
    "append": "tailrace.eventstore.streams",
    "append_all": "tailrace.eventstore.streams",
    "context": "tailrace.eventstore.streams",
    "event": "tailrace.eventstore.streams",
    "event_tables": "tailrace.eventstore.streams.database",
    "forget": "tailrace.eventstore.streams",
    "handle": "tailrace.eventstore.streams",
    "inline": "tailrace.eventstore.streams",
    "load": "tailrace.eventstore.streams",
    "load_all": "tailrace.eventstore.streams",
    "load_boundary": "tailrace.eventstore.streams",
    "load_settings": "tailrace.config.load",
    "on": "tailrace.eventstore.streams",
    "open_reader": "tailrace.reader",
    "position": "tailrace.eventstore.streams",
    "projection": "tailrace.projections",
    "react": "tailrace.eventstore.streams",
    "state_of": "tailrace.eventstore.streams",
    "upcast": "tailrace.eventstore.streams",
    "upcaster": "tailrace.eventstore.streams",
    "use_keys": "tailrace.eventstore.streams",
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
    "Cancel",
    "Changes",
    "Committed",
    "Computed",
    "Conflict",
    "Decider",
    "Do",
    "Due",
    "End",
    "Erased",
    "Events",
    "Every",
    "FileKeys",
    "Forgotten",
    "GenerationMovedBack",
    "Handled",
    "InlineProjection",
    "Json",
    "KeyStore",
    "NotYet",
    "ParquetFolder",
    "Personal",
    "PostgresTable",
    "ProcessManager",
    "Query",
    "RawEvent",
    "Recorded",
    "RedisCache",
    "Refused",
    "Rejected",
    "Result",
    "SearchIndex",
    "State",
    "Store",
    "Stream",
    "Tag",
    "Through",
    "Timer",
    "TopicId",
    "__version__",
    "aio",
    "append",
    "append_all",
    "context",
    "event",
    "event_tables",
    "forget",
    "handle",
    "inline",
    "load",
    "load_all",
    "load_boundary",
    "load_settings",
    "on",
    "open_reader",
    "position",
    "projection",
    "react",
    "state_of",
    "upcast",
    "upcaster",
    "use_keys",
    "wait_for",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name, None)
    if value is None:  # a module whose names are public
        value = importlib.import_module(f"{home}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
