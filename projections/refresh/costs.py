"""How much a refresh has to do, and whether following keys is quicker than computing everything.

A step takes a fixed time and a time for each key. Both are estimated from earlier steps: sizes within a factor of four
are one class, whose time is the quickest of its latest five steps, so that a cold or busy machine does not decide.
Between two classes the time is interpolated. Beyond the largest, a further key costs three times its share of a full
step, until a step shows better.

Measurements are forgotten: after ``_REMEMBERED`` full steps keys are followed once again. And they come too late to say
that many keys are expensive, so a third of all keys is computed in full from the start.

Estimates for people (``estimate``) take what the log knows without reading a row, and what earlier refreshes made of
their changes. What neither says is not known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tailrace.eventstore.log.row_counts import RowCount, count_rows
from tailrace.eventstore.metadata.run_records import RunRecord
from tailrace.projections.definition.model import Projection
from tailrace.projections.generations.generation import files_of
from tailrace.projections.refresh.plan import Full, Incremental, Nothing, Plan

if TYPE_CHECKING:
    from tailrace.eventstore.store import Store


LATEST = 5
_REMEMBERED = 20
_MANY = 1000
_SHARE = 3
_MOVES, _COMPARED_EVERY = 3, 4
_NO_RESULT = "it has no result yet"


def too_costly(records: Sequence[RunRecord], keys: int, rows: int) -> str | None:
    """Why so many keys are better not followed; None when they may be. ``records`` are of one generation, latest first;
    there are about ``rows`` keys in all. Pure."""
    if keys >= _MANY and keys * _SHARE > rows:
        return f"{keys:,} keys are affected, of {rows:,}"
    full = [record.seconds for record in records if record.kind == "full" and record.seconds][:LATEST]
    sizes = _quickest(records[:_REMEMBERED])
    if not full or not sizes:
        return None
    everything = min(full)
    expected = _extrapolate(sizes, keys, _SHARE * everything / max(rows, 1))
    if expected <= everything:
        return None
    return (
        f"{keys:,} keys are affected: going by earlier refreshes, computing them takes about {expected:,.1f} s, "
        f"computing everything {everything:,.1f} s"
    )


def moves_each_time(moves: int) -> bool:
    """Whether values of subqueries changed so often in a row that they are not compared this time: that reads their
    inputs twice, for nothing. Every fourth time they are, in case they settled. Pure."""
    return moves >= _MOVES and moves % _COMPARED_EVERY != 0


def _quickest(records: Sequence[RunRecord]) -> list[tuple[int, float]]:
    """Keys and seconds of the quickest of the latest incremental steps of each size class, by keys."""
    found: dict[int, list[tuple[float, int]]] = {}
    for record in records:
        if record.kind == "incremental" and record.keys and record.seconds:
            found.setdefault(record.keys.bit_length() // 2, []).append((record.seconds, record.keys))
    return sorted((keys, seconds) for seconds, keys in (min(each[:LATEST]) for each in found.values()))


def _extrapolate(sizes: Sequence[tuple[int, float]], keys: int, a_key: float) -> float:
    """Seconds for so many keys. Below the smallest measured step, time falls in proportion to the keys."""
    known, seconds = zip((0, 0.0), *sizes, strict=True)
    further: int = max(0, keys - known[-1])
    return float(np.interp(keys, known, seconds)) + further * a_key


@dataclass(frozen=True, slots=True)
class Number:
    """About how many, and the basis of that number; None, and why it is not known."""

    about: int | None
    basis: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """``changes``: rows that the inputs got since the last step (None: not known). ``keys`` are to be computed,
    ``rows`` of the sink to be written or deleted."""

    changes: RowCount | None
    keys: Number
    rows: Number


def estimate(
    plan: Plan,
    changes: RowCount | None,
    result_rows: int,
    records: Sequence[RunRecord],
    *,
    direct: bool = False,
) -> Estimate | None:
    """The estimate of a plan; None when it has nothing to do. The last result has ``result_rows``; ``records`` are the
    generation's refreshes, latest first; ``direct``: the rows of every input hold the key themselves. Pure."""
    if isinstance(plan, Nothing):
        return None
    if isinstance(plan, Full) and plan.from_epoch == 0:
        return Estimate(changes, Number(None, _NO_RESULT), Number(None, _NO_RESULT))
    later = [record for record in records if record.changes and record.from_epoch]
    rows = _estimate_by_earlier(changes, [(each, each.rows_upserted + each.rows_deleted) for each in later])
    if isinstance(plan, Incremental):
        keys = _estimate_by_earlier(changes, [(each, each.keys) for each in later if each.keys is not None])
        if keys.about is None and changes is not None and direct:
            keys = Number(changes.at_most, "a key for each changed row: no earlier refresh to go by")
            rows = rows if rows.about is not None else Number(changes.at_most, "a row for each key")
    else:
        keys = Number(result_rows, "all of its last result")
    return Estimate(changes, keys, rows)


def _estimate_by_earlier(changes: RowCount | None, counted: Sequence[tuple[RunRecord, int]]) -> Number:
    """As many for each changed row as in the latest refreshes."""
    if changes is None:
        return Number(None, "how many rows will have changed is not known")
    latest = counted[:LATEST]
    before = sum(record.changes or 0 for record, _ in latest)
    if not before:
        return Number(None, "no earlier refresh to go by")
    about = math.ceil(changes.at_most * sum(number for _, number in latest) / before)
    return Number(about, f"by its last {len(latest)} refreshes" if len(latest) > 1 else "by its last refresh")


def changes_between(
    store: Store, projection: Projection, after: int, up_to: int, results: Mapping[str, int]
) -> RowCount | None:
    """Rows that the inputs of a projection got after epoch ``after`` and up to ``up_to``. For results of other
    projections (``results``: their generations) these are the rows that steps changed."""
    found = RowCount()
    for topic in projection.topics:
        counted = store.look.answer(
            ("count_rows", topic.text, after, up_to), partial(count_rows, store.catalog, topic, after, up_to)
        )
        if counted is None:
            return None
        found += counted
    for name, generation in results.items():
        steps = store.steps.list(name, generation, after=after)
        rows = sum(file.rows for step in steps if step.to_epoch <= up_to for file in files_of(step).deltas)
        found += RowCount(rows, rows)
    return found
