"""The outermost SELECT of a query in Postgres' SQL as two SELECTs: partial results, and what the query makes of these.
Pure.

The second gives the rows of the query, whatever the key of the partial results is:

  - *Groups*: an aggregate of a group is made of the aggregates of its parts. The stage groups by the same and by a
    part's number besides, which is computed of one column; the query groups the parts of each group.
  - *Groups that add up*: where all aggregates are sums, counts and means over one table's rows, the stage has whole
    groups, with the counts that say by how much changed rows change them (``Additive``).
  - *The first rows* (LIMIT): the stage has all rows.

What has no such form is refused: sums of floats, which depend on the order of rows, means of integers, whose digits do
not follow from sum and count, lists, and windows over the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from tailrace.projections.definition.model import NoStage
from tailrace.projections.definition.sql.postgres.expressions import ordered_aggregates
from tailrace.projections.definition.sql.postgres.functions import TABLE
from tailrace.projections.definition.sql.postgres.functions.partials import MEAN, TOTAL
from tailrace.projections.definition.sql.postgres.names import result_name
from tailrace.projections.definition.sql.postgres.scope import folded

STAGE = "stage"
"""The name of the partial results in the query over them."""
PART = "part"
ROWS = "rows"
_SAME = {"min", "max", "bool_and", "bool_or", "every", "bit_and", "bit_or", "bit_xor"}
_CLAUSES = {"expressions", "from_", "joins", "where", "group", "having", "order", "limit", "offset", "with_"}


class NotSplit(NoStage):
    """Why a query is not split in some way."""


@dataclass(frozen=True, slots=True)
class Split:
    """``stage`` gives the partial results by ``key``; ``query`` reads them as a table ``stage``. ``by_key``: rows of it
    are of partial results with the same values in the key of the result, in its order. ``counted``: by columns of sums,
    those that count what they sum; where the groups add up. ``picks``: by columns of the result the partial results'
    that they are, where all rows of these are the result's."""

    stage: exp.Select
    key: tuple[str, ...]
    query: exp.Select
    by_key: bool = False
    counted: Mapping[str, str] = field(default_factory=dict)
    picks: Mapping[str, str] = field(default_factory=dict)


MayHave = Callable[[str], bool]
"""Whether a name without a table may be a column of a table in FROM."""


def is_grouped(select: exp.Select) -> bool:
    """Whether rows of the query are of groups, or of all rows."""
    return select.args.get("group") is not None or any(
        _aggregates(each) for each in [*select.expressions, select.args.get("having")] if each is not None
    )


def split(
    select: exp.Select,
    key: Sequence[str],
    part: exp.Expr | None,
    may_have: MayHave,
    *,
    adds: bool = False,
) -> Split:
    """``key``: columns of the result that tell its rows apart. ``part``: what cuts groups into parts, of columns of the
    tables in FROM; None leaves them whole. ``adds``: the parts have to add up. Raises NotSplit."""
    for name, value in select.args.items():
        if value and name not in _CLAUSES:
            raise NotSplit(f"it has {name.upper()}")
    if is_grouped(select):
        return _Grouped(select, key, part, may_have, adds).split()
    if part is None and (select.args.get("limit") or select.args.get("offset")):
        return _first_rows(select, key)
    raise NotSplit("it has no groups")


def _first_rows(select: exp.Select, key: Sequence[str]) -> Split:
    if any(each.find(exp.Star, exp.Window) for each in select.expressions):
        raise NotSplit("it selects * or a window")
    named = [(_name(each), each) for each in select.expressions]
    own = {name for name, _ in named}
    stage, query = select.copy(), exp.select(*(_column(name) for name, _ in named)).from_(STAGE)
    for clause in ("order", "limit", "offset"):
        stage.set(clause, None)
        query.set(clause, select.args[clause].copy() if select.args.get(clause) else None)
    for at, each in enumerate(query.args["order"].expressions if query.args.get("order") else ()):
        if _of_result(each.this, own):
            continue
        if each.this.find(exp.Query):
            raise NotSplit("a query stands in ORDER BY")
        stage.append("expressions", exp.alias_(each.this.copy(), f"order_{at}"))
        each.set("this", _column(f"order_{at}"))
    return Split(stage, tuple(key), query)


def _of_result(node: exp.Expr, own: set[str]) -> bool:
    """Whether an item of ORDER BY is a column of the result: its number or its name."""
    if isinstance(node, exp.Literal):
        return True
    return isinstance(node, exp.Column) and not node.table and folded(node.this) in own


@dataclass(slots=True)
class _Grouped:
    """The parts of one query's groups. ``partials``: what the stage computes, by its text; ``counted``: as in
    ``Split``."""

    select: exp.Select
    key: Sequence[str]
    part: exp.Expr | None
    may_have: MayHave
    adds: bool
    groups: list[exp.Expr] = field(default_factory=list)
    partials: dict[str, exp.Expr] = field(default_factory=dict)
    counted: dict[str, str] = field(default_factory=dict)

    def split(self) -> Split:
        """Raises NotSplit."""
        self.groups = list(self._groups())
        whole = len(self.groups)
        distinct = self._distinct()
        if distinct is not None and self.adds:
            raise NotSplit("a count of different values does not add up")
        if distinct is not None and distinct not in self.groups:
            self.groups.append(distinct)  # the same values in several parts count once
        query = exp.select(*(self._item(each) for each in self.select.expressions)).from_(STAGE)
        own = {_name(each) for each in self.select.expressions}
        for clause in ("having", "order", "limit", "offset"):
            given = self.select.args.get(clause)
            if given is not None:
                query.set(clause, self._over_parts(given.copy(), own))
        if self.select.args.get("group") is not None:
            query.set("group", exp.Group(expressions=[_column(f"group_{at}") for at in range(whole)]))
        key, named = self._key(counts=distinct is not None), self._named
        by_key = (
            len(key) == len(self.key)
            and all(named.get(name) in self.groups for name in self.key)
            and self.part is None
            and distinct is None
            and not any(self.select.args.get(clause) for clause in ("limit", "offset"))
        )
        return Split(self._stage(), key, query, by_key, self.counted, self._picks() if by_key else {})

    def _picks(self) -> dict[str, str]:
        """Of a result with a row for each row of the stage: its columns, where each is one of the stage's."""
        if self.select.args.get("having") or not self.adds:
            return {}
        picked = {name: self._picked(value) for name, value in self._named.items()}
        found = {name: column for name, column in picked.items() if column is not None}
        return found if len(found) == len(picked) else {}

    def _picked(self, value: exp.Expr) -> str | None:
        if value in self.groups:
            return f"group_{self.groups.index(value)}"
        call = _aggregate(value.this if isinstance(value, exp.Filter) else value)
        if call is None or _call_name(call) not in ("sum", "count"):
            return None
        return self._partial(value).name

    def _groups(self) -> Iterator[exp.Expr]:
        group = self.select.args.get("group")
        if group is None:
            return
        if any(value for name, value in group.args.items() if name != "expressions"):
            raise NotSplit("it has grouping sets")
        named = self._named
        for each in group.expressions:
            if isinstance(each, exp.Literal) and each.name.isdecimal():
                at = int(each.name) - 1
                if not 0 <= at < len(self.select.expressions):
                    raise NotSplit("it groups by a column that it does not have")
                yield self.select.expressions[at].unalias().copy()
            elif isinstance(each, exp.Column) and not each.table and not self.may_have(folded(each.this)):
                yield named.get(folded(each.this), each).copy()
            elif isinstance(each, exp.Rollup | exp.Cube | exp.GroupingSets | exp.Tuple):
                raise NotSplit("it has grouping sets")
            else:
                yield each.copy()

    @property
    def _named(self) -> dict[str, exp.Expr]:
        return {_name(each): each.unalias() for each in self.select.expressions}

    def _distinct(self) -> exp.Expr | None:
        """What count(DISTINCT …) counts."""
        found = {}
        for each in self._calls():
            inner = each.expressions[0] if each.expressions else None
            if isinstance(inner, exp.Distinct):
                alone = _call_name(each) == "count" and len(inner.expressions) == 1
                if not alone or isinstance(each.parent, exp.Filter) or inner.args.get("on"):
                    raise NotSplit(f"it has {_call_name(each)}(DISTINCT …) of several, or with FILTER")
                found[inner.expressions[0].sql()] = inner.expressions[0]
        if len(found) > 1:
            raise NotSplit("it counts different values of several columns")
        return next(iter(found.values())).copy() if found else None

    def _calls(self) -> Iterator[exp.Anonymous]:
        for clause in [*self.select.expressions, *map(self.select.args.get, ("having", "order"))]:
            yield from _aggregates(clause) if clause is not None else ()

    def _item(self, each: exp.Expr) -> exp.Expr:
        return exp.alias_(self._over_parts(each.unalias().copy(), set()), _name(each), quoted=True)

    def _over_parts(self, node: exp.Expr, own: set[str]) -> exp.Expr:
        """An expression of the query with groups and aggregates in terms of the stage's columns. Names of the result
        (``own``) stay in ORDER BY."""
        made = exp.Paren(this=node)  # so that the node itself can be replaced
        self._replace(node, own)
        found: exp.Expr = made.this
        return found

    def _replace(self, node: exp.Expr, own: set[str]) -> None:
        if node in self.groups:
            node.replace(_column(f"group_{self.groups.index(node)}"))
            return
        if isinstance(node, exp.Ordered) and _of_result(node.this, own):
            return
        call = _aggregate(node.this if isinstance(node, exp.Filter) else node)
        if call is not None:
            node.replace(self._whole(node, call))
            return
        if isinstance(node, exp.Column):
            raise NotSplit(f"{node.name} is neither grouped nor aggregated")
        if isinstance(node, exp.Query | exp.Window | exp.Star):
            raise NotSplit(f"it has {node.key.upper()} over its groups")
        for each in list(node.iter_expressions()):
            self._replace(each, own)

    def _whole(self, node: exp.Expr, call: exp.Anonymous) -> exp.Expr:
        """An aggregate of the parts that gives the aggregate of the group."""
        name = _call_name(call)
        if any(isinstance(each, exp.Order) for each in call.expressions):
            raise NotSplit(f"{name} has an ORDER BY")
        if self.adds and name not in ("count", "sum", "avg"):
            raise NotSplit(f"{name} of changed rows does not say what it is of all")
        if name in _SAME:
            return exp.Anonymous(this=name, expressions=[self._partial(node)])
        distinct = call.find(exp.Distinct)
        if name == "count" and distinct is not None:
            at = self.groups.index(distinct.expressions[0])
            return exp.Anonymous(
                this="count", expressions=[exp.Distinct(expressions=[_column(f"group_{at}")])]
            )
        if name == "count":
            total = exp.Anonymous(this=TOTAL, expressions=[self._partial(node)])
            return exp.Anonymous(this="coalesce", expressions=[total, exp.Literal.number(0)])
        if name == "sum":
            return exp.Anonymous(this=TOTAL, expressions=[self._sum(node)])
        if name == "avg":
            parts = [self._sum(_renamed(node, "sum")), self._partial(_renamed(node, "count"))]
            return exp.Anonymous(this=MEAN, expressions=parts)
        raise NotSplit(f"{name} of a group does not follow from {name} of its parts")

    def _sum(self, node: exp.Expr) -> exp.Column:
        total = self._partial(node)
        if self.adds:
            self.counted[total.name] = self._partial(_renamed(node, "count")).name
        return total

    def _partial(self, node: exp.Expr) -> exp.Column:
        name = self.partials.setdefault(node.sql(), node.copy())
        return _column(f"partial_{[*self.partials.values()].index(name)}")

    def _stage(self) -> exp.Select:
        stage = self.select.copy()
        for clause in ("having", "order", "limit", "offset"):
            stage.set(clause, None)
        items = [exp.alias_(each.copy(), f"group_{at}") for at, each in enumerate(self.groups)]
        grouped = [each.copy() for each in self.groups]
        if self.part is not None:
            items.append(exp.alias_(self.part.copy(), PART))
            grouped.append(self.part.copy())
        items += [exp.alias_(each.copy(), f"partial_{at}") for at, each in enumerate(self.partials.values())]
        if not grouped:
            raise NotSplit("it has one group of all rows")
        if self.adds or not self.partials:
            items.append(exp.alias_(exp.Anonymous(this="count", expressions=[exp.Star()]), ROWS))
        stage.set("expressions", items)
        stage.set("group", exp.Group(expressions=grouped))
        return stage

    def _key(self, *, counts: bool) -> tuple[str, ...]:
        """Where the key of the result is among the groups, no other of them is needed to tell the parts apart, unless a
        part ``counts`` different values. Of what adds up, all columns but sums are of the key."""
        named = self._named
        held = [named[name] for name in self.key if name in named and named[name] in self.groups]
        needed = self.groups if counts or self.adds else []
        chosen = held if len(held) == len(self.key) and all(each in held for each in needed) else self.groups
        names = [f"group_{self.groups.index(each)}" for each in chosen]
        return (*dict.fromkeys(names), *([PART] if self.part is not None else []))


def _renamed(node: exp.Expr, name: str) -> exp.Expr:
    made = node.copy()
    call = made.this if isinstance(made, exp.Filter) else made
    call.set("this", name)
    return made


def _aggregates(node: exp.Expr) -> list[exp.Anonymous]:
    """The calls of aggregates that are this SELECT's own."""
    walked = node.walk(prune=lambda each: isinstance(each, exp.Query | exp.Window))
    return [call for each in walked if (call := _aggregate(each)) is not None]


def _aggregate(node: exp.Expr) -> exp.Anonymous | None:
    """A node, if it is the call of an aggregate."""
    if isinstance(node, exp.AggFunc):
        raise NotSplit(f"{node.key} of a group does not follow from that of its parts")
    if not isinstance(node, exp.Anonymous):
        return None
    name = _call_name(node)
    known = name in ordered_aggregates.NAMES or any(row.kind == "aggregate" for row in TABLE.get(name, ()))
    return node if known else None


def _call_name(call: exp.Anonymous) -> str:
    return folded(call.this) if isinstance(call.this, exp.Identifier) else str(call.this).lower()


def _name(item: exp.Expr) -> str:
    return folded(item.args["alias"]) if isinstance(item, exp.Alias) else result_name(item)


def _column(name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True))
