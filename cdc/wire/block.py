"""Blocks: messages of whole transactions, or a part of one that is larger than a block may be. Values only."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from datetime import datetime

Data = bytes | memoryview


@dataclass(slots=True)
class Block:
    """Messages: number i is ``data[ends[i - 1]:ends[i]]`` (from 0 for the first)."""

    data: Data
    ends: array[int]

    def release(self) -> None:
        """Free the messages once they are decoded: the rows made of them need the memory."""
        self.data, self.ends = b"", array("q")


@dataclass(slots=True)
class FrameBlock(Block):
    """Whole transactions, B … C.

    ``commit_lsn``, ``end_lsn`` and ``commit_ts`` (UTC) are those of the last transaction. ``continues`` is the
    transaction id whose first part was handed out by ``spill``; its rest comes first in this block, without a Begin.
    Relation and Type messages may stand outside of transactions; many of them are a block of no transaction.
    """

    transactions: int
    changes: int
    commit_lsn: int
    end_lsn: int
    commit_ts: datetime
    continues: int | None = None


@dataclass(slots=True)
class PartialBlock(Block):
    """A part of the open transaction ``xid``. Its rows may be written to files but registered only at its commit."""

    changes: int
    xid: int
    commit_lsn: int
    commit_ts: datetime
    continues: int | None = None
