"""A row's key on the command line: its value, or those of its columns with commas between, as a line of CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence


def key_of(text: str, columns: int) -> tuple[str, ...] | None:
    """The texts of a key's columns; None when the text has not as many. A key of one column is taken as it is."""
    parts = (text,) if columns == 1 else tuple(next(csv.reader(io.StringIO(text)), []))
    return parts if len(parts) == columns else None


def key_text(parts: Sequence[str]) -> str:
    """What ``key_of`` reads."""
    if len(parts) == 1:
        return parts[0]
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(parts)
    return text.getvalue()
