"""The ladder server head → sent → received → durable says who is slow and when the slot is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.cdc.postgres.progress import Ladder

MIB = 1 << 20
EVEN = Ladder(
    head=1000 * MIB,
    standby=False,
    sent=1000 * MIB,
    received=1000 * MIB,
    durable=1000 * MIB,
    received_seconds=None,
    durable_seconds=None,
    slot_state="reserved",
    retained_bytes=0,
    remaining_bytes=None,
    wal_bytes_per_second=None,
    spilled_transactions=0,
    spilled_bytes=0,
)


@pytest.mark.parametrize(
    ("sent", "received", "durable", "who"),
    [
        (995, 990, 985, ""),
        (900, 895, 890, "the server"),
        (995, 900, 895, "the network"),
        (995, 990, 900, "the log"),
        (None, None, 900, "no capture is connected"),
    ],
)
def test_the_slowest_is_before_whom_most_of_the_wal_waits(
    sent: int | None, received: int | None, durable: int, who: str
) -> None:
    """Positions in MiB below a head at 1,000."""
    rungs = [None if rung is None else rung * MIB for rung in (sent, received)]
    found = replace(EVEN, sent=rungs[0], received=rungs[1], durable=durable * MIB).slow
    assert found.startswith(who) and bool(found) == bool(who)


def test_the_time_until_the_slot_is_lost_is_that_of_the_wal_that_may_still_be_written() -> None:
    limited = replace(EVEN, remaining_bytes=100 * MIB)
    assert replace(limited, wal_bytes_per_second=2.0 * MIB).remaining_seconds == 50
    assert limited.remaining_seconds is None
    assert replace(EVEN, wal_bytes_per_second=2.0 * MIB).remaining_seconds is None
