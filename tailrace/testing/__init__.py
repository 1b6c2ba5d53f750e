"""What tests of a service need: decisions as given, when, then; projections as given changes, then rows; streams in
memory; histories for hypothesis; crashes; suites for a user's own sink and bridge. No room imports it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailrace.testing.bridge_contract import Arrived, BridgeContract
    from tailrace.testing.crashes import crash_points, killed_at
    from tailrace.testing.decisions import Given, When, given
    from tailrace.testing.memory_streams import MemoryStreams
    from tailrace.testing.projections import Table, appended, given_changes
    from tailrace.testing.sink_contract import SinkContract
    from tailrace.testing.strategies import histories

# Each is imported at its first use: ``sink_crashes`` is also a program, and a service need not have what sinks need.
_HOMES = {
    "Arrived": "tailrace.testing.bridge_contract",
    "BridgeContract": "tailrace.testing.bridge_contract",
    "Given": "tailrace.testing.decisions",
    "MemoryStreams": "tailrace.testing.memory_streams",
    "SinkContract": "tailrace.testing.sink_contract",
    "Table": "tailrace.testing.projections",
    "When": "tailrace.testing.decisions",
    "appended": "tailrace.testing.projections",
    "crash_points": "tailrace.testing.crashes",
    "given": "tailrace.testing.decisions",
    "given_changes": "tailrace.testing.projections",
    "histories": "tailrace.testing.strategies",
    "killed_at": "tailrace.testing.crashes",
}

__all__ = [
    "Arrived",
    "BridgeContract",
    "Given",
    "MemoryStreams",
    "SinkContract",
    "Table",
    "When",
    "appended",
    "crash_points",
    "given",
    "given_changes",
    "histories",
    "killed_at",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
