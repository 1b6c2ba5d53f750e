"""Frames of whole transactions to Arrow per topic."""

from __future__ import annotations
