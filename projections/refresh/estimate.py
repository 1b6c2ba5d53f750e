"""About how much a refresh would have to do, from what is known without reading a row: the rows that its inputs got
meanwhile, and what earlier refreshes of the generation made of theirs. What neither tells is not known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.eventstore.log.row_counts import Counted, rows_between
from tailrace.eventstore.metadata.run_records import RunRecord
from tailrace.projections.definition.model import Projection
from tailrace.projections.generations.generation import files_of
from tailrace.projections.refresh.plan import Full, Incremental, Nothing, Plan

if TYPE_CHECKING:
    from tailrace.eventstore.store import Store

_LATEST = 5
_NO_RESULT = "it has no result yet"


@dataclass(frozen=True, slots=True)
class Number:
    """About how many, and what that is taken from; None and why it is not known."""

    about: int | None
    basis: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """``changes``: rows that the inputs got since the last step (None: not known). ``keys`` to be computed, ``rows`` of
    the sink to be written or deleted."""

    changes: Counted | None
    keys: Number
    rows: Number


def estimate(
    plan: Plan,
    changes: Counted | None,
    result_rows: int,
    records: Sequence[RunRecord],
    *,
    direct: bool = False,
) -> Estimate | None:
    """Of a plan that has something to do. ``result_rows``: of the last result; ``records``: of the generation's
    refreshes, newest first; ``direct``: each input's rows name their key themselves. Pure."""
    if isinstance(plan, Nothing):
        return None
    if isinstance(plan, Full) and plan.from_epoch == 0:
        return Estimate(changes, Number(None, _NO_RESULT), Number(None, _NO_RESULT))
    later = [record for record in records if record.changes and record.from_epoch]
    rows = _by_earlier(changes, [(each, each.rows_upserted + each.rows_deleted) for each in later])
    if isinstance(plan, Incremental):
        keys = _by_earlier(changes, [(each, each.keys) for each in later if each.keys is not None])
        if keys.about is None and changes is not None and direct:
            keys = Number(changes.at_most, "a key for each changed row: no earlier refresh to go by")
            rows = rows if rows.about is not None else Number(changes.at_most, "a row for each key")
    else:
        keys = Number(result_rows, "all of its last result")
    return Estimate(changes, keys, rows)


def _by_earlier(changes: Counted | None, counted: Sequence[tuple[RunRecord, int]]) -> Number:
    """As many for each changed row as the latest refreshes had."""
    if changes is None:
        return Number(None, "how many rows will have changed is not known")
    latest = counted[:_LATEST]
    before = sum(record.changes or 0 for record, _ in latest)
    if not before:
        return Number(None, "no earlier refresh to go by")
    about = math.ceil(changes.at_most * sum(number for _, number in latest) / before)
    return Number(about, f"by its last {len(latest)} refreshes" if len(latest) > 1 else "by its last refresh")


def changes_between(
    store: Store, projection: Projection, after: int, up_to: int, results: Mapping[str, int]
) -> Counted | None:
    """Rows that its inputs got behind epoch ``after`` and up to ``up_to``; of results that it reads (``results``: their
    generations) those that steps changed."""
    found = Counted()
    for topic in projection.topics:
        counted = rows_between(store.catalog, topic, after, up_to)
        if counted is None:
            return None
        found += counted
    for name, generation in results.items():
        steps = store.derived.derived(name, generation, after=after)
        rows = sum(file.rows for step in steps if step.to_epoch <= up_to for file in files_of(step).deltas)
        found += Counted(rows, rows)
    return found
