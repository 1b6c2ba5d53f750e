"""Ids of new events: UUIDs of version 7 (RFC 9562), which begin with the time.

Neighbours in time are neighbours in the index on them. Random ids touch a page of their own each, and after a
checkpoint the server writes each such page into the WAL whole: four times the bytes an event, which capture reads.
"""

from __future__ import annotations

import os
import time
from uuid import UUID

_VERSION_AND_VARIANT = (7 << 76) | (2 << 62)
_RANDOM_BITS = 61  # one less than there are, so that counting on does not overflow


def new_ids(count: int) -> tuple[UUID, ...]:
    """Ids in ascending order. The first has 61 random bits, the others of one call count on from it."""
    now = time.time_ns()
    milliseconds, rest = divmod(now, 1_000_000)
    fraction = rest * 4096 // 1_000_000  # the 12 bits beside the milliseconds
    random = int.from_bytes(os.urandom(8), "big") >> (64 - _RANDOM_BITS)
    first = (milliseconds << 80) | (fraction << 64) | _VERSION_AND_VARIANT | random
    return tuple(UUID(int=first + number) for number in range(count))
