"""Times in the time zone that the definition declares. Spark's session is in UTC, so a zone is always written out."""

from __future__ import annotations

import zoneinfo

from tailrace.projections.definition.sql.postgres.refusal import NotInTable
from tailrace.projections.definition.sql.postgres.values import Value, quoted

UTC = "UTC"


def named_zone(value: Value) -> str:
    """A zone that a query names. Raises NotInTable for one that is not known by that name everywhere."""
    name = value.constant or ""
    if name not in zoneinfo.available_timezones():
        raise NotInTable(f"the time zone {name!r}", "write a name such as 'Europe/Berlin'")
    return name


def wall_clock(instant: str, zone: str) -> str:
    """A ``timestamptz`` as the ``timestamp`` that clocks in the zone show."""
    local = f"CAST({instant} AS TIMESTAMP_NTZ)"
    return local if zone == UTC else f"convert_timezone('UTC', {quoted(zone)}, {local})"


def instant(clock: str, zone: str) -> str:
    """A ``timestamp`` of clocks in the zone as a ``timestamptz``."""
    return f"CAST({clock if zone == UTC else _to_utc(clock, zone)} AS TIMESTAMP)"


def _to_utc(clock: str, zone: str) -> str:
    return f"convert_timezone({quoted(zone)}, 'UTC', {clock})"
