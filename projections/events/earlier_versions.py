"""Where an earlier version of an event has the fields of today's model, if declared upcasters lead there.

The steps are taken backwards, for each field: what is it called before the step, and what takes its place where it is
missing? Steps that change values (a cast), or the inside of a field, are not taken: then events are upcast one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa

from tailrace.eventstore.streams.models.reshape import Reshape
from tailrace.projections.events.model_columns import Field

Path: TypeAlias = tuple[str, ...]
_DEFAULTS: Final[Mapping[pa.DataType, tuple[type, ...]]] = {
    pa.string(): (str,),
    pa.int64(): (int,),
    pa.float64(): (int, float),
    pa.bool_(): (bool,),
}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a field is: the path of it, empty for nowhere; ``default`` fills what is missing, unless it is None."""

    path: Path
    default: Any = None


def origins(fields: Sequence[Field], steps: Sequence[Reshape]) -> tuple[Origin, ...] | None:
    """For each field of today's model where it is before the steps; None where events must be upcast one by one."""
    found = []
    for field in fields:
        origin = _origin(field, steps)
        if origin is None:
            return None
        found.append(origin)
    paths = [each.path for each in found if each.path]
    nested = any(_is_inside(one, other) for one in paths for other in paths if one is not other)
    return None if nested else tuple(found)


def _origin(field: Field, steps: Sequence[Reshape]) -> Origin | None:
    path: Path = (field.name,)
    default: Any = None
    for step in reversed(steps):
        for filled, value in step.default.items():
            at = _path(filled)
            if at == path:
                # A column says NULL both for null and for nothing.
                if field.nullable or type(value) not in _DEFAULTS.get(field.type, ()):
                    return None
                default = value  # that of an earlier step comes first
            elif _touch(at, path):
                return None
        if any(_touch(_path(each), path) for each in step.cast):
            return None
        for source, target in reversed(list(_moves(step))):
            if _is_inside(path, target):
                path = (*source, *path[len(target) :])
            elif _is_inside(path, source):
                return Origin((), default)
            elif _touch(source, path) or _touch(target, path):
                return None
        for each in step.drop:
            if _is_inside(path, _path(each)):
                return Origin((), default)
            if _touch(_path(each), path):
                return None
    return Origin(path, default)


def _moves(step: Reshape) -> Iterator[tuple[Path, Path]]:
    for path, name in step.rename.items():
        yield _path(path), (*_path(path)[:-1], name)
    for path, target in step.move.items():
        yield _path(path), _path(target)


def _path(text: str) -> Path:
    return tuple(text.split("."))


def _is_inside(path: Path, outer: Path) -> bool:
    return path[: len(outer)] == outer


def _touch(one: Path, other: Path) -> bool:
    return _is_inside(one, other) or _is_inside(other, one)
