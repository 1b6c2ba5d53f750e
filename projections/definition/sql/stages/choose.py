"""Which partial results a query is made of: by which key changes are followed into them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

import pyarrow as pa
from sqlglot import exp

from tailrace.projections.definition.computed import Computed
from tailrace.projections.definition.lineage import Direct, lineage_of
from tailrace.projections.definition.model import (
    Additive,
    Call,
    Input,
    InputFacts,
    KeyColumn,
    NoStage,
    Projection,
    Result,
    Stage,
    State,
)
from tailrace.projections.definition.sql.derive import derive
from tailrace.projections.definition.sql.postgres.functions.partials import MEAN, MOST_ROWS
from tailrace.projections.definition.sql.postgres.grammar import PostgresText
from tailrace.projections.definition.sql.postgres.scope import folded
from tailrace.projections.definition.sql.postgres.translate import parse
from tailrace.projections.definition.sql.query_lineage import with_affects
from tailrace.projections.definition.sql.stages.plain import with_plain_columns
from tailrace.projections.definition.sql.stages.split import (
    PART,
    ROWS,
    STAGE,
    NotSplit,
    Split,
    is_grouped,
    split,
)

Make = Callable[[str, tuple[str, ...], Mapping[str, Input]], Projection]
"""A projection like the query's, of another text, key and inputs."""
_ROWS_OF_A_PART = 512
_PARTS = (64, 256, 1024, 4096, 16_384)
"""How many a group may have, so that one has about so many rows: few numbers, so that they seldom become others. A
changed row has the rows of one part computed again, and the query over them reads a row of each."""
_MOST_COLUMNS = 40
_INNER = "part_column"


@dataclass(frozen=True, slots=True)
class QueryStages:
    """``tree`` is the query as it is walked, in Postgres' SQL with clocks of a ``zone``. ``derived`` are the inputs
    whose header does not say what they affect."""

    tree: exp.Expr
    zone: str
    derived: tuple[str, ...]
    make: Make
    may_add: ClassVar[bool] = True

    def stage(self, defined: Projection, facts: InputFacts, _call: Call) -> Stage:
        """The partial results that changes are best followed into. Raises NoStage."""
        if not isinstance(self.tree, exp.Select):
            raise NoStage("it is no single SELECT")
        wanted = tuple(
            name
            for name, source in defined.inputs.items()
            if source.affects is not None or name in self.derived
        )
        bare = with_affects(defined, dict.fromkeys(wanted)).inputs
        return self._adding(self.tree, defined, bare, facts) or self._followed(
            self.tree, defined, bare, wanted, facts
        )

    def _adding(
        self, select: exp.Select, defined: Projection, bare: Mapping[str, Input], facts: InputFacts
    ) -> Stage | None:
        """Whole groups that add up, where there are such: of rows of one table alone."""
        name = _only_input(select, facts)
        source = bare[name] if name is not None else None
        if name is None or not isinstance(source, State):
            return None
        try:
            made = split(
                select, defined.key, _one_part(select, name, facts), _may_have(select, facts), adds=True
            )
        except NotSplit:
            return None
        additive = Additive(name, ROWS, made.counted)
        if not source.cast:
            additive = with_plain_columns(additive, made.stage, facts.names[name])
        partial = replace(self.make(_text(made.stage), made.key, bare), additive=additive)
        return self._stage(partial, made, defined, facts)

    def _stage(self, partial: Projection, made: Split, defined: Projection, facts: InputFacts) -> Stage:
        if MEAN in made.query.sql().lower() and sum(facts.rows.values()) >= MOST_ROWS:
            raise NoStage("the last digit of a mean may be another's among so many rows")
        over = self.make(_text(made.query), defined.key, {STAGE: Result(partial.name)})
        return Stage(partial, over, STAGE, made.by_key, made.picks)

    def _followed(
        self,
        select: exp.Select,
        defined: Projection,
        bare: Mapping[str, Input],
        wanted: Sequence[str],
        facts: InputFacts,
    ) -> Stage:
        """The parts that changes are followed into by key."""
        found: list[tuple[_Order, Projection, Split]] = []
        why, parts = "", _parts(facts)
        for each in _ways(select, facts, parts):
            try:
                made = split(each.select, defined.key, each.part, _may_have(select, facts))
            except NotSplit as error:
                why = why or str(error)
                continue
            followed = made.key if each.part is None else (PART,)
            affects = derive(made.stage, followed, bare, wanted, self.zone, facts.names).affects
            partial = with_affects(self.make(_text(made.stage), made.key, bare), affects)
            rank = _rank(partial, facts, parts)
            if rank is not None:
                share, keys, inputs = rank
                order = (
                    share,
                    min(keys, parts),
                    each.part is None,
                    keys,
                    inputs,
                    isinstance(each.part, exp.Mod),
                )
                found.append((order, partial, made))
        if not found:
            raise NoStage(why or "changes of its inputs are followed into no parts")
        _, partial, made = max(found, key=lambda each: each[0])
        return self._stage(partial, made, defined, facts)


_Order = tuple[int, int, bool, int, int, bool]
"""Of ways: what is followed most comes last; then what is spread wide enough, whole groups, wider, remainders."""


@dataclass(frozen=True, slots=True)
class _Way:
    """``select``, the query, with what its groups are cut into parts by."""

    select: exp.Select
    part: exp.Expr | None


def _only_input(select: exp.Select, facts: InputFacts) -> str | None:
    """The input that a query reads, where it reads one alone, once, and each of its rows by itself."""
    start = select.args.get("from_")
    source = start.this if start is not None else None
    if not isinstance(source, exp.Table) or select.args.get("joins") or select.args.get("with_"):
        return None
    if any(value for name, value in source.args.items() if name not in ("this", "alias")):
        return None
    if any(each is not select for each in select.find_all(exp.Query)) or select.find(exp.Window):
        return None
    return _input_of(source, facts)


def _one_part(select: exp.Select, name: str, facts: InputFacts) -> exp.Expr | None:
    """What makes one group of all rows: the same number for each. None where they are grouped, or nothing does."""
    if select.args.get("group") is not None or not is_grouped(select):
        return None
    schema = facts.schemas[name]
    numbers = [
        column for column in facts.keys.get(name, ()) if pa.types.is_integer(schema.field(column).type)
    ]
    if not numbers:
        return None
    return exp.Mod(this=exp.column(_quoted(numbers[0])), expression=exp.Literal.number(1))


def _parts(facts: InputFacts) -> int:
    wanted = max(facts.rows.values(), default=0) // _ROWS_OF_A_PART
    return next((each for each in _PARTS if each >= wanted), _PARTS[-1])


def _ways(select: exp.Select, facts: InputFacts, parts: int) -> Iterator[_Way]:
    """Whole groups, parts by the remainder of a column, and parts by a column as it is."""
    yield _Way(select, None)
    if not is_grouped(select):
        return
    compared = {
        each.name.lower()
        for equal in select.find_all(exp.EQ, exp.Join)
        for each in (
            [equal.left, equal.right] if isinstance(equal, exp.EQ) else equal.args.get("using") or []
        )
        if isinstance(each, exp.Column | exp.Identifier)
    }
    for changed, column in islice(_columns(select, facts, compared), _MOST_COLUMNS):
        yield _Way(changed, exp.Mod(this=column, expression=exp.Literal.number(parts)))
        yield _Way(changed, column)


def _columns(
    select: exp.Select, facts: InputFacts, compared: Collection[str]
) -> Iterator[tuple[exp.Select, exp.Column]]:
    """The columns of tables in FROM that are compared, or of a key. Those inside a subquery are shown by it."""
    for at, (table, names) in enumerate(_visible(select, facts)):
        for name in _chosen(table, names, facts, compared):
            yield select, exp.column(_quoted(name), table=table.alias_or_name or None)
        inner = _passed_on(table)
        if inner is None:
            continue
        for below, shown in _visible(inner, facts):
            for name in _chosen(below, shown, facts, compared):
                changed = select.copy()
                (subquery, _), *_ = islice(_visible(changed, facts), at, None)
                hidden = exp.column(_quoted(name), table=below.alias_or_name or None)
                subquery.this.append("expressions", exp.alias_(hidden, _INNER))
                yield changed, exp.column(_INNER, table=table.alias_or_name or None)


def _chosen(table: exp.Expr, names: Sequence[str], facts: InputFacts, compared: Collection[str]) -> list[str]:
    keys = {name.lower() for name in facts.keys.get(_input_of(table, facts) or "", ())}
    return [name for name in names if name.lower() in keys or name.lower() in compared]


def _passed_on(table: exp.Expr) -> exp.Select | None:
    """The query of a table that has a row for each row of that query's tables."""
    inner = table.this if isinstance(table, exp.Subquery) else None
    alias = table.args.get("alias")
    if not isinstance(inner, exp.Select) or (isinstance(alias, exp.TableAlias) and alias.columns):
        return None
    limits = [
        inner.args.get(clause) for clause in ("distinct", "limit", "offset", "group", "having", "with_")
    ]
    return None if any(limits) or is_grouped(inner) else inner


def _quoted(name: str) -> exp.Identifier:
    return exp.to_identifier(name, quoted=True)


def _may_have(select: exp.Select, facts: InputFacts) -> Callable[[str], bool]:
    known = [(_is_known(table, facts), set(names)) for table, names in _visible(select, facts)]
    return lambda name: any(not certain or name in names for certain, names in known)


def _text(select: exp.Select) -> str:
    """Raises NoStage for what sqlglot writes otherwise than it reads."""
    plain = select.transform(_plain_interval)
    text = plain.sql(dialect=PostgresText)
    if parse(text) != plain:
        raise NoStage("its text cannot be written again")
    return text


def _plain_interval(node: exp.Expr) -> exp.Expr:
    """``interval '90' day`` as sqlglot writes it."""
    unit = node.args.get("unit") if isinstance(node, exp.Interval) else None
    if not isinstance(unit, exp.Var):
        return node
    return exp.Interval(this=exp.Literal.string(f"{node.this.name} {unit.name}"))


def _visible(select: exp.Select, facts: InputFacts) -> Iterator[tuple[exp.Expr, list[str]]]:
    """The tables in FROM, each with the columns that are known of it."""
    start = select.args.get("from_")
    with_ = select.args.get("with_")
    common = {each.alias.lower(): each for each in (with_.expressions if with_ else ())}
    for source in [*([start.this] if start else []), *(join.this for join in select.args.get("joins") or [])]:
        name = source.name.lower() if isinstance(source, exp.Table) else ""
        if name in common:
            yield source, _outputs(common[name], common[name].this)
        elif (given := _input_of(source, facts)) is not None:
            yield source, list(facts.names[given])
        elif isinstance(source, exp.Subquery):
            yield source, _outputs(source, source.this)
        else:
            yield source, []


def _input_of(source: exp.Expr, facts: InputFacts) -> str | None:
    name = source.name.lower() if isinstance(source, exp.Table) else ""
    return next((each for each in facts.names if each.lower() == name), None)


def _is_known(source: exp.Expr, facts: InputFacts) -> bool:
    """Whether these are all columns of a table."""
    return _input_of(source, facts) is not None or (
        isinstance(source, exp.Subquery) and not source.this.find(exp.Star)
    )


def _outputs(named: exp.Expr, query: exp.Expr) -> list[str]:
    alias = named.args.get("alias")
    if isinstance(alias, exp.TableAlias) and alias.columns:
        return [folded(each) for each in alias.columns]
    return [each.alias_or_name for each in query.expressions] if isinstance(query, exp.Select) else []


def _rank(partial: Projection, facts: InputFacts, parts: int) -> tuple[int, int, int] | None:
    """How much of the inputs' rows is followed, in hundredths; into how many keys these are spread; how many inputs
    are followed. None where a key is a remainder of something else than an integer."""
    lineage = lineage_of(partial)
    direct = {name: path for name, path in lineage.paths.items() if isinstance(path, Direct)}
    if not lineage.key or not direct:
        return None
    if not all(
        _is_followed(each, facts.schemas[name], parts)
        for name, path in direct.items()
        for each in path.columns
    ):
        return None
    followed = sum(facts.rows[name] for name in lineage.paths)
    share = 100 * followed // max(sum(facts.rows.values()), 1)
    return share, _spread(direct, facts), len(lineage.paths)


def _is_followed(held: KeyColumn, schema: pa.Schema, parts: int) -> bool:
    """Whether a part's number can be computed of a column: of an integer it can."""
    if not isinstance(held, Computed) or f"% {parts}" not in held.expression:
        return True
    return all(pa.types.is_integer(schema.field(column).type) for column in held.columns)


def _spread(direct: Mapping[str, Direct], facts: InputFacts) -> int:
    """The rows of the largest input whose own key is followed."""
    rows = [
        facts.rows[name] for name, path in direct.items() if set(path.needed) & set(facts.keys.get(name, ()))
    ]
    return max(rows, default=0)
