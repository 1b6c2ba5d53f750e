"""What the rows of a query's inputs affect, derived from its text: where the key's columns come from, and which columns
the query sets equal. Pure.

The result is a claim, like one that an author writes: the proof on Spark's plan and the samples check both. So nothing
here has to know what a function or an outer join means. It finds what the author would have written, or nothing. Names
of columns are compared without case, as Spark compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from sqlglot import exp

from tailrace.projections.definition.lineage import key_columns
from tailrace.projections.definition.model import Affects, Changes, Input, State, Through

_MOST_READINGS = 200
"""A common table expression that is read twice is two readings of what it reads: without a limit, two to the power of
how deep they are nested."""
_MOST_KEYS = 8

Place = tuple[int, str]
"""A column of one reading of an input."""


class NotDerived(Exception):
    """Why nothing can be said of a query."""


@dataclass(frozen=True, slots=True)
class Derived:
    """``affects`` of the inputs in question; ``missing`` are those without one, each with the reason."""

    affects: Mapping[str, Affects]
    missing: Mapping[str, str]


def derive(
    query: exp.Query, key: Sequence[str], inputs: Mapping[str, Input], wanted: Sequence[str]
) -> Derived:
    """The lineage of a query over ``inputs``; those in ``wanted`` do not say what they affect."""
    if not wanted:
        return Derived({}, {})
    walk = _Walk({name.lower(): name for name in inputs}, inputs)
    try:
        result = walk.query(query, {})
    except NotDerived as error:
        return Derived({}, dict.fromkeys(wanted, str(error)))
    traced = {name: walk.key_column(result, name) for name in key[:_MOST_KEYS]}
    found = _Choice(walk, {name: places for name, places in traced.items() if places}, key, inputs, wanted)
    best = found.best()
    return Derived(best, {name: found.why(name) for name in wanted if name not in best})


@dataclass(slots=True)
class _Output:
    """The output of a query or a table. ``columns`` are those with known names, in order, each with the places its
    value comes from (none: it is computed); ``stars`` are outputs that are passed on whole. With a ``reading``, other
    columns are those of an input; if it ``is_open``, there may be others."""

    columns: list[tuple[str, frozenset[Place]]] = field(default_factory=list)
    stars: list[_Output] = field(default_factory=list)
    reading: int | None = None
    is_open: bool = False

    def has(self, name: str) -> bool | None:
        """Whether there is such a column; None when that is not known."""
        if any(column == name for column, _ in self.columns):
            return True
        known = [star.has(name) for star in self.stars]
        if True in known:
            return True
        return None if self.is_open or None in known else False

    def places(self, name: str) -> frozenset[Place]:
        """Where a column's value comes from."""
        for column, places in self.columns:
            if column == name:
                return places
        if self.reading is not None:
            return frozenset({(self.reading, name)})
        chosen = _one(self.stars, name)
        return chosen.places(name) if chosen else frozenset()


def _one(outputs: Sequence[_Output], name: str) -> _Output | None:
    """The only output that has a column; None when that is not certain."""
    known = [(output, output.has(name)) for output in outputs]
    for certain in (True, None):
        found = [output for output, has in known if has is certain]
        if found:
            return found[0] if len(found) == 1 else None
    return None


_Tables = Mapping[str, tuple[exp.CTE, "_Tables"]]
_Same = Callable[[frozenset[Place], frozenset[Place]], frozenset[Place]]


@dataclass(slots=True)
class _Walk:
    """Reads a query from its tables up. ``names`` are the inputs by their lower-case names. ``edges`` are places that
    the query sets equal: places that are connected are one class. ``groups`` is what the query groups or partitions
    by."""

    names: Mapping[str, str]
    inputs: Mapping[str, Input]
    readings: list[str] = field(default_factory=list)
    edges: list[tuple[Place, Place]] = field(default_factory=list)
    groups: list[list[frozenset[Place]]] = field(default_factory=list)
    spelled: dict[Place, str] = field(default_factory=dict)
    _above: dict[Place, Place] = field(default_factory=dict)

    def key_column(self, result: _Output, name: str) -> frozenset[Place]:
        """The places that a column of the key comes from."""
        places = result.places(name.lower())
        for place in places:
            self.spelled.setdefault(place, name)
        return places

    def class_of(self, places: Iterable[Place]) -> set[Place]:
        """All places that hold the value of one of these."""
        roots = {self.root(place) for place in places}
        return {place for place in {*self._above, *roots} if self.root(place) in roots}

    def root(self, place: Place) -> Place:
        """The place that represents a class."""
        while place in self._above:
            place = self._above[place]
        return place

    def _equal(self, ones: frozenset[Place], others: frozenset[Place]) -> None:
        for one in ones:
            for other in others:
                self.edges.append((one, other))
                self._join(one, other)

    def _join(self, one: Place, other: Place) -> None:
        above, below = self.root(one), self.root(other)
        if above != below:
            self._above[below] = above

    def query(self, query: exp.Expr, tables: _Tables) -> _Output:
        """A SELECT, a set operation or one of these in parentheses. ``tables`` are the common table expressions in
        scope, each with its own scope."""
        known = dict(tables)
        with_ = query.args.get("with_")
        for each in with_.expressions if isinstance(with_, exp.With) else ():
            known[each.alias.lower()] = (each, dict(known))
        if isinstance(query, exp.Subquery):
            return self.query(query.this, known)
        if isinstance(query, exp.SetOperation):
            return self._united(self.query(query.left, known), self.query(query.right, known))
        if isinstance(query, exp.Select):
            return self._select(query, known)
        raise NotDerived(f"it has a {query.key}, which is not followed")

    def _united(self, left: _Output, right: _Output) -> _Output:
        """A column of a set operation is, in each place, that of both sides."""
        if left.columns and right.columns and not left.stars and not right.stars:
            pairs = zip(left.columns, right.columns, strict=False)
            columns = [(name, self._same(ours, theirs)) for (name, ours), (_, theirs) in pairs]
            return _Output(columns)
        return _United(self._same, left, right)

    def _same(self, ours: frozenset[Place], theirs: frozenset[Place]) -> frozenset[Place]:
        """The value of either: places of one class, for the key's purposes. Nothing when one of them is computed."""
        if not ours or not theirs:
            return frozenset()
        for one in ours:
            for other in theirs:
                self._join(one, other)
        return ours | theirs

    def _select(self, select: exp.Select, tables: _Tables) -> _Output:
        sources: dict[str, _Output] = {}
        merged: dict[str, frozenset[Place]] = {}
        start = select.args.get("from_")
        joins = select.args.get("joins") or []
        laterals = select.args.get("laterals") or []
        for each in [start.this] if start else []:
            self._add(sources, each, tables)
        for join in joins:
            name = self._add(sources, join.this, tables)
            for column in join.args.get("using") or []:
                self._merge(sources, merged, name, column.name.lower())
        for each in laterals:
            self._add(sources, each, tables)
        scope = _Scope(sources, merged, self)
        conditions = [join.args.get("on") for join in joins]
        where = select.args.get("where")
        for condition in [*conditions, where.this if where else None]:
            self._conditions(condition, scope)
        self._look_into_subqueries(select, tables)
        output = self._projected(select, scope)
        self._grouped(select, scope, output)
        return output

    def _add(self, sources: dict[str, _Output], source: exp.Expr, tables: _Tables) -> str:
        """Add a table of FROM or JOIN; returns its name."""
        name = (source.alias_or_name or f" {len(sources)}").lower()
        sources[name] = self._source(source, tables)
        for join in source.args.get("joins") or []:  # (a JOIN b …) in parentheses
            self._add(sources, join.this, tables)
        return name

    def _source(self, source: exp.Expr, tables: _Tables) -> _Output:
        if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier) and not source.db:
            name = source.name.lower()
            if name in tables:
                defined, seen = tables[name]
                return _renamed(self.query(defined.this, seen), defined)
            if name in self.names:
                return self._reading(self.names[name])
        if isinstance(source, exp.Subquery):
            return _renamed(self.query(source, tables), source)
        alias = source.args.get("alias")
        columns = alias.columns if isinstance(alias, exp.TableAlias) else []
        return _Output([(column.name.lower(), frozenset()) for column in columns], is_open=not columns)

    def _reading(self, name: str) -> _Output:
        if len(self.readings) == _MOST_READINGS:
            raise NotDerived(f"it reads its inputs in more than {_MOST_READINGS} places")
        self.readings.append(name)
        number, source = len(self.readings) - 1, self.inputs[name]
        if isinstance(source, State) and source.columns is not None:
            columns = [column.lower() for column in source.columns]
            return _Output([(column, frozenset({(number, column)})) for column in columns])
        return _Output(reading=number, is_open=True)

    def _merge(
        self, sources: Mapping[str, _Output], merged: dict[str, frozenset[Place]], name: str, column: str
    ) -> None:
        """``USING (column)``: one column from then on."""
        right = sources[name].places(column)
        others = [output for each, output in sources.items() if each != name]
        found = _one(others, column)
        left = merged.get(column) or (found.places(column) if found else frozenset())
        self._equal(left, right)
        merged[column] = left | right if left and right else frozenset()

    def _conditions(self, condition: exp.Expr | None, scope: _Scope) -> None:
        """What holds in every row."""
        if condition is None:
            return
        for each in condition.flatten() if isinstance(condition, exp.And) else [condition]:
            bare = each.unnest()
            if isinstance(bare, exp.And):
                self._conditions(bare, scope)
            elif isinstance(bare, exp.EQ | exp.NullSafeEQ):
                self._equal(self._value(bare.left, scope), self._value(bare.right, scope))

    def _value(self, expression: exp.Expr, scope: _Scope) -> frozenset[Place]:
        """The places whose value an expression passes on unchanged."""
        match expression:
            case exp.Alias() | exp.Paren() | exp.Cast():
                return self._value(expression.this, scope)
            case exp.Column():
                return scope.places(expression)
            case exp.Coalesce():
                parts = [self._value(each, scope) for each in (expression.this, *expression.expressions)]
                classes = {self.root(place) for part in parts for place in part}
                return frozenset().union(*parts) if all(parts) and len(classes) == 1 else frozenset()
        return frozenset()

    def _look_into_subqueries(self, select: exp.Select, tables: _Tables) -> None:
        """Note readings in conditions and values. They are not followed, but they count."""
        around = [select.args.get("where"), select.args.get("having"), *select.expressions]
        around += [join.args.get("on") for join in select.args.get("joins") or []]
        for place in filter(None, around):
            for inner in _queries_in(place):
                self.query(inner, tables)

    def _grouped(self, select: exp.Select, scope: _Scope, output: _Output) -> None:
        """Note what the query groups by, and what its windows are partitioned by."""
        group = select.args.get("group")
        if group is not None:
            self.groups.append([self._group_value(each, scope, output) for each in group.expressions])
        for each in [*select.expressions, *(select.args.get("windows") or [])]:
            for inner in each.walk(prune=lambda node: isinstance(node, exp.Query)):
                if isinstance(inner, exp.Window):
                    parts = inner.args.get("partition_by") or []
                    self.groups.append([self._value(part, scope) for part in parts])

    def _group_value(self, expression: exp.Expr, scope: _Scope, output: _Output) -> frozenset[Place]:
        """``GROUP BY 1`` and a name of the result count, too."""
        if isinstance(expression, exp.Literal) and expression.name.isdecimal():
            at = int(expression.name) - 1
            return output.columns[at][1] if 0 <= at < len(output.columns) else frozenset()
        found = self._value(expression, scope)
        named = isinstance(expression, exp.Column) and not expression.table
        return found if found or not named else output.places(expression.name.lower())

    def _projected(self, select: exp.Select, scope: _Scope) -> _Output:
        output = _Output()
        for each in select.expressions:
            if isinstance(each.this if isinstance(each, exp.Column) else each, exp.Star):
                output.stars += scope.starred(each)
            else:
                output.columns.append((each.alias_or_name.lower(), self._value(each, scope)))
        return output


class _United(_Output):
    """The columns of a set operation's sides by name, where these are not known beforehand."""

    def __init__(self, same: _Same, left: _Output, right: _Output) -> None:
        super().__init__()
        self._same, self._left, self._right = same, left, right

    def has(self, name: str) -> bool | None:
        return self._left.has(name)

    def places(self, name: str) -> frozenset[Place]:
        return self._same(self._left.places(name), self._right.places(name))


@dataclass(frozen=True, slots=True)
class _Scope:
    """What the columns of one SELECT mean."""

    sources: Mapping[str, _Output]
    merged: Mapping[str, frozenset[Place]]
    walk: _Walk

    def places(self, column: exp.Column) -> frozenset[Place]:
        """Where a column's value comes from."""
        found = self._places(column)
        for place in found:
            self.walk.spelled.setdefault(place, column.name if column.name.lower() == place[1] else place[1])
        return found

    def _places(self, column: exp.Column) -> frozenset[Place]:
        parts = [part.name.lower() for part in column.parts]
        output: _Output | None
        if len(parts) > 1 and parts[0] in self.sources:
            output, parts = self.sources[parts[0]], parts[1:]
        elif len(parts) == 1 and parts[0] in self.merged:
            return self.merged[parts[0]]
        else:
            output = _one(list(self.sources.values()), parts[0])
        if output is None:
            return frozenset()
        if len(parts) == 1:
            return output.places(parts[0])
        return self._of_key(output, parts)

    def _of_key(self, output: _Output, parts: Sequence[str]) -> frozenset[Place]:
        """``key.id`` of changes: their lineage names the columns inside the key."""
        if output.reading is None or len(parts) != 2 or parts[0] != "key":
            return frozenset()
        source = self.walk.inputs[self.walk.readings[output.reading]]
        return frozenset({(output.reading, parts[1])}) if isinstance(source, Changes) else frozenset()

    def starred(self, star: exp.Expr) -> list[_Output]:
        """The outputs that ``*`` or ``t.*`` passes on. Nothing is certain about those with EXCEPT and the like."""
        inner = star.this if isinstance(star, exp.Column) else star
        if any(inner.args.values()):
            return [_Output(is_open=True)]
        if isinstance(star, exp.Column):
            found = self.sources.get(star.table.lower())
            return [found] if found else [_Output(is_open=True)]
        columns = [(name, places) for name, places in self.merged.items()]
        return [_Output(columns), *self._without_merged()] if columns else list(self.sources.values())

    def _without_merged(self) -> Iterator[_Output]:
        for output in self.sources.values():
            if output.columns or output.stars:
                yield _Output([each for each in output.columns if each[0] not in self.merged], output.stars)
            else:
                yield output


def _renamed(output: _Output, source: exp.Expr) -> _Output:
    """With the names that ``AS t(a, b)`` gives."""
    alias = source.args.get("alias")
    names = [column.name.lower() for column in alias.columns] if isinstance(alias, exp.TableAlias) else []
    if not names:
        return output
    if output.stars or len(names) != len(output.columns):
        return _Output([(name, frozenset()) for name in names])
    return _Output([(name, places) for name, (_, places) in zip(names, output.columns, strict=True)])


def _queries_in(expression: exp.Expr) -> Iterator[exp.Expr]:
    """The outermost queries inside an expression."""
    walked = expression.walk(prune=lambda node: isinstance(node, exp.Query))
    return (node for node in walked if isinstance(node, exp.Query))


@dataclass(slots=True)
class _Choice:
    """Which columns of the key are followed, and how each input leads there: as many columns and inputs as possible."""

    walk: _Walk
    traced: Mapping[str, frozenset[Place]]
    key: Sequence[str]
    inputs: Mapping[str, Input]
    wanted: Sequence[str]

    def best(self) -> dict[str, Affects]:
        best: dict[str, Affects] = {}
        for followed in self._subsets():
            found = self._by(followed)
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

    def _by(self, followed: tuple[str, ...]) -> dict[str, Affects]:
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

    def _column(self, name: str, column: str) -> str | None:
        """The column that holds a column of the key in every reading of an input; one of the same name is preferred."""
        held = self.walk.class_of(self.traced[column])
        readings = self._readings(name)
        common = {own for _, own in held if readings and all((reading, own) in held for reading in readings)}
        if not common:
            return None
        chosen = min(common, key=lambda own: (own != column.lower(), own))
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
                if mine[0] == reading and self.walk.readings[theirs[0]] in reached:
                    spelled = self.walk.spelled
                    found.setdefault(theirs[0], {}).setdefault(
                        spelled.get(mine, mine[1]), spelled.get(theirs, theirs[1])
                    )
        return [(self.walk.readings[number], tuple(sorted(on.items()))) for number, on in found.items()]

    def why(self, name: str) -> str:
        """Why nothing was found for an input."""
        if not self.traced:
            return f"the key ({', '.join(self.key)}) is no column of an input as it is"
        readings = len(self._readings(name))
        if readings > 1:
            return f"it is read in {readings} places, which do not lead to the key by the same columns"
        return "no column of it is set equal to the key, or to a column of an input that leads there"
