"""How far a publisher of this process is, and what it did: what is measured of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class PublicationProgress:
    """Written by the publisher's thread alone. ``epoch``: all up to it is published (None: not known yet). ``failing``:
    tries in a row that failed; ``failures``: all of them by class of error, ``failed_at`` when the last did (seconds
    since 1970). Keys and values count as ``bytes``."""

    epoch: int | None = None
    parked: int = 0
    records: int = 0
    bytes: int = 0
    transactions: int = 0
    dead_letters: int = 0
    failing: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    failed_at: float | None = None
