"""What readers get in place of a value that a redaction erased: never an ordinary NULL.

In rows, an erased cell is null and has an entry in ``_raw`` whose text is null; every other entry has a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import BaseModel, ConfigDict


class Erased(BaseModel):
    """The value of an erased cell, and the data of an erased event. False, and prints ``Erased``."""

    model_config = ConfigDict(frozen=True)

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return "Erased"

    def __repr__(self) -> str:
        return "Erased"


ERASED = Erased()


def erased_ids(raw: Mapping[int, bytes | None] | Iterable[tuple[int, bytes | None]] | None) -> frozenset[int]:
    """Ids of the erased cells of a row, from its ``_raw``; those of ``before`` are negative."""
    if not raw:
        return frozenset()
    return frozenset(column for column, text in dict(raw).items() if text is None)
