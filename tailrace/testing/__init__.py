"""Suites of tests for a user's own sink. Imports projections.sinks; no room imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailrace.testing.sink_contract import SinkContract

__all__ = ["SinkContract"]


def __getattr__(name: str) -> Any:
    """``sink_crashes`` is also a program, so it is not imported before it is used."""
    if name != "SinkContract":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tailrace.testing.sink_contract import SinkContract

    return SinkContract
