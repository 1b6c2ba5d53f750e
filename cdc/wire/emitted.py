"""Events that were emitted without a table: transactional logical messages of prefix ``tailrace.emit``. Pure.

Their format is that of ``migrations/source/versions/0010_emit.sql``. Capture has checked who made them
(``tailrace.cdc.wire.authentic``); what is in a recording, or in a spool, is believed.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

PREFIX: Final = "tailrace.emit"
_TEXTS: Final = ("topic", "stream", "type", "data", "metadata", "event_id", "recorded_at")


class EmittedEvent(NamedTuple):
    """``cells``: texts of the columns of a topic of events, in order."""

    topic: str
    cells: tuple[bytes, ...]


def parse(content: bytes, lsn: int) -> EmittedEvent | None:
    """None for what the function would not have made. ``lsn`` takes the place of a version."""
    try:
        found: dict[str, Any] = json.loads(content)
        topic, stream, kind, data, metadata, event_id, at = (found[name] for name in _TEXTS)
        version = found["schema_version"]
    except (ValueError, TypeError, KeyError):
        return None
    texts = (topic, stream, kind, data, metadata, event_id, at)
    if not all(isinstance(each, str) and each for each in texts) or type(version) is not int:
        return None
    cells = (stream, str(lsn), kind, str(version), data, metadata, event_id, at)
    try:
        return EmittedEvent(topic, tuple(each.encode() for each in cells))
    except UnicodeEncodeError:
        return None
