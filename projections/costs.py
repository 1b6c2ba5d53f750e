"""Incremental or full, by what earlier steps took. Pure.

A step of ``k`` keys is expected to take what an earlier incremental one took, and ``k`` over its keys times as long
when it had fewer; of the latest few the most favourable counts, and of full ones too, so that one slow step (a cold
machine, a busy one) does not decide for ever. It is a rough model on purpose: at the crossover both take the same time.

The first full step of a session is a cold one, so that measured times come late to say that many keys are dear. Hence
a rule before them: a third of all keys is computed as all.
"""

from __future__ import annotations

from collections.abc import Sequence

from eventstore.runrecords import RunRecord

LATEST = 5
_MANY = 1000
_SHARE = 3


def too_costly(records: Sequence[RunRecord], keys: int, rows: int) -> str | None:
    """Why so many keys are better not followed; None when they may be. ``records``: of one generation, newest first;
    ``rows``: of its result."""
    if keys >= _MANY and keys * _SHARE > rows:
        return f"{keys:,} keys are affected, of a result of {rows:,} rows"
    full = [record.seconds for record in records if record.kind == "full" and record.seconds][:LATEST]
    steps = [record for record in records if record.kind == "incremental" and record.seconds and record.keys]
    expected = [
        record.seconds * max(1.0, keys / record.keys)
        for record in steps[:LATEST]
        if record.keys and record.seconds
    ]
    if not full or not expected or min(expected) <= min(full):
        return None
    return (
        f"{keys:,} keys are affected: by earlier refreshes following them takes about {min(expected):,.1f} s, "
        f"computing everything {min(full):,.1f} s"
    )
