"""Bags: the state of a table without a key, where equal rows are told apart by their number only.

Each row that was read or created counts one, each deleted one takes one away; an update that changed nothing counts
nothing, any other came as a delete and a create. Which of several equal rows a delete meant is not known, and does
not matter.
"""

from __future__ import annotations

import numpy as np

from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.state.row_layout import CREATE, DELETE, READ, Codes, Ints


def surviving_rows(codes: Ints, ops: Codes) -> Ints:
    """Numbers (ascending) of the created rows that are left: of each code as many as were not deleted, the newest.

    ``codes`` are equal exactly for equal rows. Raises IntegrityError when more were deleted than there were.
    """
    created = (ops == CREATE) | (ops == READ)
    left = np.bincount(codes[created], minlength=int(codes.max()) + 1)
    left -= np.bincount(codes[ops == DELETE], minlength=len(left))
    if (left < 0).any():
        raise IntegrityError(
            "a table without a key lost more rows of one content than it had",
            hint="read the topic again from its source: `tailrace verify --source` shows how it differs",
        )
    rows = np.flatnonzero(created)[::-1]  # newest first
    rows = rows[np.argsort(codes[rows], kind="stable")]
    sorted_codes = codes[rows]
    starts = np.searchsorted(sorted_codes, sorted_codes)  # where the rows of each code begin
    rank = np.arange(len(rows)) - starts
    return np.sort(rows[rank < left[sorted_codes]])
