"""Times as the catalog holds them: µs since 1970 UTC in an integer, the same on every database."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from tailrace.eventstore.errors import IntegrityError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_micros(moment: datetime | None) -> int | None:
    """Exact, unlike ``timestamp()``, which is a float. A naive time is taken as UTC."""
    if moment is None:
        return None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // _MICROSECOND


def moment_of(micros: int) -> datetime:
    """Raises IntegrityError for what no ``datetime`` is: no clock was there."""
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise IntegrityError(
            f"a time in the catalog is {micros} µs after 1970, which no clock shows: its row is damaged",
            hint="`tailrace log verify` checks the log's rows; restore the catalog from a backup",
        ) from None


def from_micros(micros: int | None) -> datetime | None:
    return None if micros is None else moment_of(micros)


def now_micros() -> int:
    return time.time_ns() // 1000
