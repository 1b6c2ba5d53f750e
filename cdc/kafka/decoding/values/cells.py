"""Cells as JSON has them, and what the readers of all types share."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.cdc.kernels import json_text
from tailrace.cdc.kernels.rows import Bytes

STRINGS = (json_text.STRING, json_text.ESCAPED)
Parse = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Cells:
    """One cell a record: strings without quotes and escapes, everything else as JSON has it; null for null."""

    texts: pa.Array
    kinds: Bytes

    def strings(self) -> pa.Array:
        return self.texts.cast(pa.string())


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of Postgres, one a record, null for NULL. ``bad``: the rows whose cell is not what it is meant to be."""

    texts: pa.Array
    bad: Sequence[int] = ()


Reader = Callable[[Cells], Texts]


def kept(cells: Cells, *kinds: int) -> Texts:
    """The cells as they are, if they are of these kinds."""
    return Texts(cells.texts, other_kinds(cells, kinds))


def other_kinds(cells: Cells, kinds: Sequence[int]) -> list[int]:
    wrong = cells.kinds > json_text.NULL
    for kind in kinds:
        wrong &= cells.kinds != kind
    rows: list[int] = np.flatnonzero(wrong).tolist()
    return rows


def each(cells: Cells, parse: Parse, *kinds: int) -> Texts:
    """Every cell for itself; ``parse`` gives None, or raises ValueError, for what is not meant to be there."""
    bad = set(other_kinds(cells, kinds))
    found: list[str | None] = []
    known: dict[str, str | None] = {}
    for row, text in enumerate(cells.strings().to_pylist()):
        if text is None or row in bad:
            found.append(None)
            continue
        if text not in known:
            if len(known) > 10_000:
                known.clear()
            try:
                known[text] = parse(text)
            except ValueError:
                known[text] = None
        found.append(known[text])
        if known[text] is None:
            bad.add(row)
    return Texts(pa.array(found, pa.string()), sorted(bad))


def mostly(
    cells: Cells, simple: str, make: Callable[[pa.Array], pa.Array], parse: Parse, *kinds: int
) -> Texts:
    """``make`` for all cells when all are of the ``simple`` form, a regular expression; otherwise for those that are,
    and ``parse`` for each of the others."""
    texts = cells.strings()
    fits = pc.fill_null(pc.match_substring_regex(texts, simple), True)
    wrong = other_kinds(cells, kinds)
    if not wrong and pc.all(fits, min_count=0).as_py():
        return Texts(make(texts))
    rest = Cells(pc.if_else(fits, pa.scalar(None, pa.string()), texts), cells.kinds)
    odd = each(rest, parse, *kinds)
    easy = make(pc.if_else(fits, texts, pa.scalar(None, pa.string())))
    return Texts(pc.if_else(fits, easy, odd.texts), sorted({*odd.bad, *wrong}))


def decoded(text: str) -> bytes:
    """Base64, of either alphabet, with or without padding. Raises ValueError."""
    standard = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError("not base64") from error
