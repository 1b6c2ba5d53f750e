"""Patterns of names: SCHEMA.TABLE or SCHEMA.TABLE.COLUMN, with * and ? in parts that are not quoted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tailrace.eventstore.errors import UsageError

_PART = re.compile(r'"((?:[^"]|"")*)"|([^".]*)')
_HINTS = {
    2: 'write SCHEMA.TABLE with * and ?; quote names with dots or capital letters as you like: "My.Schema".*',
    3: 'write SCHEMA.TABLE.COLUMN with * and ?; quote names with dots as in public."my.table".email',
}
_KINDS = {2: "table", 3: "column"}
_LABEL = 2  # parts of a table's name
Spelling = Callable[[str], str]
"""A name as it is written elsewhere, letter by letter."""


@dataclass(frozen=True, slots=True)
class NamePattern:
    """A pattern for each part of a name. ``exact``: it has no * or ?, so it means one name."""

    parts: tuple[re.Pattern[str], ...]
    exact: bool

    def match(self, *names: str) -> bool:
        return len(names) == len(self.parts) and all(
            part.fullmatch(name) for part, name in zip(self.parts, names, strict=True)
        )

    def is_of(self, schema: str, table: str) -> bool:
        """Whether a column's pattern is of columns of this table."""
        return all(part.fullmatch(name) for part, name in zip(self.parts, (schema, table), strict=False))


@dataclass(frozen=True, slots=True)
class TablePatterns:
    """Which tables a source takes. A table is taken when an inclusion matches it and no exclusion does; an exclusion
    starts with ``!``."""

    include: tuple[NamePattern, ...]
    exclude: tuple[NamePattern, ...]

    @classmethod
    def parse(cls, patterns: Iterable[str]) -> TablePatterns:
        """Raises UsageError on a text that is no pattern."""
        include: list[NamePattern] = []
        exclude: list[NamePattern] = []
        for text in patterns:
            target = exclude if text.startswith("!") else include
            target.append(parse_pattern(text.removeprefix("!"), 2))
        return cls(tuple(include), tuple(exclude))

    def match(self, schema: str, name: str) -> bool:
        return _any_matches(self.include, schema, name) and not _any_matches(self.exclude, schema, name)


def parse_pattern(text: str, parts: int, spelling: Spelling = str) -> NamePattern:
    """Read a pattern of so many parts. All but a column's name have the ``spelling`` of those that they are compared
    with. Raises UsageError on a text that is none."""
    globs: list[re.Pattern[str]] = []
    exact, at = True, 0
    while len(globs) < parts:
        match = _PART.match(text, at)
        if match is None or not match[0].strip('"'):
            break
        globs.append(_glob(match, spelling if len(globs) < _LABEL else str))
        exact = exact and (match[1] is not None or not {"*", "?"} & set(match[0]))
        at = match.end() + 1
        if text[match.end() : at] != ("." if len(globs) < parts else ""):
            break
    else:
        return NamePattern(tuple(globs), exact)
    raise UsageError(f"{text!r} is not a {_KINDS[parts]} pattern", hint=_HINTS[parts])


def _any_matches(patterns: Sequence[NamePattern], *names: str) -> bool:
    return any(pattern.match(*names) for pattern in patterns)


def _glob(match: re.Match[str], spelling: Spelling) -> re.Pattern[str]:
    quoted, plain = match.groups()
    if quoted is not None:
        return re.compile(re.escape(spelling(quoted.replace('""', '"'))))
    pieces = {"*": ".*", "?": "."}
    return re.compile("".join(pieces.get(letter, re.escape(spelling(letter))) for letter in plain), re.DOTALL)
