"""Incremental or full, by what earlier steps took. Pure.

What a step takes has a part that does not depend on its keys, the larger one of a small step, and one that does. Both
are read off what steps of different sizes took: of each size, within a factor of four, the quickest of the latest five
counts, so that a cold machine or a busy one does not decide; between two sizes the way is taken to be straight. Beyond
the largest a further key is taken to be three times as dear as its share of computing everything: a step will show
whether that holds.

What was measured long ago is forgotten: after ``_REMEMBERED`` full steps keys are followed once again.

Measured times come late to say that many keys are dear. Hence a rule before them: a third of all keys is computed as
all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tailrace.eventstore.metadata.run_records import RunRecord

LATEST = 5
_REMEMBERED = 20
_MANY = 1000
_SHARE = 3


def too_costly(records: Sequence[RunRecord], keys: int, rows: int) -> str | None:
    """Why so many keys are better not followed; None when they may be. ``records``: of one generation, newest first;
    ``rows``: of its result."""
    if keys >= _MANY and keys * _SHARE > rows:
        return f"{keys:,} keys are affected, of a result of {rows:,} rows"
    full = [record.seconds for record in records if record.kind == "full" and record.seconds][:LATEST]
    sizes = _quickest(records[:_REMEMBERED])
    if not full or not sizes:
        return None
    everything = min(full)
    expected = _expected(sizes, keys, _SHARE * everything / max(rows, 1))
    if expected <= everything:
        return None
    return (
        f"{keys:,} keys are affected: by earlier refreshes following them takes about {expected:,.1f} s, "
        f"computing everything {everything:,.1f} s"
    )


def _quickest(records: Sequence[RunRecord]) -> list[tuple[int, float]]:
    """Keys and seconds of the quickest of the latest incremental steps of each size, by keys."""
    found: dict[int, list[tuple[float, int]]] = {}
    for record in records:
        if record.kind == "incremental" and record.keys and record.seconds:
            found.setdefault(record.keys.bit_length() // 2, []).append((record.seconds, record.keys))
    return sorted((keys, seconds) for seconds, keys in (min(each[:LATEST]) for each in found.values()))


def _expected(sizes: Sequence[tuple[int, float]], keys: int, a_key: float) -> float:
    """Seconds for so many keys. Fewer than were ever measured are taken to be as much cheaper as they are fewer."""
    known, seconds = zip((0, 0.0), *sizes, strict=True)
    further: int = max(0, keys - known[-1])
    return float(np.interp(keys, known, seconds)) + further * a_key
