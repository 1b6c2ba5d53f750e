"""What was fetched and is in no epoch yet. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.cdc.kafka.epochs.transactions import TransactionCut, joined
from tailrace.eventstore.kafka.records import RecordBatchRows


@dataclass(slots=True)
class Waiting:
    """Records that are not in an epoch yet; ``cut`` tells which of them make whole transactions. ``since``: when the
    first of them came, or the last look at them was; ``stuck_since``: since when none of them could go."""

    cut: TransactionCut | None
    parts: list[RecordBatchRows] = field(default_factory=list)
    bytes: int = 0
    rows: int = 0
    since: float | None = None
    stuck_since: float | None = None

    def add(self, fetched: RecordBatchRows, now: float) -> None:
        if self.cut is None:
            self.parts.append(fetched)
        else:
            self.cut.add(fetched)
        self.bytes += fetched.table.nbytes
        self.rows += fetched.table.num_rows
        self.since = self.since or now

    def take(self, now: float, *, everything: bool = False) -> tuple[list[RecordBatchRows], list[int]]:
        """What makes an epoch, and the transactions that are not whole in it."""
        taken, broken, left = self.parts, list[int](), 0
        if self.cut is not None:
            taken, broken = self.cut.take(everything=everything)
            left = self.cut.bytes
        moved = any(each.table.num_rows for each in taken)
        self.parts, self.bytes, self.rows = [], left, 0
        self.since = now if left else None
        self.stuck_since = None if not left else now if moved else self.stuck_since or now
        return joined(taken), broken
