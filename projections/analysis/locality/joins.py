"""Which rows a join leaves when its inputs are restricted to some keys, and which columns hold their key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from tailrace.projections.analysis.expressions import Equality
from tailrace.projections.analysis.spread import (
    AllRows,
    Attribute,
    PlanRelation,
    Refusal,
    Rows,
    Spread,
    UnknownRows,
)

_KEPT = {
    "Inner": (), "Cross": (), "LeftOuter": ("left",), "RightOuter": ("right",), "FullOuter": ("left", "right"),
    "LeftSemi": ("left",), "LeftAnti": ("left",), "ExistenceJoin": ("left",),
}  # fmt: skip
"""The sides whose rows appear whether they match or not; of semi and anti joins, the side that appears at all."""
INNER = frozenset({"Inner", "Cross"})


@dataclass(frozen=True, slots=True)
class JoinSides:
    """The two sides, and the equalities between an attribute of each."""

    left: PlanRelation
    right: PlanRelation
    matched: tuple[Equality, ...]

    @classmethod
    def of(cls, left: PlanRelation, right: PlanRelation, equalities: Sequence[Equality]) -> JoinSides:
        on_left, on_right = _ids(left), _ids(right)
        found = []
        for each in equalities:
            if _base(each.one) in on_left and _base(each.other) in on_right:
                found.append(each)
            elif _base(each.one) in on_right and _base(each.other) in on_left:
                found.append(Equality(each.other, each.one, each.nulls))
        return cls(left, right, tuple(found))

    def pairs(self) -> Iterator[tuple[Attribute, Attribute]]:
        """(left, right) of each equality that NULL does not fulfil."""
        return ((each.one, each.other) for each in self.matched if not each.nulls)


SidesOf = Callable[[PlanRelation, PlanRelation], JoinSides]


def _base(attribute: Attribute) -> int:
    return attribute if isinstance(attribute, int) else attribute[0]


def _ids(relation: PlanRelation) -> frozenset[Attribute]:
    return frozenset(column.id for column in relation.output) | relation.computed


def join_rows(kind: str, sides: JoinSides) -> Rows | None:
    """The rows of a join by Spark's type of it (``LeftOuter``); None when rows of different keys meet."""
    left, right = sides.left.rows, sides.right.rows
    kept = _KEPT.get(kind)
    if kept is None:
        return None
    match left, right:
        case (UnknownRows(), _) | (_, UnknownRows()):
            return UnknownRows()
        case AllRows(), AllRows():
            return AllRows()
        case Spread(), AllRows():
            return left if "right" not in kept else None
        case AllRows(), Spread():
            return right if "left" not in kept else None
        case Spread(), Spread():
            return _join_spreads(kind, kept, sides, left, right)
    return None


def join_in_any_order(parts: Sequence[PlanRelation], sides_of: SidesOf) -> Rows | Refusal:
    """The rows of inner joins of these parts. In which order a plan joins them says nothing, so that a part waits until
    what leads to its rows is there. ``sides_of`` two parts has the equalities between them."""
    waiting = list(parts)
    while len(waiting) > 1:
        pairs = [sides_of(one, other) for one, other in combinations(waiting, 2)]
        joined = ((sides, join_rows("Inner", sides)) for sides in pairs)
        sides, rows = next((each for each in joined if each[1] is not None), (pairs[0], None))
        if rows is None:
            return refusal_of("Inner", sides)
        left, right = sides.left, sides.right
        origins = {**left.origins, **right.origins}
        both = PlanRelation((*left.output, *right.output), rows, origins)
        waiting = [both, *(each for each in waiting if each is not left and each is not right)]
    return waiting[0].rows


def _join_spreads(
    kind: str, kept: Sequence[str], sides: JoinSides, left: Spread, right: Spread
) -> Rows | None:
    if left.domain == right.domain:
        return _join_by_key(kind, kept, sides, left, right)
    if _leads(sides.left, list(sides.pairs()), right):
        return left if "right" not in kept else None
    swapped = [(other, one) for one, other in sides.pairs()]
    if _leads(sides.right, swapped, left):
        return right if "left" not in kept else None
    return None


def _join_by_key(
    kind: str, kept: Sequence[str], sides: JoinSides, left: Spread, right: Spread
) -> Rows | None:
    """Both sides are spread over one domain: they have to be joined by all of it."""
    for name in left.domain.columns:
        if not any(_same_key(each, left, right, name) for each in sides.matched):
            return None
    names = left.domain.columns
    matched = {
        name
        for name in names
        if any(not each.nulls and _same_key(each, left, right, name) for each in sides.matched)
    }
    if kind in ("LeftSemi", "LeftAnti", "ExistenceJoin"):
        return replace(left, never_null=left.never_null | matched) if kind == "LeftSemi" else left
    holders = {name: left.holders[name] | right.holders[name] for name in names}
    if not kept:
        never = left.never_null | right.never_null | matched
        covers = {name: left.covers[name] | right.covers[name] for name in names}
    elif kept == ("left",):
        never = left.never_null
        covers = dict(left.covers)
    elif kept == ("right",):
        never = right.never_null
        covers = dict(right.covers)
    else:
        never = left.never_null & right.never_null
        covers = {
            name: frozenset(one | other for one in left.covers[name] for other in right.covers[name])
            for name in names
        }
    return Spread(left.domain, holders, covers, frozenset(never))


def _same_key(equality: Equality, left: Spread, right: Spread, name: str) -> bool:
    """Do rows match only when they have one value there? NULL matches NULL with ``<=>``: then neither may be NULL."""
    if equality.nulls:
        return left.certain(name, equality.one) and right.certain(name, equality.other)
    return equality.one in left.holders[name] and equality.other in right.holders[name]


def _leads(side: PlanRelation, pairs: Sequence[tuple[Attribute, Attribute]], linked: Spread) -> bool:
    """Are all rows of ``linked`` that a row of this side matches among those that are read?

    They are when ``linked`` is found through an input of which this side has a row: that row is read itself, and with
    it all rows that its columns of the link lead to. They may be NULL with it, and match nothing."""
    parent = linked.domain.of
    readings = {origin.reading for origin in side.origins.values() if origin.input == parent}
    return any(_is_linked(side, pairs, linked, reading) for reading in readings)


def _is_linked(
    side: PlanRelation, pairs: Sequence[tuple[Attribute, Attribute]], linked: Spread, reading: int
) -> bool:
    """Each column of the link is joined with that column of the reading."""
    return all(
        any(
            theirs in linked.holders[name]
            and (origin := side.origins.get(mine)) is not None
            and (origin.reading, origin.column) == (reading, name)
            for mine, theirs in pairs
        )
        for name in linked.domain.columns
    )


def refusal_of(kind: str, sides: JoinSides) -> Refusal:
    """Why ``join_rows`` gave None, and what to do."""
    left, right = sides.left, sides.right
    if kind not in _KEPT:
        return f"a join of type {kind} may meet rows of any key", "write it as an ordinary join"
    if isinstance(left.rows, AllRows) or isinstance(right.rows, AllRows):
        whole = left if isinstance(left.rows, AllRows) else right
        inputs = _inputs(whole) or "a side without a key"
        return (
            f"an outer or semi join keeps rows of {inputs}, which is read whole, that match nothing",
            f"say what {inputs} affects, or turn the join round",
        )
    assert isinstance(left.rows, Spread) and isinstance(right.rows, Spread)
    if left.rows.domain == right.rows.domain:
        ours, theirs = _holders(left, left.rows), _holders(right, right.rows)
        if ours == theirs and len(_inputs(left).split(", ")) == 1:
            return (
                f"{_inputs(left)} is joined with itself, so that rows of different keys meet",
                _second_input(sides),
            )
        add = "add that to its condition"
        if kind == "LeftAnti":  # one NULL makes NOT IN unknown for all rows
            add = f"write NOT IN as NOT EXISTS, which is the same where neither can be NULL; else {add}"
        return (
            f"rows of different keys meet: the join does not demand {ours} = {theirs}",
            f"{add}; for rows of other keys declare the input again, affects=Through(…)",
        )
    linked = left if left.rows.domain.of else right
    through = linked.rows.domain if isinstance(linked.rows, Spread) else None
    of, columns = (through.of, through.columns) if through else ("", ())
    return (
        f"rows of {_inputs(linked)} are found through {of}, but not joined with the {', '.join(columns)} of it"
        " that the key came by, or kept when nothing matches",
        f"join them with {', '.join(f'{of}.{column}' for column in columns)} beside its key, or say"
        f" otherwise what {_inputs(linked)} affects",
    )


def _second_input(sides: JoinSides) -> str:
    """What to do about a join of an input with itself: the other side's rows are found through this side's."""
    name = _inputs(sides.left)
    links = [
        f"{sides.right.origins[other].column} = {name}.{sides.left.origins[one].column}"
        for one, other in sides.pairs()
        if one in sides.left.origins and other in sides.right.origins
    ]
    by = f" by {' and '.join(links)}" if links else ""
    return (
        f"declare its table once more under another name, with an affects that goes through {name}{by}, and join that"
        " one; or without affects, then each change leads to a full refresh"
    )


def _inputs(relation: PlanRelation) -> str:
    return ", ".join(sorted({origin.input for origin in relation.origins.values()}))


def _holders(relation: PlanRelation, rows: Spread) -> str:
    found = []
    for name in rows.domain.columns:
        words = {
            f"{origin.input}.{origin.column}"
            for held in rows.holders[name]
            if (origin := relation.origins.get(held)) is not None
        }
        found.append(" or ".join(sorted(words)) or name)
    return ", ".join(found)
