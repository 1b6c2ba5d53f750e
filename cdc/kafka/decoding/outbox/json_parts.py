"""Parts of a JSON text as they are written: numbers keep their digits, which Python's values would not."""

from __future__ import annotations

import json
import re

_SPACE = re.compile(r"[ \t\n\r]*")


def _refused(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refused, parse_float=str, parse_int=str)


def members(text: str) -> dict[str, str]:
    """The members of a JSON object, each as it is written. Raises ValueError for everything else, RecursionError for
    one that nests too deep."""
    found: dict[str, str] = {}
    at = _after(text, _space(text, 0), "{")
    if text[at : at + 1] == "}":
        at += 1
    else:
        while True:
            name, at = _value(text, at)
            if not name.startswith('"') or (name := string(name)) in found:
                raise ValueError("no name of a member, or one that was there before")
            at = _after(text, at, ":")
            found[name], at = _value(text, at)
            if text[at : at + 1] == "}":
                at += 1
                break
            at = _after(text, at, ",")
    if _space(text, at) != len(text):
        raise ValueError("more behind the JSON text")
    return found


def string(text: str) -> str:
    """What a JSON string says. Raises ValueError for everything else."""
    found = _DECODER.decode(text)
    if not text.lstrip().startswith('"') or not isinstance(found, str):
        raise ValueError("not a JSON string")
    return found


def _value(text: str, at: int) -> tuple[str, int]:
    """A value as it is written, and where what follows it begins."""
    _, end = _DECODER.raw_decode(text, at)
    return text[at:end], _space(text, end)


def _after(text: str, at: int, sign: str) -> int:
    if text[at : at + 1] != sign:
        raise ValueError(f"{sign} is missing")
    return _space(text, at + 1)


def _space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()
