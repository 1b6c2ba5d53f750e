"""Where a caller expects a stream, and what came of an append: values, since a conflict is no error."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final
from uuid import UUID

from tailrace.eventstore.streams.stream import Stream


class Expected(Enum):
    """Where the caller expects the stream, when it is not a version; values as the source's functions take them."""

    NO_STREAM = 0  # it has no event yet
    ANY = -1  # wherever it is
    STREAM_EXISTS = -2  # it has an event


NO_STREAM: Final = Expected.NO_STREAM
ANY: Final = Expected.ANY
STREAM_EXISTS: Final = Expected.STREAM_EXISTS


@dataclass(frozen=True, slots=True)
class Appended:
    """The events are in the stream, once the transaction commits. ``version`` is that of the last one; ``repeated``:
    an earlier call with the same ids had written them."""

    version: int
    event_ids: tuple[UUID, ...]
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Conflict:
    """Nothing was written: the stream is at version ``actual`` (0: it has no event). The transaction goes on.

    Of a boundary: ``tag`` has another event inside it, and versions are the tag's."""

    actual: int
    expected: int | Expected
    stream: Stream | None = field(default=None, compare=False)
    tag: str = ""
