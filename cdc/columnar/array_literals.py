"""Array literals (``{1,NULL,"a b"}``) taken apart.

Source: PostgreSQL documentation, "Array Input and Output Syntax". Several dimensions and lower bounds other than 1
have no place in an Arrow list: such cells are reported, not changed.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_SIMPLE = r'^\{[^{}"\\]*\}$'  # one dimension, no element quoted: may be split at commas
# Spaces are those of array_isspace (arrayfuncs.c): others, like U+00A0, are written without quotes.
_ELEMENT = re.compile(
    r'"((?:[^"\\]|\\.)*)"|([^",{}\\ \t\n\r\v\f](?:[^",{}\\]*[^",{}\\ \t\n\r\v\f])?)', re.DOTALL
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)

Split = tuple[np.ndarray[Any, np.dtype[np.int64]], pa.Array, np.ndarray[Any, np.dtype[np.bool_]], list[int]]


def split(texts: pa.Array) -> Split:
    """Take a string column of array literals apart.

    Returns (offsets, elements, valid, unfit): row i has ``elements[offsets[i]:offsets[i + 1]]`` (texts, null for
    NULL), ``valid`` is false for NULL and unfit rows, ``unfit`` are the rows that are not one-dimensional literals.
    """
    simple = pc.match_substring_regex(texts, _SIMPLE)
    if pc.all(simple, min_count=0).as_py():
        return _split_simple(texts)
    return _split_each(texts)


def _split_simple(texts: pa.Array) -> Split:
    inner = pc.utf8_slice_codeunits(texts, 1, -1)
    empty = pc.equal(inner, "").fill_null(True)
    parts = pc.split_pattern(pc.if_else(empty, pa.scalar(None, inner.type), inner), ",")
    elements = parts.flatten()
    lengths = pc.list_value_length(parts).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    elements = pc.if_else(pc.equal(elements, "NULL"), pa.scalar(None, elements.type), elements)
    valid = pc.is_valid(texts).to_numpy(zero_copy_only=False).copy()
    return offsets, elements, valid, []


def _split_each(texts: pa.Array) -> Split:
    elements: list[str | None] = []
    offsets, valid, unfit = [0], [], []
    for row, text in enumerate(texts.to_pylist()):
        cells = None if text is None else parse(text)
        if cells is not None:
            elements += cells
        elif text is not None:
            unfit.append(row)
        valid.append(cells is not None)
        offsets.append(len(elements))
    return (
        np.array(offsets, np.int64),
        pa.array(elements, pa.large_string()),
        np.array(valid, np.bool_),
        unfit,
    )


def parse(text: str) -> list[str | None] | None:
    """The elements of one one-dimensional literal; None when it is not one."""
    if text == "{}":
        return []
    if len(text) < 3 or text[0] != "{" or text[-1] != "}":
        return None
    elements: list[str | None] = []
    at, end = 1, len(text) - 1
    while True:
        match = _ELEMENT.match(text, at, end)
        if match is None:
            return None
        quoted, plain = match.groups()
        if quoted is not None:
            elements.append(_ESCAPED.sub(r"\1", quoted))
        else:
            elements.append(None if plain == "NULL" else plain)
        at = match.end()
        if at == end:
            return elements
        if text[at] != ",":
            return None
        at += 1
