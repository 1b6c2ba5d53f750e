"""What a declared upcaster does to the JSON of an event: drop, rename, move, cast, default, in this order.

Fields are named by paths: ``address.city`` is field ``city`` of the object ``address``. What is not there is passed
over, except by ``default``, which puts it there.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Json: TypeAlias = dict[str, Any]
JsonType = Literal["str", "int", "float", "bool"]
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Reshape:
    """The steps of one upcaster. ``rename`` leads from a path to a new last part of it, ``move`` to another path."""

    drop: Sequence[str]
    rename: Mapping[str, str]
    move: Mapping[str, str]
    cast: Mapping[str, JsonType]
    default: Mapping[str, Any]

    def __call__(self, data: Json) -> Json:
        """Changes and gives ``data``. Raises ValueError for a value that cannot be cast, or a place that is taken."""
        for path in self.drop:
            _take(data, path)
        for path, name in self.rename.items():
            _move(data, path, ".".join([*path.split(".")[:-1], name]))
        for path, target in self.move.items():
            _move(data, path, target)
        for path, kind in self.cast.items():
            value = _take(data, path)
            if value is not _MISSING:
                _put(data, path, _cast(value, kind, path))
        for path, value in self.default.items():
            if not _has(data, path):
                _put(data, path, copy.deepcopy(value))
        return data


def _take(data: Json, path: str) -> Any:
    *above, name = path.split(".")
    for part in above:
        inner = data.get(part)
        if not isinstance(inner, dict):
            return _MISSING
        data = inner
    return data.pop(name, _MISSING)


def _has(data: Any, path: str) -> bool:
    for part in path.split("."):
        if not isinstance(data, dict) or part not in data:
            return False
        data = data[part]
    return True


def _put(data: Json, path: str, value: Any) -> None:
    *above, name = path.split(".")
    for part in above:
        inner = data.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ValueError(f"{path}: {part} is no object")
        data = inner
    data[name] = value


def _move(data: Json, path: str, target: str) -> None:
    value = _take(data, path)
    if value is _MISSING:
        return
    if _has(data, target):
        raise ValueError(f"{path} cannot become {target}, which is there already")
    _put(data, target, value)


def _cast(value: Any, kind: JsonType, path: str) -> Any:
    """``value`` as another kind of JSON, only where both say the same. Null stays null, what was erased so."""
    match kind, value:
        case _, None:
            return None
        case _, {"$personal": None}:  # it was erased
            return value
        case "str", bool():
            return "true" if value else "false"
        case "str", int() | float() | str():
            return str(value)
        case "int", str() | int() | float() if int(value) == value or isinstance(value, str):
            return int(value)
        case "float", str() | int() | float():
            return float(value)
        case "bool", bool():
            return value
        case "bool", "true" | "false":
            return value == "true"
        case "bool", 0 | 1:
            return bool(value)
    raise ValueError(f"{path} is no {kind}")
