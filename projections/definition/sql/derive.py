"""What the inputs of a query in SQL affect, where its header does not say: the choice among what its text shows. Pure.

The result is a claim, like one that an author writes: the proof on Spark's plan and the samples check both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType

from sqlglot import exp

from tailrace.projections.definition.computed import Computed
from tailrace.projections.definition.lineage import key_columns
from tailrace.projections.definition.model import Affects, Input, KeyColumn, Through
from tailrace.projections.definition.sql.column_classes import ClassWalk, NotDerived
from tailrace.projections.definition.sql.meaning import Meaning
from tailrace.projections.definition.sql.query_output import ANYWHERE, Place

_KEY_COLUMNS_MAX = 8


@dataclass(frozen=True, slots=True)
class NotFound:
    """Why nothing was found for an input, and how to write the query so that something is ("": no other way)."""

    why: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class DerivedAffects:
    """``affects`` of the inputs in question; ``missing`` are those without one, but for what only constants read.
    ``untraced``: columns of the key that are no column of an input as it is, as far as the text tells."""

    affects: Mapping[str, Affects]
    missing: Mapping[str, NotFound]
    untraced: tuple[str, ...] = ()


def derive(
    query: exp.Expr,
    key: Sequence[str],
    inputs: Mapping[str, Input],
    wanted: Sequence[str],
    zone: str | None = None,
    known: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> DerivedAffects:
    """The lineage of a query over ``inputs``; those in ``wanted`` do not say what they affect. ``zone`` is that of a
    query in Postgres' SQL, with its functions as they are written; None for one in Spark's. ``known`` are the columns
    of inputs: without them only those that are written with their table, or alone in their SELECT, are known."""
    if not wanted:
        return DerivedAffects({}, {})
    walk = ClassWalk({name.lower(): name for name in inputs}, inputs, zone=zone, known=known)
    try:
        result = walk.query(query, {})
    except NotDerived as error:
        return DerivedAffects({}, dict.fromkeys(wanted, NotFound(str(error))))
    traced = {name: walk.key_column(result, name) for name in key[:_KEY_COLUMNS_MAX]}
    found = _KeyChoice(walk, {name: places for name, places in traced.items() if places}, key, inputs, wanted)
    best = found.best()
    missing = {name: found.reason(name) for name in wanted if name not in best and name in walk.readings}
    return DerivedAffects(best, missing, tuple(name for name, places in traced.items() if not places))


def meanings(
    query: exp.Expr, inputs: Mapping[str, Input], known: Mapping[str, Sequence[str]]
) -> Mapping[int, Meaning]:
    """What the names without a table mean, by their places in the text, as far as that is certain."""
    walk = ClassWalk({name.lower(): name for name in inputs}, inputs, known=known)
    try:
        walk.query(query, {})
    except NotDerived:
        return {}
    return walk.meanings


@dataclass(slots=True)
class _KeyChoice:
    """Which columns of the key are followed, and how each input leads there: as many columns and inputs as possible."""

    walk: ClassWalk
    traced: Mapping[str, frozenset[Place]]
    key: Sequence[str]
    inputs: Mapping[str, Input]
    wanted: Sequence[str]

    def best(self) -> dict[str, Affects]:
        best: dict[str, Affects] = {}
        for followed in self._subsets():
            found = self._affects_by(followed)
            if len(found) > len(best):
                best = found
        return best

    def _subsets(self) -> Iterator[tuple[str, ...]]:
        """Sets of key columns that are given by all inputs that say what they affect. First come those that every group
        and window has if it has any of the key, because what it mixes cannot be followed; then larger before
        smaller."""
        known = [
            frozenset(key_columns(tuple(self.key), source.affects))
            for source in self.inputs.values()
            if source.affects is not None and not isinstance(source.affects, Through)
        ]
        names = [name for name in self.traced if all(name in each for each in known)]
        sets = [each for size in range(len(names), 0, -1) for each in combinations(names, size)]
        return iter(sorted(sets, key=self._mixed))

    def _mixed(self, followed: Sequence[str]) -> int:
        """How many groups and windows have only a part of these columns."""
        classes = [self.walk.class_of(self.traced[name]) for name in followed]
        held = [sum(any(places & one for places in group) for one in classes) for group in self._groups()]
        return sum(0 < count < len(classes) for count in held)

    def _groups(self) -> Iterator[list[frozenset[Place]]]:
        """Those that have a column of the key."""
        key = self.walk.class_of(place for places in self.traced.values() for place in places)
        return (group for group in self.walk.groups if any(places & key for places in group))

    def _affects_by(self, followed: tuple[str, ...]) -> dict[str, Affects]:
        """What the wanted inputs affect when these columns are followed."""
        found: dict[str, Affects] = {}
        for name in self.wanted:
            columns = {column: self._column(name, column) for column in followed}
            if all(columns.values()):
                found[name] = {column: held for column, held in columns.items() if held is not None}
        waiting = {name: source.affects for name, source in self.inputs.items() if name not in found}
        reached = list(found)
        while more := [
            name for name, affects in waiting.items() if self._leads(name, affects, reached, found)
        ]:
            reached += more
            waiting = {name: affects for name, affects in waiting.items() if name not in more}
        return found

    def _leads(self, name: str, affects: Affects, reached: Sequence[str], found: dict[str, Affects]) -> bool:
        """Whether an input is known to lead to the key. The way of a wanted input is in ``found``."""
        if affects is None:
            link = self._link(name, reached) if name in self.wanted else None
            if link is not None:
                found[name] = link
            return link is not None
        return not isinstance(affects, Through) or affects.input in reached

    def _readings(self, name: str) -> list[int]:
        return [number for number, read in enumerate(self.walk.readings) if read == name]

    def _column(self, name: str, column: str) -> KeyColumn | None:
        """The column that holds a column of the key in every reading of an input, or what it is computed of; one of the
        same name is preferred. A constant is the key of every row."""
        held = self.walk.class_of(self.traced[column])
        constants = [own for reading, own in held if reading == ANYWHERE]
        if constants:
            return constants[0] if len(held) == 1 else None
        readings = self._readings(name)
        common = {own for _, own in held if readings and all((reading, own) in held for reading in readings)}
        if not common:
            return None
        chosen = min(common, key=lambda own: (own != column.lower(), isinstance(own, Computed), str(own)))
        return self.walk.spelled.get((readings[0], chosen), chosen)

    def _link(self, name: str, reached: Sequence[str]) -> Through | None:
        """The columns by which every reading of an input is joined with one that leads to the key."""
        common: list[tuple[str, tuple[tuple[str, str], ...]]] | None = None
        for reading in self._readings(name):
            links = self._links(reading, [each for each in reached if each != name])
            common = links if common is None else [link for link in common if link in links]
        if not common:
            return None
        through, on = min(common, key=lambda link: reached.index(link[0]))
        return Through(through, dict(on))

    def _links(self, reading: int, reached: Sequence[str]) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
        found: dict[int, dict[str, str]] = {}
        for one, other in self.walk.edges:
            for mine, theirs in ((one, other), (other, one)):
                if mine[0] != reading or self.walk.readings[theirs[0]] not in reached:
                    continue
                own, there = (self.walk.spelled.get(place, place[1]) for place in (mine, theirs))
                if isinstance(own, str) and isinstance(there, str):
                    found.setdefault(theirs[0], {}).setdefault(own, there)
        return [(self.walk.readings[number], tuple(sorted(on.items()))) for number, on in found.items()]

    def reason(self, name: str) -> NotFound:
        """Why nothing was found for an input."""
        readings = self._readings(name)
        if self.walk.excluded & {*readings}:
            return NotFound(
                "it is read in NOT IN, which one NULL makes empty",
                "write NOT EXISTS, which is the same where neither side can be NULL",
            )
        if len(readings) > 1:
            return NotFound(
                f"it is read in {len(readings)} places, which do not lead to the key by the same columns",
                f"declare its table once more, inputs.other_{name}, and read other_{name} in one of these places",
            )
        return NotFound(
            "no column of it is set equal to the key, or to a column of an input that leads there"
        )
