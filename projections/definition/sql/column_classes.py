"""Classes of equal columns in a query's text: where the columns of its result come from, and which columns it sets
equal. Pure.

A class is a claim, not a proof (see ``derive``). So nothing here has to know what a function or an outer join means. It
finds what the author would have written, or nothing. Names of columns are compared without case, as Spark compares
them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from tailrace.projections.definition.model import Changes, Input, KeyColumn, State
from tailrace.projections.definition.sql.computed_value import coalesced, computed_of, is_plain_cast
from tailrace.projections.definition.sql.meaning import Meaning
from tailrace.projections.definition.sql.postgres.refusal import first_character
from tailrace.projections.definition.sql.query_output import (
    ANYWHERE,
    Place,
    QueryOutput,
    UnionOutput,
    one_with,
    renamed,
)

_READINGS_MAX = 200
"""A common table expression that is read twice is two readings of what it reads: without a limit, two to the power of
how deep they are nested."""


class NotDerived(Exception):
    """Why nothing can be said of a query."""


_Tables = Mapping[str, tuple[exp.CTE, "_Tables"]]


@dataclass(slots=True)
class ClassWalk:
    """Reads a query from its tables up. ``names`` are the inputs by their lower-case names. ``edges`` are places that
    the query sets equal: places that are connected are one class. ``groups`` is what the query groups or partitions
    by. ``excluded`` are readings in NOT IN. ``meanings`` are those of names without a table, by their places in the
    text. ``zone`` is that of a query in Postgres' SQL; None for one in Spark's. ``known`` are the columns of inputs, as
    far as they are known."""

    names: Mapping[str, str]
    inputs: Mapping[str, Input]
    readings: list[str] = field(default_factory=list)
    edges: list[tuple[Place, Place]] = field(default_factory=list)
    groups: list[list[frozenset[Place]]] = field(default_factory=list)
    excluded: set[int] = field(default_factory=set)
    meanings: dict[int, Meaning] = field(default_factory=dict)
    zone: str | None = None
    known: Mapping[str, Sequence[str]] = field(default_factory=dict)
    spelled: dict[Place, KeyColumn] = field(default_factory=dict)
    _above: dict[Place, Place] = field(default_factory=dict)

    def key_column(self, result: QueryOutput, name: str) -> frozenset[Place]:
        """The places that a column of the key comes from."""
        places = result.places(name.lower())
        for place in places:
            if isinstance(place[1], str):
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

    def query(self, query: exp.Expr, tables: _Tables, outer: _Scope | None = None) -> QueryOutput:
        """A SELECT, a set operation or one of these in parentheses. ``tables`` are the common table expressions in
        scope, each with its own scope; ``outer`` is what columns mean around a query inside a condition or value."""
        known = dict(tables)
        with_ = query.args.get("with_")
        for each in with_.expressions if isinstance(with_, exp.With) else ():
            known[each.alias.lower()] = (each, dict(known))
        if isinstance(query, exp.Subquery):
            return self.query(query.this, known, outer)
        if isinstance(query, exp.SetOperation):
            return self._unite(self.query(query.left, known, outer), self.query(query.right, known, outer))
        if isinstance(query, exp.Select):
            return self._select(query, known, outer)
        raise NotDerived(f"it has a {query.key}, which is not followed")

    def _unite(self, left: QueryOutput, right: QueryOutput) -> QueryOutput:
        """A column of a set operation is, in each place, that of both sides."""
        if left.columns and right.columns and not left.stars and not right.stars:
            pairs = zip(left.columns, right.columns, strict=False)
            columns = [(name, self._common_places(ours, theirs)) for (name, ours), (_, theirs) in pairs]
            return QueryOutput(columns)
        return UnionOutput(self._common_places, left, right)

    def _common_places(self, ours: frozenset[Place], theirs: frozenset[Place]) -> frozenset[Place]:
        """The value of either: places of one class, for the key's purposes. Nothing when one of them is computed."""
        if not ours or not theirs:
            return frozenset()
        for one in ours:
            for other in theirs:
                self._join(one, other)
        return ours | theirs

    def _select(self, select: exp.Select, tables: _Tables, outer: _Scope | None) -> QueryOutput:
        scope = _Scope({}, {}, self, outer)
        start = select.args.get("from_")
        for each in [start.this] if start else []:
            self._add(scope, each, tables)
        for join in select.args.get("joins") or []:
            self._join_table(scope, join, tables)
        for each in select.args.get("laterals") or []:
            self._add(scope, each, tables)
        where = select.args.get("where")
        self._conditions(where.this if where else None, scope)
        self._look_into_subqueries(select, tables, scope)
        output = self._project(select, scope)
        self._note_groups(select, scope, output)
        self._note_meanings(select, scope, {name for name, _ in output.columns})
        return output

    def _add(self, scope: _Scope, source: exp.Expr, tables: _Tables) -> str:
        """Add a table of FROM or JOIN; returns its name."""
        if isinstance(source, exp.Subquery | exp.Paren) and isinstance(source.this, exp.Table):
            source = source.this  # (a JOIN b …)
        name = (source.alias_or_name or f" {len(scope.sources)}").lower()
        scope.sources[name] = self._source(source, tables, scope)
        for join in source.args.get("joins") or []:
            self._join_table(scope, join, tables)
        return name

    def _join_table(self, scope: _Scope, join: exp.Join, tables: _Tables) -> None:
        """Its condition sees the tables up to here."""
        name = self._add(scope, join.this, tables)
        using = [column.name.lower() for column in join.args.get("using") or []]
        if join.method.upper() == "NATURAL":
            others = [output for each, output in scope.sources.items() if each != name]
            left = {column for output in others for column, _ in output.columns}
            using = [column for column, _ in scope.sources[name].columns if column in left]
            if (place := first_character(join.this)) is not None:
                self.meanings[place] = Meaning.of_natural_join(using)
        for column in using:
            self._merge(scope, name, column)
        self._conditions(join.args.get("on"), scope)

    def _source(self, source: exp.Expr, tables: _Tables, around: _Scope) -> QueryOutput:
        if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier) and not source.db:
            name = source.name.lower()
            if name in tables:
                defined, seen = tables[name]
                return renamed(self.query(defined.this, seen), defined)
            if name in self.names:
                return renamed(self._read_input(self.names[name]), source)
        if isinstance(source, exp.Subquery):
            return renamed(self.query(source, tables), source)
        if isinstance(source, exp.Lateral) and isinstance(source.this, exp.Subquery):
            return renamed(self.query(source.this, tables, around), source)
        alias = source.args.get("alias")
        columns = alias.columns if isinstance(alias, exp.TableAlias) else []
        return QueryOutput([(column.name.lower(), frozenset()) for column in columns], is_open=not columns)

    def _read_input(self, name: str) -> QueryOutput:
        if len(self.readings) == _READINGS_MAX:
            raise NotDerived(f"it reads its inputs in more than {_READINGS_MAX} places")
        self.readings.append(name)
        number, source = len(self.readings) - 1, self.inputs[name]
        columns = self.known.get(name) or (source.columns if isinstance(source, State) else None)
        if columns is None:
            return QueryOutput(reading=number, is_open=True)
        places = {column: (number, column.lower()) for column in columns}
        if name in self.known:
            self.spelled |= {place: column for column, place in places.items()}
        return QueryOutput([(place[1], frozenset({place})) for place in places.values()], reading=number)

    def _merge(self, scope: _Scope, name: str, column: str) -> None:
        """``USING (column)``: one column from then on."""
        right = scope.sources[name].places(column)
        others = [output for each, output in scope.sources.items() if each != name]
        found = one_with(others, column)
        left = scope.merged.get(column) or (found.places(column) if found else frozenset())
        self._equal(left, right)
        scope.merged[column] = left | right if left and right else frozenset()

    def _conditions(self, condition: exp.Expr | None, scope: _Scope) -> None:
        """What holds in every row."""
        if condition is None:
            return
        for each in condition.flatten() if isinstance(condition, exp.And) else [condition]:
            bare = each.unnest()
            if isinstance(bare, exp.And):
                self._conditions(bare, scope)
            elif isinstance(bare, exp.Or):
                for common in _in_each(bare):
                    self._conditions(common, scope)
            elif isinstance(bare, exp.EQ | exp.NullSafeEQ):
                self._equal(self._made(bare.left, scope), self._made(bare.right, scope))

    def _value(self, expression: exp.Expr, scope: _Scope) -> frozenset[Place]:
        """The places whose value an expression passes on unchanged."""
        match expression:
            case exp.Alias() | exp.Paren():
                return self._value(expression.this, scope)
            case exp.Cast() if is_plain_cast(expression):
                return self._value(expression.this, scope)
            case exp.Column():
                return scope.places(expression)
        parts = [self._value(each, scope) for each in coalesced(expression)]
        classes = {self.root(place) for part in parts for place in part}
        return frozenset().union(*parts) if all(parts) and len(classes) == 1 else frozenset()

    def _made(self, expression: exp.Expr, scope: _Scope) -> frozenset[Place]:
        """The places whose value an expression passes on, or of whose columns alone it is computed."""
        found = self._value(expression, scope)
        if found:
            return found
        bare = expression.unalias().unnest()
        columns = list(bare.find_all(exp.Column))
        placed = [dict(scope.places(column)) for column in columns]
        numbers = set.intersection(*map(set, placed)) if placed else set()
        made = set()
        for number in numbers - {ANYWHERE}:
            held = [self.spelled.get((number, each[number]), each[number]) for each in placed]
            computed = computed_of(bare, held, self.zone)
            if computed is not None:
                made.add((number, computed))
        return frozenset(made)

    def _made_or_constant(self, expression: exp.Expr, scope: _Scope) -> frozenset[Place]:
        """``_made``, or a constant, which is the key of one total."""
        bare = expression.unalias().unnest()
        if isinstance(bare, exp.Literal):
            constant = computed_of(bare, [], self.zone)
            return frozenset({(ANYWHERE, constant)}) if constant is not None else frozenset()
        return self._made(expression, scope)

    def _look_into_subqueries(self, select: exp.Select, tables: _Tables, scope: _Scope) -> None:
        """Queries in conditions and values: what they set equal to columns around them, and what IN compares. One that
        is a value and names no column around it is a constant: that it reads an input says nothing of that one's rows.
        """
        around = [select.args.get("where"), select.args.get("having"), *select.expressions]
        around += [join.args.get("on") for join in select.args.get("joins") or []]
        for place in filter(None, around):
            for inner in _queries_in(place):
                if self._is_constant(inner, tables, scope):
                    continue
                first = len(self.readings)
                found = self.query(inner, tables, scope)
                if isinstance(inner.parent, exp.In) and _is_negated(inner.parent):
                    self.excluded.update(range(first, len(self.readings)))
                elif isinstance(inner.parent, exp.In):
                    of = inner.parent.this.unnest()
                    compared = of.expressions if isinstance(of, exp.Tuple) else [of]
                    for each, (_, places) in zip(compared, found.columns, strict=False):
                        self._equal(self._made(each, scope), places)

    def _is_constant(self, inner: exp.Expr, tables: _Tables, scope: _Scope) -> bool:
        if not isinstance(inner, exp.Subquery) or isinstance(inner.parent, exp.In | exp.Any | exp.All):
            return False
        around = _WatchedScope(scope.sources, scope.merged, self, scope.outer)
        apart = ClassWalk(self.names, self.inputs, zone=self.zone, known=self.known)
        apart.query(inner, tables, around)
        self.meanings |= apart.meanings
        return not around.asked

    def _note_groups(self, select: exp.Select, scope: _Scope, output: QueryOutput) -> None:
        """Note what the query groups by, and what its windows are partitioned by."""
        group = select.args.get("group")
        if group is not None:
            self.groups.append([self._group_value(each, scope, output) for each in group.expressions])
        for each in [*select.expressions, *(select.args.get("windows") or [])]:
            for inner in each.walk(prune=lambda node: isinstance(node, exp.Query)):
                if isinstance(inner, exp.Window):
                    parts = inner.args.get("partition_by") or []
                    self.groups.append([self._made(part, scope) for part in parts])

    def _note_meanings(self, select: exp.Select, scope: _Scope, own: Container[str]) -> None:
        """What the names of a query mean, which has its ``own`` columns: ORDER BY looks for these first, GROUP BY
        after the tables of FROM, before those of a query around."""
        inner = select.walk(prune=lambda node: node is not select and isinstance(node, exp.Query))
        for column in inner:
            if not isinstance(column, exp.Column) or column.table or "start" not in column.this.meta:
                continue
            name = column.name.lower()
            first = isinstance(column.parent, exp.Ordered)
            second = isinstance(column.parent, exp.Group) and not scope.may_have(name)
            of_result = name in own and (first or second)
            means = Meaning.of_result(name) if of_result else scope.meaning(name)
            if means is not None:
                self.meanings[int(column.this.meta["start"])] = means

    def _group_value(self, expression: exp.Expr, scope: _Scope, output: QueryOutput) -> frozenset[Place]:
        """``GROUP BY 1`` and a name of the result count, too."""
        if isinstance(expression, exp.Literal) and expression.name.isdecimal():
            at = int(expression.name) - 1
            return output.columns[at][1] if 0 <= at < len(output.columns) else frozenset()
        found = self._made(expression, scope)
        named = isinstance(expression, exp.Column) and not expression.table
        return found if found or not named else output.places(expression.name.lower())

    def _project(self, select: exp.Select, scope: _Scope) -> QueryOutput:
        output = QueryOutput()
        for each in select.expressions:
            if isinstance(each.this if isinstance(each, exp.Column) else each, exp.Star):
                for passed_on in scope.star_outputs(each):
                    if passed_on.is_known:
                        output.columns += passed_on.columns
                    else:
                        output.stars.append(passed_on)
            else:
                output.columns.append((each.alias_or_name.lower(), self._made_or_constant(each, scope)))
        return output


@dataclass(frozen=True, slots=True)
class _Scope:
    """What the columns of one SELECT mean, as far as its FROM was read."""

    sources: dict[str, QueryOutput]
    merged: dict[str, frozenset[Place]]
    walk: ClassWalk
    outer: _Scope | None = None

    def places(self, column: exp.Column) -> frozenset[Place]:
        """Where a column's value comes from."""
        found = self._places(column)
        for place in found:
            self.walk.spelled.setdefault(place, column.name if column.name.lower() == place[1] else place[1])
        return found

    def meaning(self, name: str) -> Meaning | None:
        """Whose column a name is; None when that is not certain."""
        if name in self.merged:
            return Meaning.of_both(name)
        output = one_with(list(self.sources.values()), name)
        if output is not None:
            return Meaning.of_table(next(each for each, own in self.sources.items() if own is output), name)
        found = self.outer.meaning(name) if self.outer is not None and not self.may_have(name) else None
        return found.outside() if found is not None else None

    def may_have(self, name: str) -> bool:
        """Whether a table here has a column of this name, or several have, or one may."""
        return any(each.has(name) is not False for each in self.sources.values())

    def has_table(self, name: str) -> bool:
        """Is there a table of this name here, or around?"""
        return name in self.sources or (self.outer is not None and self.outer.has_table(name))

    def _places(self, column: exp.Column) -> frozenset[Place]:
        parts = [part.name.lower() for part in column.parts]
        output: QueryOutput | None
        if len(parts) > 1 and parts[0] in self.sources:
            output, parts = self.sources[parts[0]], parts[1:]
        elif len(parts) == 1 and parts[0] in self.merged:
            return self.merged[parts[0]]
        elif len(parts) > 1 and self.outer is not None and self.outer.has_table(parts[0]):
            return self.outer.places(column)
        else:
            output = one_with(list(self.sources.values()), parts[0])
        if output is None:
            return self.outer.places(column) if self.outer is not None else frozenset()
        if len(parts) == 1:
            return output.places(parts[0])
        return self._key_column(output, parts)

    def _key_column(self, output: QueryOutput, parts: Sequence[str]) -> frozenset[Place]:
        """``key.id`` of changes: their lineage names the columns inside the key."""
        if output.reading is None or len(parts) != 2 or parts[0] != "key":
            return frozenset()
        source = self.walk.inputs[self.walk.readings[output.reading]]
        return frozenset({(output.reading, parts[1])}) if isinstance(source, Changes) else frozenset()

    def star_outputs(self, star: exp.Expr) -> list[QueryOutput]:
        """The outputs that ``*`` or ``t.*`` passes on. Nothing is certain about those with EXCEPT and the like."""
        inner = star.this if isinstance(star, exp.Column) else star
        if any(inner.args.values()):
            return [QueryOutput(is_open=True)]
        if isinstance(star, exp.Column):
            found = self.sources.get(star.table.lower())
            return [found] if found else [QueryOutput(is_open=True)]
        columns = [(name, places) for name, places in self.merged.items()]
        return [QueryOutput(columns), *self._unmerged_outputs()] if columns else list(self.sources.values())

    def _unmerged_outputs(self) -> Iterator[QueryOutput]:
        for output in self.sources.values():
            if output.columns or output.stars:
                yield QueryOutput(
                    [each for each in output.columns if each[0] not in self.merged], output.stars
                )
            else:
                yield output


@dataclass(frozen=True, slots=True)
class _WatchedScope(_Scope):
    """What columns mean around a query, which notes those that are ``asked`` for."""

    asked: list[exp.Column] = field(default_factory=list)

    def places(self, column: exp.Column) -> frozenset[Place]:
        self.asked.append(column)
        return frozenset()


def _in_each(alternatives: exp.Or) -> list[exp.Expr]:
    """The equalities that stand in each part of an OR."""
    parts = [each.unnest() for each in alternatives.flatten()]
    first, *others = (list(each.flatten()) if isinstance(each, exp.And) else [each] for each in parts)
    return [each for each in first if isinstance(each, exp.EQ) and all(each in other for other in others)]


def _is_negated(condition: exp.Expr) -> bool:
    around = condition.parent
    while isinstance(around, exp.Paren):
        around = around.parent
    return isinstance(around, exp.Not)


def _queries_in(expression: exp.Expr) -> Iterator[exp.Expr]:
    """The outermost queries inside an expression."""
    walked = expression.walk(prune=lambda node: isinstance(node, exp.Query))
    return (node for node in walked if isinstance(node, exp.Query))
