"""Which neighbours are merged: by size tier, so that a row is rewritten once per tier however long the log gets.

Files of a topic stand in its order, and only neighbours can become one: nothing between them, one schema version. A
file is full at ``TARGET_BYTES``. Files before a full file, a gap or another version get no new neighbour, so they
are merged at once. At the growing end ``FAN_IN`` files of about one size make one; a smaller one between
larger ones goes along. So each growing end holds at most ``FAN_IN - 1`` files of each tier, and before each full file
there is at most one that is not.

What a reader has read is not merged with what it has yet to read: a refresh would read a table of millions of rows for
the few that came last. So each position of a reader between files is a growing end, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

FAN_IN = 8
TARGET_BYTES = 64 << 20
MAX_BYTES = 2 * TARGET_BYTES  # two that are not full never make more
# Below this all files are one tier: rewriting them costs less than another tier of files.
_SMALLEST_TIER = 16 << 10


@dataclass(frozen=True, slots=True)
class TierFile:
    path: str
    version: int
    first_row: int
    rows: int
    bytes: int
    last_epoch: int = 0

    @property
    def end_row(self) -> int:
        return self.first_row + self.rows


def plan(files: Sequence[TierFile], positions: Collection[int] = ()) -> list[list[TierFile]]:
    """Groups to be merged, in order, each into one; empty when nothing is to be done. ``files`` in the topic's order,
    ``positions``: the epochs up to which its readers have read. Merging them may make new groups."""
    groups: list[list[TierFile]] = []
    for section, grows in _sections(files, positions):
        groups += _tier_groups(section) if grows else _full_groups(section)
    return groups


def _sections(files: Sequence[TierFile], positions: Collection[int]) -> Iterator[tuple[list[TierFile], bool]]:
    """Neighbours that are not full, and whether they may get new ones. Each full file ends a section, as does the last
    file when nothing can follow it."""
    section: list[TierFile] = []
    for at, file in enumerate(files):
        before = files[at - 1] if at else None
        if before is not None and (before.end_row != file.first_row or before.version != file.version):
            yield section, False
            section = []
        elif before is not None and any(before.last_epoch <= each < file.last_epoch for each in positions):
            yield section, True
            section = []
        if file.bytes >= TARGET_BYTES:
            yield section, False
            section = []
        else:
            section.append(file)
    yield section, True


def _full_groups(section: Sequence[TierFile]) -> Iterator[list[TierFile]]:
    group: list[TierFile] = []
    held = 0
    for file in section:
        group.append(file)
        held += file.bytes
        if held >= TARGET_BYTES:
            yield from [group] if len(group) > 1 else []
            group, held = [], 0
    if len(group) > 1:
        yield group


def _tier_groups(section: Sequence[TierFile]) -> Iterator[list[TierFile]]:
    start = 0
    while start < len(section):
        highest = max(_tier(file.bytes) for file in section[start:])
        upto = max(at for at, file in enumerate(section) if at >= start and _tier(file.bytes) == highest)
        while start <= upto:
            group: list[TierFile] = []
            held = 0
            for file in section[start : upto + 1]:
                group.append(file)
                held += file.bytes
                if len(group) == FAN_IN or held >= TARGET_BYTES:
                    break
            start += len(group)
            if len(group) == FAN_IN or held >= TARGET_BYTES:
                yield group


def _tier(size: int) -> int:
    tier = 0
    while size >= _SMALLEST_TIER * FAN_IN**tier:
        tier += 1
    return tier


def tier_name(size: int) -> str:
    """For people: full, or the bytes that files of its tier stay below."""
    if size >= TARGET_BYTES:
        return "full"
    bound = _SMALLEST_TIER * FAN_IN ** _tier(size)
    return f"<{bound >> 20} MiB" if bound >= 1 << 20 else f"<{bound >> 10} KiB"
