"""How a member takes part in its group: the options of ``Group.join``, and the checked value made of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Self, TypedDict, get_args

from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.model.topic import Op
from tailrace.eventstore.subscriptions.cursor import BATCH_ROWS
from tailrace.eventstore.subscriptions.filter import Filter
from tailrace.eventstore.subscriptions.rows.events import WantedEvents

DeliveryMode = Literal["at least once", "at most once"]
Slow = Literal["block", "buffer", "drop"]


class JoinOptions(TypedDict, total=False):
    """``Group.join(…)`` takes them by keyword.

    ``delivery``: "at least once" (the default), or "at most once", which commits before it gives.
    ``slow``: what becomes of rows that wait for the consumer. "block" (the default): they are read when it comes for
    them; "buffer": up to ``buffer_bytes`` (64 MiB) are read ahead beside it; "drop": the oldest of more than
    ``drop_beyond`` (100,000) in a partition are left out, and counted.
    ``ops``, ``keys`` (texts) and ``since``: rows with one of these operations, of these keys, committed since then.
    ``events``: of topics of domain events those of these models, or that a ``Query`` asks for by tags.
    ``batch_rows``: the most rows of a batch (10,000).
    ``lease``: seconds of silence after which others take the member's partitions (30).
    ``patience``: the longest that processing one batch may take, in seconds (300).
    """

    delivery: DeliveryMode
    slow: Slow
    drop_beyond: int
    buffer_bytes: int
    ops: Collection[Op | str] | None
    keys: Collection[tuple[str, ...] | str] | None
    since: datetime | None
    events: WantedEvents | None
    batch_rows: int
    lease: float
    patience: float


@dataclass(frozen=True, slots=True)
class Options:
    """``JoinOptions`` with defaults, checked. ``drop_beyond`` and ``buffer_bytes`` None unless ``slow`` says so."""

    lease: float
    patience: float
    at_most_once: bool
    batch_rows: int
    drop_beyond: int | None
    buffer_bytes: int | None
    filter: Filter

    @classmethod
    def of(cls, given: JoinOptions) -> Self:
        """Raises UsageError for options that cannot be."""
        delivery, slow = given.get("delivery", "at least once"), given.get("slow", "block")
        for option, value, known in (("delivery", delivery, DeliveryMode), ("slow", slow, Slow)):
            if value not in get_args(known):
                raise UsageError(f"{option}={value!r} is none of {', '.join(map(repr, get_args(known)))}")
        lease, patience = given.get("lease", 30.0), given.get("patience", 300.0)
        batch_rows = given.get("batch_rows", BATCH_ROWS)
        drop_beyond, buffer_bytes = given.get("drop_beyond", 100_000), given.get("buffer_bytes", 64 << 20)
        if lease <= 0 or patience <= 0 or min(batch_rows, drop_beyond, buffer_bytes) < 1:
            raise UsageError("lease, patience, batch_rows, drop_beyond and buffer_bytes are greater than 0")
        return cls(
            lease=lease,
            patience=patience,
            at_most_once=delivery == "at most once",
            batch_rows=batch_rows,
            drop_beyond=drop_beyond if slow == "drop" else None,
            buffer_bytes=buffer_bytes if slow == "buffer" else None,
            filter=Filter.of(given.get("ops"), given.get("keys"), given.get("since"), given.get("events")),
        )
