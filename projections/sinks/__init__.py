"""Sinks: where a projection's rows are written. One contract (``base``), one suite that proves it (``contract``)."""

from __future__ import annotations

from tailrace.projections.sinks.contract import Load, Sink, Target, open_sink

__all__ = ["Load", "Sink", "Target", "open_sink"]
