"""Random regular expressions, and short texts of the letters that they are about."""

from __future__ import annotations

import random

_SETS = ("[ab]", "[^a]", "[a-c]", ".", r"\w", r"\d", "[[:alpha:]]", r"\s")
_QUANTIFIERS = ("*", "+", "?", "{2}", "{1,2}", "{0,1}", "{2,}", "*?")


def text(rng: random.Random) -> str:
    return "".join(rng.choices("aabbc-1 ", k=rng.randrange(10)))


def pattern(rng: random.Random, depth: int = 2) -> str:
    """Alternatives, with groups ``depth`` deep."""
    return "|".join(_branch(rng, depth) for _ in range(rng.choice((1, 1, 1, 2))))


def _branch(rng: random.Random, depth: int) -> str:
    pieces = "".join(_piece(rng, depth) for _ in range(rng.randint(1, 4)))
    return rng.choice(("", "", "", "", "^")) + pieces + rng.choice(("", "", "", "", "$"))


def _piece(rng: random.Random, depth: int) -> str:
    return _atom(rng, depth) + rng.choice(("", "", "", *_QUANTIFIERS[: rng.randint(2, len(_QUANTIFIERS))]))


def _atom(rng: random.Random, depth: int) -> str:
    if depth and rng.random() < 0.25:
        return f"{rng.choice(('(', '(?:'))}{pattern(rng, depth - 1)})"
    return rng.choice(_SETS) if rng.random() < 0.25 else rng.choice("aabbc-1")
