"""Which line of a translation stands for which place of the author's text."""

from __future__ import annotations

import re
from dataclasses import dataclass

_MARK = re.compile("\ue000(\\d*)\ue001")


def marked(text: str, offset: int | None) -> str:
    """A text of which errors are told at ``offset``: the first character of what it translates."""
    return text if offset is None else f"\ue000{offset}\ue001{text}"


def unmarked(text: str) -> str:
    return _MARK.sub("", text)


@dataclass(frozen=True, slots=True)
class SourceMap:
    """``text`` has a line for each marked part, ``offsets`` where it comes from (-1: nowhere)."""

    text: str
    offsets: tuple[int, ...]

    @classmethod
    def of(cls, marked_text: str) -> SourceMap:
        offsets = [-1, *(int(each) for each in _MARK.findall(marked_text))]
        return cls(_MARK.sub("\n", marked_text), tuple(offsets))

    def offset(self, line: int) -> int | None:
        """The place of a line, counted from 1."""
        known = self.offsets[line - 1] if 0 < line <= len(self.offsets) else -1
        return known if known >= 0 else None
