"""Strings, bytes, key-value pairs and points."""

from __future__ import annotations

import json
from typing import Any

from tailrace.cdc.kafka.decoding.values.cells import STRINGS, Cells, Reader, Texts, decoded, each, kept
from tailrace.cdc.kafka.topics.declaration import BinaryMode
from tailrace.cdc.kernels import json_text
from tailrace.eventstore.model.postgres_text import float_text


def string(cells: Cells) -> Texts:
    return kept(cells, *STRINGS)


def binary(mode: BinaryMode) -> Reader:
    def parse(text: str) -> str | None:
        data = bytes.fromhex(text) if mode is BinaryMode.HEX else decoded(text)
        return "\\x" + data.hex()

    return lambda cells: each(cells, parse, *STRINGS)


def hstore(cells: Cells) -> Texts:
    """An object of strings, itself or in a string, in the order of hstore: by the length of the key, then by its
    bytes."""

    def parse(text: str) -> str | None:
        pairs = json.loads(text)
        if not isinstance(pairs, dict) or not all(
            value is None or isinstance(value, str) for value in pairs.values()
        ):
            return None
        ordered = sorted(pairs.items(), key=lambda pair: (len(pair[0].encode()), pair[0].encode()))
        return ", ".join(
            f"{_quoted(key)}=>{'NULL' if value is None else _quoted(value)}" for key, value in ordered
        )

    return each(cells, parse, json_text.OBJECT, *STRINGS)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def point(cells: Cells) -> Texts:
    def parse(text: str) -> str | None:
        found = json.loads(text, parse_int=float)
        if not isinstance(found, dict):
            return None
        parts = [_coordinate(found.get(name)) for name in ("x", "y")]
        return None if None in parts else f"({parts[0]},{parts[1]})"

    return each(cells, parse, json_text.OBJECT)


def _coordinate(value: Any) -> str | None:
    if isinstance(value, str):
        return value if value in ("NaN", "Infinity", "-Infinity") else None
    return float_text(value) if isinstance(value, float) else None
