"""Has a snapshot by Debezium been read whole? What markers of rows (``source.snapshot``) say of a partition. Pure.

    unseen            ──first, or any row of a snapshot in a partition that is read from its very beginning──>  running
    unseen            ──a streamed row──>  streamed
    streamed, ended   ──any row of a snapshot: what is before it was streamed, so it is the first──>  running
    running           ──last, last_in_data_collection, or a streamed row, which come when it is over──>  ended

Rows of an incremental snapshot say nothing: they come between streamed ones, and not all of them need to. If no
snapshot is needed, a partition that begins with one is whole all the same: what it has is what there is.

A partition of a topic that Debezium does not write is ``running`` when it is read from its first record on, and
``ended`` with its first row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from tailrace.eventstore.model.kafka import SnapshotPhase

_FIRST = frozenset({"first", "first_in_data_collection"})
_LAST = frozenset({"last", "last_in_data_collection"})
_ROWS = _FIRST | _LAST | {"true"}
_BETWEEN = (SnapshotPhase.STREAMED, SnapshotPhase.ENDED)
_STREAMED = frozenset({None, "", "false"})


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """What rows made of a partition's phase. ``began``: a snapshot of a table that was whole has begun among them."""

    phase: SnapshotPhase
    began: bool = False


def after_rows(
    phase: SnapshotPhase, markers: Iterable[str | None], *, from_beginning: bool, needed: bool = True
) -> PhaseChange:
    """``markers`` in the rows' order; ``from_beginning``: the first of them is the first that the partition ever
    had. Not ``needed``: a partition that begins with a row of no snapshot, or of an incremental one, is whole, for all
    rows of the table are in it."""
    began = False
    for marker, _ in groupby(markers):
        if marker in _STREAMED:
            if phase is SnapshotPhase.RUNNING or (from_beginning and not needed):
                phase = SnapshotPhase.ENDED
            elif phase is SnapshotPhase.UNSEEN:
                phase = SnapshotPhase.STREAMED
        elif marker in _ROWS:
            starts = marker in _FIRST or from_beginning or phase in _BETWEEN
            if phase is not SnapshotPhase.RUNNING and starts:
                began = began or phase is SnapshotPhase.ENDED
                phase = SnapshotPhase.RUNNING
            if marker in _LAST and phase is SnapshotPhase.RUNNING:
                phase = SnapshotPhase.ENDED
        elif from_beginning and not needed:
            phase = SnapshotPhase.ENDED
        from_beginning = False
    return PhaseChange(phase, began)
