"""Which rows a node of a plan has when its inputs are restricted to some keys.

A refresh of the keys K gives the function only those rows of its inputs that take part in K. Its result is right when
every node of the plan then has either all of its rows (``AllRows``: it is made of inputs that are not restricted) or
just those of its rows whose key is in K (``Spread``). Which of its columns hold that key is followed from
the inputs up.

A row of an input that is declared ``Through`` another one is there when its link has a value that a row of that other
input has at K: it is spread over the *links* of K (``Domain``), until a join with that other input leads back to keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from tailrace.projections.analysis.plan_tree import Node
from tailrace.projections.definition.computed import Computed
from tailrace.projections.definition.model import KeyColumn

Attribute = int | tuple[int, str]
"""A column of a node by Spark's id, or a field of a struct column: what tells columns of one name apart. One below 0 is
no column of a plan: it stands for what is computed of the columns of one row of an input, wherever these are."""

_MOST_KEYS = 16  # unique keys followed per node: joins multiply them, and more help nobody


@dataclass(frozen=True, slots=True)
class Domain:
    """What rows are told apart by: the projection's key (``of`` is empty), or the columns ``columns`` of the rows that
    the input ``of`` has at the requested keys."""

    of: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AllRows:
    """All rows, whatever keys are requested."""


@dataclass(frozen=True, slots=True)
class UnknownRows:
    """Nothing is known any more: an operator below mixes rows of several keys, and was named."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Exactly the rows of the requested keys.

    ``holders`` are, for each column of the domain, attributes that hold its value or NULL. ``covers`` are sets of
    holders of which at least one is not NULL in every row: ``{customers.id}`` below a left join, and
    ``{customers.id, orders.customer_id}`` below a full one. ``never_null`` are columns of the domain of which no row
    has NULL as its value.
    """

    domain: Domain
    holders: Mapping[str, frozenset[Attribute]]
    covers: Mapping[str, frozenset[frozenset[Attribute]]]
    never_null: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, domain: Domain, attributes: Mapping[str, Attribute], never_null: Iterable[str] = ()
    ) -> Spread:
        return cls(
            domain,
            {name: frozenset({held}) for name, held in attributes.items()},
            {name: frozenset({frozenset({held})}) for name, held in attributes.items()},
            frozenset(never_null),
        )

    def restrict_to(self, attributes: Iterable[Attribute]) -> Spread | None:
        """What is left when only these attributes are; None when they do not tell the key."""
        kept = frozenset(attributes)
        covers = {
            name: frozenset(cover for cover in sets if cover <= kept) for name, sets in self.covers.items()
        }
        if not all(covers.values()):
            return None
        holders = {name: held & kept for name, held in self.holders.items()}
        return replace(self, holders=holders, covers=covers)

    def certain(self, name: str, attribute: Attribute) -> bool:
        """Does the attribute hold the value of a domain's column in every row?"""
        return frozenset({attribute}) in self.covers[name]


Rows = AllRows | UnknownRows | Spread
Refusal = tuple[str, str]
"""Why rows of different keys meet, and what to do."""


def column_words(held: KeyColumn) -> str:
    """A column of an input, or in parentheses what is computed of its columns."""
    return held if isinstance(held, str) else f"({held.expression})"


@dataclass(frozen=True, slots=True)
class InputColumn:
    """Where an attribute comes from unchanged: a column of one reading of an input. Attributes of one reading are of
    one row of it, or all NULL together (an outer join)."""

    reading: int
    input: str
    column: str


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column of a node."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class PlanRelation:
    """What is known of the rows of a node. ``unique`` are sets of attributes that no two rows share."""

    output: tuple[OutputColumn, ...]
    rows: Rows
    origins: Mapping[Attribute, InputColumn] = field(default_factory=dict)
    unique: frozenset[frozenset[Attribute]] = frozenset()

    def with_rows(self, rows: Rows) -> PlanRelation:
        return replace(self, rows=rows)

    def is_unique(self, attributes: Iterable[Attribute]) -> bool:
        """Do these attributes tell all rows apart?"""
        known = frozenset(attributes)
        return any(key <= known for key in self.unique)

    def readings_with_key(
        self, attributes: Iterable[Attribute], keys: Mapping[str, Sequence[Sequence[str]]]
    ) -> set[int]:
        """The readings of inputs whose key is among these attributes. ``keys`` are those of the inputs."""
        columns: dict[tuple[int, str], set[str]] = {}
        for attribute in attributes:
            if (origin := self.origins.get(attribute)) is not None:
                columns.setdefault((origin.reading, origin.input), set()).add(origin.column)
        return {
            reading
            for (reading, name), held in columns.items()
            if any(held.issuperset(key) for key in keys.get(name, ()))
        }

    def rename(self, output: tuple[OutputColumn, ...], roots: Mapping[int, Attribute]) -> PlanRelation:
        """The same rows with other columns. ``roots`` are the new columns that hold an old attribute as it is."""
        names: dict[Attribute, list[Attribute]] = {}
        for new, old in roots.items():
            names.setdefault(old, []).append(new)

        def new_names(old: Attribute) -> list[Attribute]:
            direct = names.get(old, [])
            if _is_computed(old):
                return [old, *direct]
            if isinstance(old, int):
                return direct
            fields: list[Attribute] = [(new, old[1]) for new in names.get(old[0], []) if isinstance(new, int)]
            return [*direct, *fields]

        origins = {
            new: origin
            for old, origin in self.origins.items()
            for new in ([old] if _is_computed(old) else new_names(old))
        }
        return PlanRelation(
            output, _rename(self.rows, new_names), origins, _limit(_sets(self.unique, new_names))
        )

    def renumber(self, numbers: Mapping[int, int]) -> PlanRelation:
        """The same with other numbers for what is computed."""

        def number(held: Attribute) -> Attribute:
            return numbers.get(held, held) if isinstance(held, int) else held

        rows = _rename(self.rows, lambda old: [number(old)])
        origins = {number(held): origin for held, origin in self.origins.items()}
        return replace(self, rows=rows, origins=origins)

    def without(self, attributes: frozenset[int]) -> PlanRelation:
        """The same, and nothing is known any more of these attributes."""
        kept = {held: origin for held, origin in self.origins.items() if held not in attributes}
        rows = _rename(self.rows, lambda old: [] if old in attributes else [old])
        return replace(self, rows=rows, origins=kept)

    @property
    def computed(self) -> frozenset[int]:
        """What stands for expressions over columns of an input's row."""
        return frozenset(held for held in self.origins if isinstance(held, int) and held < 0)


def _is_computed(attribute: Attribute) -> bool:
    return isinstance(attribute, int) and attribute < 0


NewNames = Callable[[Attribute], list[Attribute]]


def _rename(rows: Rows, new_names: NewNames) -> Rows:
    """Key columns may be lost on the way: that is noticed where the key is needed."""
    if not isinstance(rows, Spread):
        return rows
    holders = {
        name: frozenset(new for old in held for new in new_names(old)) for name, held in rows.holders.items()
    }
    covers = {name: _sets(sets, new_names) for name, sets in rows.covers.items()}
    return replace(rows, holders=holders, covers=covers)


def _sets(sets: Iterable[frozenset[Attribute]], new_names: NewNames) -> frozenset[frozenset[Attribute]]:
    return frozenset(
        frozenset(chosen) for old in sets for chosen in product(*(new_names(attribute) for attribute in old))
    )


def _limit(sets: Iterable[frozenset[Attribute]]) -> frozenset[frozenset[Attribute]]:
    return frozenset(sorted(sets, key=lambda key: (len(key), sorted(map(str, key))))[:_MOST_KEYS])


def unique_of_join(
    left: PlanRelation, right: PlanRelation, pairs: Iterable[tuple[Attribute, Attribute]], *, keeps: str
) -> frozenset[frozenset[Attribute]]:
    """Unique keys of a join. ``keeps`` names the sides of which no row is lost: ``left``, ``right``, ``both`` (full) or
    ``none`` (inner)."""
    matched = list(pairs)
    found = {one | other for one in left.unique for other in right.unique}
    if keeps in ("none", "left") and right.is_unique(right_side for _, right_side in matched):
        found |= left.unique
    if keeps in ("none", "right") and left.is_unique(left_side for left_side, _ in matched):
        found |= right.unique
    return _limit(found)


def key_words(relation: PlanRelation) -> str:
    """The columns that hold a relation's key, as the user wrote them: ``orders.customer_id``."""
    rows = relation.rows
    if not isinstance(rows, Spread):
        return ""
    names = {column.id: column.name for column in relation.output}

    def word(attribute: Attribute) -> str:
        origin = relation.origins.get(attribute)
        if origin is not None:
            return f"{origin.input}.{origin.column}"
        return names.get(attribute, "") if isinstance(attribute, int) else attribute[1]

    found = []
    for name in rows.domain.columns:
        certain = {attribute for attribute in rows.holders[name] if rows.certain(name, attribute)}
        words = sorted({word(attribute) for attribute in certain or rows.holders[name]} - {""})
        found.append(" or ".join(words) if words else name)
    return ", ".join(found)


def joint(below: Rows, rows: Rows, held: Sequence[Attribute], column: int) -> Rows:
    """A column that is the first of some attributes which is not NULL: after a full join, the key."""
    if not isinstance(below, Spread) or not isinstance(rows, Spread):
        return rows
    holders, covers = dict(rows.holders), dict(rows.covers)
    for name in below.domain.columns:
        chosen = frozenset(held)
        if chosen <= below.holders[name]:
            holders[name] |= {column}
            if any(cover <= chosen for cover in below.covers[name]):
                covers[name] |= {frozenset({column})}
    return replace(rows, holders=holders, covers=covers)


def narrow(rows: Spread, known: set[Attribute]) -> Spread:
    """Holders that a filter leaves no NULL in hold the key for certain, which then is not NULL either."""
    covers = {
        name: rows.covers[name] | {frozenset({held}) for held in rows.holders[name] & known}
        for name in rows.domain.columns
    }
    never = {name for name in rows.domain.columns if rows.holders[name] & known}
    return replace(rows, covers=covers, never_null=rows.never_null | never)


def unite(parts: Sequence[PlanRelation], spreads: Sequence[Spread]) -> Spread:
    """What holds the key in the same place of every part. The columns are those of the first."""
    first = parts[0].output
    holders: dict[str, frozenset[Attribute]] = {}
    covers: dict[str, frozenset[frozenset[Attribute]]] = {}
    for name in spreads[0].domain.columns:
        held = [
            first[at].id
            for at in range(len(first))
            if all(
                spread.certain(name, part.output[at].id) for part, spread in zip(parts, spreads, strict=True)
            )
        ]
        holders[name] = frozenset(held)
        covers[name] = frozenset(frozenset({each}) for each in held)
    never = frozenset.intersection(*(spread.never_null for spread in spreads))
    return Spread(spreads[0].domain, holders, covers, never)


Shape = tuple[object, ...]
"""How an expression is spelled (``computed_columns``)."""


@dataclass(frozen=True, slots=True)
class ComputedColumn:
    """An expression over the ``columns`` of an input; Spark knows of some that they are ``never_null``."""

    shape: Shape
    columns: frozenset[str]
    never_null: bool = False

    @property
    def column(self) -> str | None:
        """The one column that it is, when nothing but a cast that keeps every text is made of it."""
        kind, *name = self.shape
        return str(name[0]) if kind == "column" else None


@dataclass(frozen=True, slots=True)
class InputFacts:
    """What the walk has to know of an input. ``unique`` are sets of columns that no two of its rows share and that are
    never NULL; ``nested``: its columns are fields of the struct column ``key`` (Changes), which no change lacks;
    ``computed``: the parts of the key that are computed of its columns."""

    name: str
    unique: tuple[tuple[str, ...], ...] = ()
    nested: bool = False
    computed: Mapping[Computed, ComputedColumn] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a plan is not local: ``node`` is where."""

    node: Node
    what: str
    hint: str


@dataclass(slots=True)
class Proof:
    """What was found. ``relations`` has every node of the plan; without ``obstacles`` it is local. ``again``: where a
    common table expression is read, its columns by their new ids. ``never_null``: rows whose inputs have NULL where
    ``affects`` says the key is are left out of the result. ``inputs`` are those that are read other than by scalar
    subqueries that name no column around them."""

    relations: dict[Node, PlanRelation] = field(default_factory=dict)
    again: dict[Node, Mapping[int, int]] = field(default_factory=dict)
    obstacles: list[Obstacle] = field(default_factory=list)
    never_null: bool = False
    inputs: set[str] = field(default_factory=set)

    def renames(self, node: Node) -> Iterator[tuple[int, int]]:
        """The columns that an operator gives another id, or one of several columns: the new id and the old one."""
        if node.kind == "Union":
            for first, *others in zip(*(self.relations[part].output for part in node.children), strict=False):
                yield from ((first.id, other.id) for other in others)
        else:
            yield from self.again.get(node, {}).items()
