"""Regular expressions of Postgres as Java's, where both find the same.

Postgres takes the longest match at the first place, Java the first alternative that leads to one. Whether there is a
match is the same. Where the match itself is used, only patterns pass for which both find the same one: characters and
sets with greedy quantifiers, groups without one, and alternatives that are texts of which none begins with another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tailrace.projections.definition.sql.postgres.refusal import NotInTable
from tailrace.projections.definition.sql.postgres.types.values import quoted

_WORD = r"\p{L}\p{M}\p{Nd}_"
_CLASSES = {"d": "0-9", "s": r" \t\n\x0B\f\r", "w": _WORD}
_NAMED_CLASSES = {
    "alpha": r"\p{L}\p{M}", "digit": "0-9", "alnum": r"\p{L}\p{M}\p{Nd}", "space": _CLASSES["s"], "upper": r"\p{Lu}",
    "lower": r"\p{Ll}", "xdigit": "0-9A-Fa-f", "blank": r" \t", "word": _WORD,
}  # fmt: skip
_CHARACTERS = {"n": r"\n", "t": r"\t", "r": r"\r", "f": r"\f", "v": r"\x0B"}
_PLACES = {
    "m": f"(?<![{_WORD}])(?=[{_WORD}])", "M": f"(?<=[{_WORD}])(?![{_WORD}])", "A": r"\A", "Z": r"\z",
    "y": f"(?:(?<![{_WORD}])(?=[{_WORD}])|(?<=[{_WORD}])(?![{_WORD}]))",
}  # fmt: skip
_QUANTIFIER = re.compile(r"[*+?]|\{\d{1,3}(,\d{0,3})?\}")


@dataclass(frozen=True, slots=True)
class Pattern:
    """``java`` finds the same matches; ``groups`` are those in parentheses. ``exact``: the match itself is the same,
    not only that there is one. ``may_be_empty``: a match may have no character."""

    java: str
    groups: int
    exact: bool
    may_be_empty: bool


def read_pattern(pattern: str, *, ignores_case: bool = False) -> Pattern:
    """Raises NotInTable for what has another meaning in Java, or is too rare to say."""
    reader = _Reader(pattern, ignores_case)
    body = reader.alternatives()
    if reader.at < len(pattern):
        raise reader.refused()
    flags = "(?siu)" if ignores_case else "(?s)"
    return Pattern(flags + body, reader.groups, reader.exact, reader.may_be_empty)


@dataclass(slots=True)
class _Reader:
    """One pass over the pattern. Each method reads what it is named after and gives it in Java's words."""

    pattern: str
    ignores_case: bool
    at: int = 0
    groups: int = 0
    exact: bool = True
    may_be_empty: bool = field(default=True)
    _places: int = 0
    """How many places between characters were read."""

    def refused(self) -> NotInTable:
        rest = self.pattern[self.at : self.at + 8]
        return NotInTable(
            f"the regular expression {self.pattern!r} from {rest!r} on", "write it without that"
        )

    def _next(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def alternatives(self) -> str:
        """Up to the end or a closing parenthesis."""
        branches, texts, least = [], [], []
        while True:
            begin = self.at
            java, empty = self._branch()
            branches.append(java)
            texts.append(self.pattern[begin : self.at])
            least.append(empty)
            if self._next() != "|":
                break
            self.at += 1
        if len(branches) > 1 and not _are_distinct_texts(texts):
            self.exact = False
        self.may_be_empty = any(least)
        return "|".join(branches)

    def _branch(self) -> tuple[str, bool]:
        found, may_be_empty = [], True
        while self._next() not in ("", "|", ")"):
            is_group, places = self._next() == "(", self._places
            java, is_place, empty = self._atom()
            self._places += is_place
            quantifier = _QUANTIFIER.match(self.pattern, self.at)
            # Java ends repeating with a turn that takes no character, though behind it the place would be met again.
            turns_end = is_group and empty and self._places > places and quantifier and quantifier[0] != "?"
            if quantifier and (is_place or turns_end):
                raise self.refused()
            if quantifier:
                self.at = quantifier.end()
                java += quantifier[0]
                empty = (
                    empty or quantifier[0][0] in "*?" or re.match(r"\{0*(,|\})", quantifier[0]) is not None
                )
                if is_group:
                    self.exact = False
                if self._next() == "?":
                    java, self.at, self.exact = java + "?", self.at + 1, False
                if self._next() in ("*", "+", "?", "{"):
                    raise self.refused()
            may_be_empty = may_be_empty and empty
            found.append(java)
        return "".join(found), may_be_empty

    def _atom(self) -> tuple[str, bool, bool]:
        """Its words, whether it is a place between characters, and whether it may match none."""
        letter = self._next()
        match letter:
            case "(":
                return self._group()
            case "[":
                return self._set(), False, False
            case "\\":
                return self._escape()
            case "^":
                self.at += 1
                return "^", True, True
            case "$":
                self.at += 1
                return r"\z", True, True
            case "*" | "+" | "?" | "{":
                raise self.refused()
        self.at += 1
        return ("." if letter == "." else _literal(letter)), False, False

    def _group(self) -> tuple[str, bool, bool]:
        kind = next((each for each in ("(?:", "(?=", "(?!") if self.pattern.startswith(each, self.at)), "(")
        if kind == "(" and self.pattern.startswith("(?", self.at):
            raise self.refused()
        self.at += len(kind)
        self.groups += kind == "("
        inner = self.alternatives()
        empty = self.may_be_empty
        if self._next() != ")":
            raise self.refused()
        self.at += 1
        return f"{kind}{inner})", kind in ("(?=", "(?!"), empty or kind in ("(?=", "(?!")

    def _escape(self) -> tuple[str, bool, bool]:
        letter = self.pattern[self.at + 1 : self.at + 2]
        java = self._class_escape(letter) or _CHARACTERS.get(letter) or _PLACES.get(letter)
        if java is None and letter and not letter.isalnum():
            java = _literal(letter)
        if java is None:
            raise self.refused()
        self.at += 2
        return java, letter in _PLACES, letter in _PLACES

    def _class_escape(self, letter: str) -> str | None:
        if letter.lower() not in _CLASSES or not letter:
            return None
        return f"[{'^' if letter.isupper() else ''}{_CLASSES[letter.lower()]}]"

    def _set(self) -> str:
        """``[…]``"""
        begin = self.at
        self.at += 1
        found = ["["]
        if self._next() == "^":
            found.append("^")
            self.at += 1
        first = True
        while self._next() != "]" or first:
            first = False
            if self._next() == "":
                self.at = begin
                raise self.refused()
            found.append(self._member())
        self.at += 1
        return "".join(found) + "]"

    def _member(self) -> str:
        if named := re.compile(r"\[:(\w+):\]").match(self.pattern, self.at):
            if named[1] not in _NAMED_CLASSES or (self.ignores_case and named[1] in ("upper", "lower")):
                raise self.refused()
            self.at = named.end()
            return _NAMED_CLASSES[named[1]]
        one = self._character()
        if self._next() == "-" and self.pattern[self.at + 1 : self.at + 2] not in ("]", ""):
            self.at += 1
            return f"{one}-{self._character()}"
        return one

    def _character(self) -> str:
        """One character of a set, or a class in it."""
        letter = self._next()
        if letter == "[":
            raise self.refused()
        if letter != "\\":
            self.at += 1
            return _literal(letter)
        letter = self.pattern[self.at + 1 : self.at + 2]
        found = (
            _CLASSES.get(letter)
            or _CHARACTERS.get(letter)
            or (None if letter.isalnum() else _literal(letter))
        )
        if not letter or found is None:
            raise self.refused()
        self.at += 2
        return found


def _literal(letter: str) -> str:
    return (
        letter if letter.isalnum() or letter in " _<>=!@%#~`'\",;:/" or ord(letter) > 127 else f"\\{letter}"
    )


def _are_distinct_texts(branches: list[str]) -> bool:
    """Whether alternatives are plain texts of which none begins with another."""
    if not all(re.fullmatch(r"[\w ,;:@-]+", branch) for branch in branches):
        return False
    return not any(one is not other and one.startswith(other) for one in branches for other in branches)


def read_replacement(text: str, groups: int, *, shifted: int) -> str:
    r"""A replacement with ``\1`` and ``\&`` in Java's words; groups of the pattern begin behind ``shifted`` others."""
    found, at, after_group = [], 0, False
    while at < len(text):
        letter, following = text[at], text[at + 1 : at + 2]
        if letter == "\\" and (following.isdecimal() or following in ("&", "\\")) and following:
            at += 2
            if following == "\\":
                found.append("\\\\")
                after_group = False
                continue
            number = 0 if following in ("&", "0") else int(following)
            if following == "0" or number > groups:
                continue
            found.append(f"${number + shifted}")
            after_group = True
            continue
        at += 1
        plain = letter.isalnum() or letter == "_" or ord(letter) > 127
        found.append(f"\\{letter}" if not plain or (after_group and letter.isdecimal()) else letter)
        after_group = False
    return "".join(found)


def like_pattern(sql: str, constant: str | None, escape: str) -> str:
    """A pattern of LIKE in Spark's SQL. There an escape before a plain character is an error, in Postgres nothing."""
    kept, dropped = f"({re.escape(escape)}[%_{re.escape(escape)}])", f"{re.escape(escape)}(.)"
    if constant is None:
        return f"regexp_replace({sql}, {quoted(f'(?s){kept}|{dropped}')}, '$1$2')"
    return quoted(re.sub(f"{kept}|{dropped}", lambda found: found[1] or found[2], constant, flags=re.S))
