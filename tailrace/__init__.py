"""Tailrace tails the Postgres write-ahead log into an immutable event store and rebuilds projections from it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eventstore.erased import Erased
    from eventstore.log import Store
    from eventstore.model import TopicId
    from projections import (
        Changes,
        Events,
        ParquetFolder,
        PostgresTable,
        RedisCache,
        Result,
        SearchIndex,
        State,
        Through,
        open_reader,
        projection,
    )
    from projections.readers import GenerationMovedBack
    from projections.readers.waiting import NotYet, wait_for
    from tailrace.config import load_settings

__version__ = "0.1.0"

# Where each public name lives. It is imported at its first use, so that `import tailrace` costs nothing and a base
# install need not have what it does not use.
_HOMES = {
    "Changes": "projections",
    "Erased": "eventstore.erased",
    "Events": "projections",
    "GenerationMovedBack": "projections.readers",
    "NotYet": "projections.readers.waiting",
    "ParquetFolder": "projections",
    "PostgresTable": "projections",
    "RedisCache": "projections",
    "Result": "projections",
    "SearchIndex": "projections",
    "State": "projections",
    "Store": "eventstore.log",
    "Through": "projections",
    "TopicId": "eventstore.model",
    "load_settings": "tailrace.config",
    "open_reader": "projections",
    "projection": "projections",
    "wait_for": "projections.readers.waiting",
}

__all__ = [
    "Changes",
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
    "Through",
    "TopicId",
    "__version__",
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
