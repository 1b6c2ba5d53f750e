"""Which rows of the slot does the log hold already, from Kafka? Pure.

Kafka has everything up to where the slot was confirmed and, beyond it, whole transactions and perhaps a part of one.
The slot sends these again. Exactly the rows are dropped that are held, by transaction, LSN of the row, operation and
hash of the key; equal ones, of a table without a key, as often as they are held.

What Kafka holds of a partition is the beginning of what the slot sends: rows are lost or left out where it is not. Such
a topic cannot go on as it is, for a row in front of others of its key would come behind them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tailrace.cdc.kafka.repeats.duplicates import RowIdentity
from tailrace.cdc.wire.buffer import HINT
from tailrace.eventstore.errors import ProtocolError
from tailrace.eventstore.model.topic import Op

LEFT_OUT = "Kafka does not have rows of it that come before others which it has"
MORE = "Kafka has rows of it that Postgres does not send so"
_UPDATE = ord("U")
_STREAMED = frozenset({Op.CREATE.value, Op.UPDATE.value, Op.DELETE.value, Op.TRUNCATE.value})


def row_lsns(operations: Sequence[str], frames: Sequence[tuple[int, int]]) -> list[int]:
    """By row its LSN. ``frames``: (tag, LSN) of a topic's changes, in the order of its rows; an update that changes the
    key makes two rows. Raises ProtocolError where rows and frames do not fit."""
    found: list[int] = []
    for tag, lsn in frames:
        at = len(found)
        moved = tag == _UPDATE and operations[at : at + 1] == [Op.DELETE.value]
        found += [lsn, lsn] if moved else [lsn]
    if len(found) != len(operations):
        raise ProtocolError("changes and rows of a table do not fit together", hint=HINT)
    return found


@dataclass(slots=True)
class HeldRows:
    """What the log holds of one topic, of transactions that the slot may send again. ``ordered``: it is in one
    partition of Kafka, so what is held is a beginning; otherwise that is so for each key alone."""

    rows: Counter[RowIdentity]
    ordered: bool = True
    _new: set[int] = field(default_factory=set)
    _problem: str = ""

    def sift(self, rows: Sequence[RowIdentity]) -> NDArray[np.bool_]:
        """Which of the topic's rows are new. In the slot's order, over all calls."""
        keep = np.ones(len(rows), bool)
        for at, row in enumerate(rows):
            key = _ALL if row[2] == Op.TRUNCATE.value else row[3]
            if self.rows[row] > 0:
                self.rows[row] -= 1
                keep[at] = False
                if self._new and (self.ordered or key == _ALL or not self._new.isdisjoint({key, _ALL})):
                    self._problem = LEFT_OUT
            else:
                self._new.add(key)
        return keep

    def problem(self, transactions: Collection[int], since: int) -> str:
        """Why the topic must be read again, "" when it goes on; once all rows were sifted. ``transactions``: the ids of
        those that the slot sent, whose rows stand behind ``since``: ids come again after years."""
        left = (row for row, number in self.rows.items() if number > 0)
        return MORE if any(row[0] in transactions and row[1] >= since for row in left) else self._problem


_ALL = 1 << 64  # no hash of a key


def streamed(rows: Iterable[RowIdentity]) -> Counter[RowIdentity]:
    """Rows that the slot can send: not those of snapshots."""
    return Counter(row for row in rows if row[2] in _STREAMED)
