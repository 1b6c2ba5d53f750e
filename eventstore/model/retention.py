"""How long a topic's rows are kept, as values: read from text, chosen by the topic's name. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeVar

_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_BYTES = {
    "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_QUANTITY = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?([a-z]+)")
_DURATIONS = f"a number and one of {', '.join(_SECONDS)}"
FORMS = f'"keep", a time ("30d": {_DURATIONS}), a size ("50GiB"), "compact", or several joined by +: "compact + 90d"'

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Retention:
    """Rows older than ``seconds``, and the oldest beyond ``bytes`` of stored rows, are deleted. ``compact``: of rows
    before the newest ones, readers get the last of each key. What makes the state stays in every case."""

    seconds: float | None = None
    bytes: int | None = None
    compact: bool = False

    @property
    def keeps_all(self) -> bool:
        return self.seconds is None and self.bytes is None and not self.compact

    @property
    def deletes(self) -> bool:
        return self.seconds is not None or self.bytes is not None

    @classmethod
    def parse(cls, text: str) -> Retention:
        """Raises ValueError, with the forms there are."""
        terms = [term.strip().lower() for term in text.split("+")]
        if terms == ["keep"]:
            return cls()
        seconds: float | None = None
        size: int | None = None
        compact = False
        for term in terms:
            if term == "compact" and not compact:
                compact = True
            elif seconds is None and (found := _quantity(term, _SECONDS)) is not None:
                seconds = found
            elif size is None and (found := _quantity(term, _BYTES)) is not None:
                size = int(found)
            else:
                raise ValueError(f"must be {FORMS}")
        return cls(seconds, size, compact)


def seconds_of(text: str) -> float:
    """A duration such as ``7d``. Raises ValueError."""
    found = 0.0 if text.strip() == "0" else _quantity(text.strip().lower(), _SECONDS)
    if found is None:
        raise ValueError(f"must be a time: {_DURATIONS}, or 0")
    return found


def _quantity(text: str, units: Mapping[str, int]) -> float | None:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in units or not float(match[1]):
        return None
    return float(match[1]) * units[match[2]]


def setting_of(settings: Mapping[str, _T], topic: str) -> _T | None:
    """What holds for a topic: under its own name, otherwise under the last pattern (* and ?) that matches."""
    if topic in settings:
        return settings[topic]
    matching = [each for pattern, each in settings.items() if fnmatchcase(topic, pattern)]
    return matching[-1] if matching else None
