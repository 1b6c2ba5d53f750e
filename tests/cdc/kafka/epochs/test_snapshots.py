"""When a table is whole, by the markers that Debezium gives the rows of its snapshots."""

from __future__ import annotations

import pytest

from tailrace.cdc.kafka.epochs.snapshots import PhaseChange, after_rows
from tailrace.eventstore.model.kafka import SnapshotPhase

UNSEEN, RUNNING, ENDED = SnapshotPhase.UNSEEN, SnapshotPhase.RUNNING, SnapshotPhase.ENDED
STREAMED = SnapshotPhase.STREAMED
CASES: list[tuple[str, SnapshotPhase, list[str | None], bool, PhaseChange]] = [
    ("a snapshot from its first to its last row", UNSEEN, ["first", "true", "last"], True, PhaseChange(ENDED)),
    ("one that is not over", UNSEEN, ["first_in_data_collection", "true"], True, PhaseChange(RUNNING)),
    ("its end comes later", RUNNING, ["true", "last_in_data_collection"], False, PhaseChange(ENDED)),
    ("one row", UNSEEN, ["last"], True, PhaseChange(ENDED)),
    ("rows are streamed when it is over", RUNNING, ["true", "false"], False, PhaseChange(ENDED)),
    ("rows of one whose beginning is gone", UNSEEN, ["true", "last"], False, PhaseChange(UNSEEN)),
    ("the next one is whole", UNSEEN, ["true", "last", "false", "first", "last"], False, PhaseChange(ENDED)),
    ("no snapshot", UNSEEN, ["false", None], True, PhaseChange(STREAMED)),
    ("rows behind streamed ones begin it", UNSEEN, ["false", "true"], True, PhaseChange(RUNNING)),
    ("so does a single row", STREAMED, ["last"], False, PhaseChange(ENDED)),
    ("streamed rows behind one whose beginning is gone", UNSEEN, ["true", "false"], False, PhaseChange(STREAMED)),
    ("a second one begins", ENDED, ["false", "first", "true"], False, PhaseChange(RUNNING, began=True)),
    ("a second one, whole", ENDED, ["first", "last", "false"], False, PhaseChange(ENDED, began=True)),
    ("a second one begins without a marker of its first row", ENDED, ["true"], False, PhaseChange(RUNNING, began=True)),
    ("an incremental one", ENDED, ["incremental", "false", "incremental"], False, PhaseChange(ENDED)),
    ("an incremental one alone", UNSEEN, ["incremental"], True, PhaseChange(UNSEEN)),
    ("nothing", RUNNING, [], False, PhaseChange(RUNNING)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("phase", "markers", "first", "then"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_markers_lead_to(
    phase: SnapshotPhase, markers: list[str | None], first: bool, then: PhaseChange
) -> None:
    assert after_rows(phase, markers, from_beginning=first) == then


def test_a_table_that_had_no_rows_needs_no_snapshot_if_somebody_says_so() -> None:
    assert after_rows(UNSEEN, ["false"], from_beginning=True, needed=False).phase is ENDED
    assert after_rows(UNSEEN, ["false"], from_beginning=False, needed=False).phase is STREAMED
    assert after_rows(UNSEEN, ["true", "false"], from_beginning=True, needed=False).phase is ENDED
    assert after_rows(UNSEEN, ["incremental", "false"], from_beginning=True, needed=False).phase is ENDED
    assert after_rows(UNSEEN, ["incremental"], from_beginning=False, needed=False).phase is UNSEEN
