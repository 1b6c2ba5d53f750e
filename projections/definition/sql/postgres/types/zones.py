"""Times in the time zone that the definition declares. Spark's session is in UTC, so a zone is always written out."""

from __future__ import annotations

from datetime import UTC as _UTC
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

from tailrace.projections.definition.sql.postgres.refusal import NotInTable
from tailrace.projections.definition.sql.postgres.types.values import Value, quoted

UTC = "UTC"
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=_UTC), datetime(2038, 1, 1, tzinfo=_UTC)
_STEP = timedelta(days=7)


def named_zone(value: Value) -> str:
    """A zone that a query names, as Spark spells it. Raises NotInTable for one that is not known by that name
    everywhere: abbreviations and offsets."""
    name = value.constant or ""
    known = {each.lower(): each for each in available_timezones() if "/" in each or each in ("UTC", "GMT")}
    if name.lower() not in known:
        what = f"the time zone {name!r}" if name else "a computed time zone"
        raise NotInTable(what, "write a name such as 'Europe/Berlin'")
    return known[name.lower()]


def wall_clock(instant: str, zone: str) -> str:
    """A ``timestamptz`` as the ``timestamp`` that clocks in the zone show."""
    local = f"CAST({instant} AS TIMESTAMP_NTZ)"
    return local if zone == UTC else f"convert_timezone('UTC', {quoted(zone)}, {local})"


def printed(time: str, text: str) -> str:
    """The text of a date or a clock. That of a year which has more digits, or none, Spark writes otherwise."""
    words = "the text of a year beyond 9999, or before 1"
    return f"if(year({time}) BETWEEN 1 AND 9999 OR {time} IS NULL, {text}, raise_error({quoted(words)}))"


def instant(clock: str, zone: str) -> str:
    """A ``timestamp`` of clocks in the zone as a ``timestamptz``."""
    if zone == UTC:
        return f"CAST({clock} AS TIMESTAMP)"
    first = f"convert_timezone({quoted(zone)}, 'UTC', {clock})"
    later = "".join(
        f" WHEN convert_timezone('UTC', {quoted(zone)}, {first} + INTERVAL '{each}' SECOND) = {clock}"
        f" THEN {first} + INTERVAL '{each}' SECOND"
        for each in repeated_seconds(zone)
    )
    return f"CAST({f'CASE{later} ELSE {first} END' if later else first} AS TIMESTAMP)"


@lru_cache
def repeated_seconds(zone: str) -> tuple[int, ...]:
    """By how much clocks of the zone were ever set back. Of two instants with one time Postgres means the later one,
    Spark the earlier."""
    known = ZoneInfo(zone)
    at, found = _FIRST, set()
    before = at.astimezone(known).utcoffset() or timedelta()
    while at < _LAST:
        at += _STEP
        now = at.astimezone(known).utcoffset() or timedelta()
        if now < before:
            found.add(int((before - now).total_seconds()))
        before = now
    return tuple(sorted(found))
