"""CopyData messages as they lie in memory, thousands of them end to end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Messages:
    """Payloads of CopyData messages: number i is ``data[ends[i - 1]:ends[i]]`` (from 0 for the first)."""

    data: NDArray[np.uint8]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, messages: Sequence[bytes]) -> Messages:
        ends = np.cumsum([len(each) for each in messages], dtype=np.int64)
        return cls(np.frombuffer(b"".join(messages), np.uint8), ends)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: int) -> bytes:
        """A copy of one, counted from 0."""
        start = int(self.ends[number - 1]) if number else 0
        return self.data[start : self.ends[number]].tobytes()

    def each(self) -> Iterator[bytes]:
        for start, end in pairwise([0, *self.ends.tolist()]):
            yield self.data[start:end].tobytes()
