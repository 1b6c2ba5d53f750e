"""Positions: where in a source, and up to where in the log.

A Postgres position is (incarnation, commit_lsn, ordinal), never a row's LSN: row LSNs repeat and go backwards
between transactions (protocol: "Logical Streaming Replication Parameters", commit order = WAL order of commits).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tailrace.eventstore.errors import UsageError


def parse_lsn(text: str) -> int:
    """``'16/B374D848'`` -> 64-bit integer. Raises UsageError when it is not a pg_lsn."""
    high, slash, low = text.partition("/")
    try:
        if not slash or not 0 < len(high) <= 8 or not 0 < len(low) <= 8:
            raise ValueError(text)
        return int(high, 16) << 32 | int(low, 16)
    except ValueError:
        raise UsageError(
            f"{text!r} is not an LSN", hint="an LSN is two hexadecimal numbers, for example 0/16B3748"
        ) from None


def format_lsn(lsn: int) -> str:
    """The text form Postgres prints: ``'16/B374D848'``."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


@dataclass(frozen=True, slots=True)
class Cut:
    """Up to where the log is read: all rows of epochs <= ``epoch``; of the sources in ``below_lsn`` those of epochs
    before ``inside``, and of that epoch only the rows whose transaction committed below the LSN. LSNs are compared
    within that one epoch, never across incarnations of a source.

    A Cut without ``below_lsn`` is an epoch boundary. ``commit_ts`` is the commit time of the last transaction inside
    (UTC), the clock that projections see; None for an empty log.
    """

    epoch: int
    below_lsn: Mapping[str, int] = field(default_factory=dict)
    commit_ts: datetime | None = None
    inside: Mapping[str, int] = field(
        default_factory=dict, compare=False
    )  # follows from the others and the log


@dataclass(frozen=True, slots=True)
class Fence:
    """What a sink holds about the data in it; a mismatch refuses incremental work."""

    log_id: str
    projection: str
    generation: int
    epoch: int
    epoch_hash: str
