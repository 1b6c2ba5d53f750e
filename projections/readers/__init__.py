"""Readers: what an application opens to read a projection. They need neither Spark nor the log."""

from __future__ import annotations

from projections.readers.base import GenerationMovedBack, Hit, Reader, Row, open_reader

__all__ = ["GenerationMovedBack", "Hit", "Reader", "Row", "open_reader"]
