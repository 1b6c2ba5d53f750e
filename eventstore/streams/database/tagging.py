"""The tags of an append as the source's functions take them: arrays, as text that the server reads.

Lists of Python's as parameters would take the driver longer than the append takes the server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from tailrace.eventstore.streams.rows import Asked, Part

TAGS: Final = (
    "CAST(%(names)s AS text[]), CAST(%(steps)s AS bigint[]), CAST(%(tag_of)s AS integer[]),"
    " CAST(%(rank_of)s AS bigint[]), CAST(%(part_of)s AS integer[]), CAST(%(place_of)s AS bigint[]),"
    " CAST(%(type_of)s AS text[]), CAST(%(tags_of)s AS text[])"
)
"""Parameters of a query for the tags of its events."""
TAGS_AND_ASKED: Final = (
    f"{TAGS}, CAST(%(asked)s AS integer[]), CAST(%(seen)s AS bigint[]), CAST(%(asked_types)s AS text[]),"
    " CAST(%(asked_tags)s AS text[])"
)
"""The same, and for what was asked."""


def tagging(parts: Sequence[Part], asked: Sequence[Asked] = ()) -> dict[str, str]:
    """Values of these parameters. The source's function ``put_tags`` says what they are."""
    found = [
        (tag, number, place, row)
        for number, part in enumerate(parts, 1)
        for place, row in enumerate(part.rows, 1)
        for tag in row.tags
    ]
    steps = Counter(tag for tag, *_ in found)
    names = sorted({*steps, *(each.tag for each in asked)}, key=str.encode)
    numbers = {name: number for number, name in enumerate(names, 1)}
    ranks: Counter[str] = Counter()
    rank_of = []
    for tag, *_ in found:
        ranks[tag] += 1
        rank_of.append(ranks[tag])
    return {
        "names": texts(names),
        "steps": _numbers(steps[name] for name in names),
        "tag_of": _numbers(numbers[tag] for tag, *_ in found),
        "rank_of": _numbers(rank_of),
        "part_of": _numbers(number for _, number, _, _ in found),
        "place_of": _numbers(place for _, _, place, _ in found),
        "type_of": texts(row.type.name for *_, row in found),
        "tags_of": texts(texts(row.tags) for *_, row in found),
        "asked": _numbers(numbers[each.tag] for each in asked),
        "seen": _numbers(each.version for each in asked),
        "asked_types": texts(texts(each.names) if each.names else None for each in asked),
        "asked_tags": texts(texts(each.tags) for each in asked),
    }


def texts(values: Iterable[str | None]) -> str:
    """An array of texts, as https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO has it."""
    return f"{{{','.join('NULL' if each is None else _quoted(each) for each in values)}}}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _numbers(values: Iterable[int]) -> str:
    return f"{{{','.join(map(str, values))}}}"
