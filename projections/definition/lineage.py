"""What the ``affects`` of a projection say together: which columns of its key all inputs give, and by which columns of
theirs. Pure; knows names only.

A projection is *local* when the rows of its result with some values of ``Lineage.key`` depend only on those rows of its
inputs that have these values. Then a change of few rows is a change of few values, and only rows with these values are
read and computed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tailrace.projections.definition.computed import Computed
from tailrace.projections.definition.model import Affects, KeyColumn, Projection, Through


@dataclass(frozen=True, slots=True)
class Direct:
    """The input's columns that hold the values of ``Lineage.key``, in its order, or what these are computed of."""

    columns: tuple[KeyColumn, ...]

    @property
    def computed(self) -> tuple[Computed, ...]:
        """The parts of the key that are computed."""
        return tuple(each for each in self.columns if isinstance(each, Computed))

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that tell a row's key."""
        return read_columns(self.columns)


@dataclass(frozen=True, slots=True)
class Link:
    """The input's rows go where the rows of another input go whose columns ``theirs`` equal its columns ``own``."""

    input: str
    own: tuple[str, ...]
    theirs: tuple[str, ...]

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that tell where a row goes."""
        return self.own


Path = Direct | Link


@dataclass(frozen=True, slots=True)
class Lineage:
    """``key``: the columns of the projection's key, in its order, that every input with a lineage gives; empty when
    there are none. ``paths``: for each such input the way to them; inputs that others go through come first.
    ``unknown``: inputs that do not say what they affect."""

    key: tuple[str, ...]
    paths: Mapping[str, Path]
    unknown: tuple[str, ...]

    def columns_of(self, name: str) -> tuple[str, ...]:
        """The columns by which rows of an input are found: its own, and those by which others go through it."""
        own = self.paths.get(name)
        names = list(own.needed) if own is not None else []
        for path in self.paths.values():
            if isinstance(path, Link) and path.input == name:
                names += path.theirs
        return tuple(dict.fromkeys(names))


def lineage_of(projection: Projection) -> Lineage:
    """The lineage of a projection whose definition was checked."""
    declared = {name: source.affects for name, source in projection.inputs.items()}
    given = {
        name: key_columns(projection.key, affects)
        for name, affects in declared.items()
        if affects is not None and not isinstance(affects, Through)
    }
    key = tuple(
        column for column in projection.key if given and all(column in each for each in given.values())
    )
    paths: dict[str, Path] = {
        name: Direct(tuple(each[column] for column in key)) for name, each in given.items()
    }
    waiting = {name: affects for name, affects in declared.items() if isinstance(affects, Through)}
    while waiting:  # ends: the definition was checked for circles
        for name, through in list(waiting.items()):
            if through.input in paths:
                paths[name] = Link(through.input, tuple(through.on), tuple(through.on.values()))
                del waiting[name]
    unknown = tuple(name for name, affects in declared.items() if affects is None)
    return Lineage(key, paths, unknown)


def read_columns(held: Iterable[KeyColumn]) -> tuple[str, ...]:
    """The columns of an input that parts of a key are, or are computed of."""
    names = [name for each in held for name in (each.columns if isinstance(each, Computed) else (each,))]
    return tuple(dict.fromkeys(names))


def key_columns(key: tuple[str, ...], affects: Affects) -> Mapping[str, KeyColumn]:
    """The columns of an ``affects``, by columns of the key. If all are named like columns of the key, they are those;
    otherwise they stand for the key's columns in order."""
    match affects:
        case str() | Computed():
            return key_columns(key, (affects,))
        case tuple():
            if set(affects) <= set(key):
                return {str(column): column for column in affects}
            return dict(zip(key, affects, strict=True))
        case Mapping():
            return affects
        case _:
            return {}
