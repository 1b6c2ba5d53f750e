"""What a check finds, as values."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["fail", "warn"]


@dataclass(frozen=True, slots=True)
class DefinitionFinding:
    """Something wrong with a projection: ``fail`` when its results would be wrong or it cannot run, ``warn`` when they
    may differ from one computation to the next. ``place`` is ``file:line``. ``input`` and ``column`` name what it is
    about; ``exit_code`` is that of the error it would be (``tailrace.eventstore.errors``)."""

    level: Level
    what: str
    hint: str
    place: str
    input: str = ""
    column: str = ""
    exit_code: int = 2


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The most similar known name, as a question; "" when none is similar."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]}?" if close else ""
