"""Columns of the key in the keys of records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.cdc.kafka.decoding.json_values import Found, Paths
from tailrace.cdc.kafka.decoding.values.cells import Cells
from tailrace.cdc.kernels import json_text

_ONLY = "k"


@dataclass(frozen=True, slots=True)
class KeyCells:
    """A column of the key, one cell a record, and by record why there is none."""

    cells: Cells
    problems: dict[int, str]


def text_keys(keys: pa.Array) -> KeyCells:
    """Keys that are the texts of the only column."""
    problems: dict[int, str] = {}
    for row, key in enumerate(keys.to_pylist()):
        if key is None:
            problems[row] = "there is none"
        elif b"\0" in key or not _is_utf8(key):
            problems[row] = "not UTF-8, or with U+0000, which no text of Postgres has"
    good = np.ones(len(keys), bool)
    good[list(problems)] = False
    texts = pc.if_else(pa.array(good), keys, pa.scalar(None, keys.type)).cast(pa.binary())
    return KeyCells(
        Cells(texts, np.where(good, json_text.STRING, json_text.MISSING).astype(np.uint8)), problems
    )


def json_keys(keys: pa.Array, names: tuple[str, ...], name: str) -> KeyCells:
    """The column ``name`` of keys that are JSON: objects with the columns ``names``; where that is one, or its value
    alone."""
    is_object = pc.fill_null(pc.starts_with(keys, "{"), False)
    if len(names) > 1 or pc.all(is_object, min_count=0).as_py():
        return _members(keys, names, name)
    objects, bare = (
        pc.if_else(mask, keys, pa.scalar(None, keys.type)) for mask in (is_object, pc.invert(is_object))
    )
    around = [pa.scalar(text, keys.type) for text in (f'{{"{_ONLY}":'.encode(), b"}", b"")]
    wrapped = pc.binary_join_element_wise(around[0], bare, *around[1:])
    one, other = _members(objects, names, name), _members(wrapped, (_ONLY,), _ONLY)
    mask = is_object.to_numpy(zero_copy_only=False)
    texts = pc.if_else(is_object, one.cells.texts, other.cells.texts)
    problems = {row: one.problems[row] for row in one.problems if mask[row]}
    problems |= {row: reason for row, reason in other.problems.items() if not mask[row]}
    return KeyCells(Cells(texts, np.where(mask, one.cells.kinds, other.cells.kinds)), problems)


def _members(keys: pa.Array, names: tuple[str, ...], name: str) -> KeyCells:
    found = Found(keys, Paths(dict.fromkeys(names), frozenset({()})))
    problems = {row: found.problem(row) for row in np.flatnonzero(~found.good).tolist()}
    problems |= {row: f"its member {stray[:100]!r} is no column of the key" for row, stray in found.strays()}
    kinds = np.where(found.good, found.kinds((name,)), json_text.MISSING).astype(np.uint8)
    return KeyCells(Cells(found.texts((name,)), kinds), problems)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
