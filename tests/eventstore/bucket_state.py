"""The state of a topic, bucket by bucket."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tailrace.eventstore.state.input import StateInput
from tailrace.eventstore.state.state import compute_states, readable_states
from tailrace.eventstore.storage import Storage


def compute_state(storage: Storage | Path, wanted: StateInput, bucket: int) -> pa.Table:
    """``compute_states`` of one bucket."""
    (table,) = compute_states(storage, wanted, range(bucket, bucket + 1))
    return table


def readable_state(storage: Storage | Path, wanted: StateInput, bucket: int) -> pa.Table:
    """``readable_states`` of one bucket."""
    (table,) = readable_states(storage, wanted, range(bucket, bucket + 1))
    return table
