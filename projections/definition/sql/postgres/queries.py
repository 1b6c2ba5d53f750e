"""SELECT, set operations, WITH and FROM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from tailrace.projections.definition.findings import did_you_mean
from tailrace.projections.definition.sql.postgres.contract import Query
from tailrace.projections.definition.sql.postgres.expressions import Expressions
from tailrace.projections.definition.sql.postgres.names import result_name
from tailrace.projections.definition.sql.postgres.refusal import OTHER_DIALECT, Refused
from tailrace.projections.definition.sql.postgres.scope import Columns, Scope, Source, folded
from tailrace.projections.definition.sql.postgres.types import TEXT, UNKNOWN, PgType
from tailrace.projections.definition.sql.postgres.values import Value, common_type, name_text

_SELECT = {"expressions", "distinct", "from_", "joins", "where", "group", "having", "order", "limit", "offset", "with_",
           "windows"}  # fmt: skip
_SET_OPERATION = {"this", "expression", "distinct", "order", "limit", "offset", "with_"}
_TABLE = {"this", "alias"}
_JOIN = {"this", "side", "kind", "on", "using", "method"}
_WORDS = {
    "locks": "FOR UPDATE", "into": "INTO", "qualify": "QUALIFY", "laterals": "LATERAL VIEW", "sample": "TABLESAMPLE",
    "only": "ONLY", "db": "a schema", "connect": "CONNECT BY", "pivots": "PIVOT",
}  # fmt: skip


@dataclass(slots=True)
class Queries:
    """Translates queries over ``inputs``: the columns of each by its name. In the result they are ``{i0}``, ``{i1}`` …
    ``zone`` is the declared time zone."""

    inputs: Mapping[str, Columns]
    zone: str
    _defined: dict[str, Columns] = field(default_factory=dict)

    def query(self, node: exp.Expr, outer: Scope | None = None) -> Query:
        """A SELECT, a set operation, VALUES, or one of these in parentheses. Raises Refused."""
        before = dict(self._defined)
        try:
            head = self._with(node.args.get("with_"))
            found = self._bare(node, outer)
        finally:
            self._defined = before
        return Query(head + found.sql, found.columns)

    def _bare(self, node: exp.Expr, outer: Scope | None) -> Query:
        match node:
            case exp.Subquery() if not node.args.get("alias"):
                _allow(node, {"this", "with_", "order", "limit", "offset"})
                inner = self.query(node.this, outer)
                return Query(f"({inner.sql})" + self._tail(node, inner, outer), inner.columns)
            case exp.SetOperation():
                return self._set_operation(node, outer)
            case exp.Values():
                return self._values(node, outer)
            case exp.Select():
                return _Select(self, node, outer).translated()
        raise Refused(f"{node.key.upper()} is not translated", "the body is one SELECT", node)

    def _with(self, node: exp.Expr | None) -> str:
        if not isinstance(node, exp.With):
            return ""
        if node.args.get("recursive"):
            raise Refused("WITH RECURSIVE is not translated", OTHER_DIALECT.removeprefix("or "), node)
        parts = []
        for each in node.expressions:
            query = self.query(each.this)
            alias = each.args["alias"]
            name, columns = folded(alias.this), _renamed(query.columns, alias)
            names = ", ".join(name_text(column) for column, _ in columns)
            self._defined[name] = columns
            parts.append(f"{name_text(name)} ({names}) AS ({query.sql})")
        return f"WITH {', '.join(parts)} "

    def _set_operation(self, node: exp.SetOperation, outer: Scope | None) -> Query:
        _allow(node, _SET_OPERATION)
        left, right = self.query(node.left, outer), self.query(node.right, outer)
        if len(left.columns) != len(right.columns):
            counts = f"{len(left.columns)} and {len(right.columns)}"
            raise Refused(f"both sides of {node.key.upper()} have {counts} columns", "select as many", node)
        columns = []
        for (name, one), (_, other) in zip(left.columns, right.columns, strict=True):
            kind = common_type([Value("", one), Value("", other)])
            if kind is None or not all(_becomes(each, kind) for each in (one, other)):
                raise Refused(
                    f"column {name} is {one} and {other} in {node.key.upper()}", "cast one of them", node
                )
            columns.append((name, kind))
        word = node.key.upper() + ("" if node.args.get("distinct") else " ALL")
        united = Query(f"({left.sql}) {word} ({right.sql})", tuple(columns))
        return Query(united.sql + self._tail(node, united, outer), united.columns)

    def _values(self, node: exp.Values, outer: Scope | None) -> Query:
        names = [f"column{at + 1}" for at in range(len(node.expressions[0].expressions))]
        expressions = Expressions(self, Scope(outer=outer))
        rows = [
            [expressions.plain(expressions.value(each), each) for each in row.expressions]
            for row in node.expressions
        ]
        if any(len(row) != len(names) for row in rows):
            raise Refused("the rows of VALUES have different numbers of columns", "", node)
        columns = [expressions.unify(column, node) for column in zip(*rows, strict=True)]
        texts = [", ".join(values[at].sql for values, _ in columns) for at in range(len(rows))]
        listed = ", ".join(f"({text})" for text in texts)
        named = ", ".join(name_text(name) for name in names)
        text = f"SELECT * FROM (VALUES {listed}) AS `values` ({named})"  # noqa: S608
        return Query(text, tuple(zip(names, (kind for _, kind in columns), strict=True)))

    def _tail(self, node: exp.Expr, query: Query, outer: Scope | None) -> str:
        """ORDER BY over a result's own columns, LIMIT and OFFSET."""
        scope = Scope(merged=dict(query.columns), outer=outer)
        return ordering(node, Expressions(self, scope), query.columns) + limits(node)

    def source(self, node: exp.Expr) -> tuple[str, Source]:
        """A table or subquery of FROM."""
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            _allow(node, _TABLE | {"joins"})
            return self._table(node)
        alias = node.args.get("alias")
        if isinstance(node, exp.Subquery | exp.Values):
            if isinstance(node, exp.Subquery):
                _allow(node, {"this", "alias", "with_", "joins"})
            query = self._values(node, None) if isinstance(node, exp.Values) else self.query(node.this)
            columns = _renamed(query.columns, alias)
            name = folded(alias.this) if alias is not None and alias.this is not None else "unnamed_subquery"
            names = ", ".join(name_text(column) for column, _ in columns)
            return f"({query.sql}) AS {name_text(name)} ({names})", Source(name, columns)
        raise Refused(
            f"{node.key.upper()} in FROM is not translated", OTHER_DIALECT.removeprefix("or "), node
        )

    def _table(self, node: exp.Table) -> tuple[str, Source]:
        name, alias = folded(node.this), node.args.get("alias")
        if name in self._defined:
            text, columns = name_text(name), self._defined[name]
        else:
            known = {each.lower(): each for each in self.inputs}
            if name.lower() not in known:
                hint = did_you_mean(name, known) or f"its inputs are {', '.join(self.inputs)}"
                raise Refused(f"it reads {name}, which is no input", hint, node)
            at = list(self.inputs).index(known[name.lower()])
            text, columns = f"{{i{at}}}", self.inputs[known[name.lower()]]
        shown = folded(alias.this) if alias is not None and alias.this is not None else name
        renamed = _renamed(columns, alias)
        names = (
            f" ({', '.join(name_text(column) for column, _ in renamed)})" if renamed is not columns else ""
        )
        return f"{text} AS {name_text(shown)}{names}", Source(shown, renamed)


def _renamed(columns: Columns, alias: exp.Expr | None) -> Columns:
    names = [folded(each) for each in alias.columns] if isinstance(alias, exp.TableAlias) else []
    if len(names) > len(columns):
        raise Refused(f"{len(names)} names for {len(columns)} columns", "leave some out", alias)
    if not names:
        return columns
    return tuple((names[at] if at < len(names) else name, type_) for at, (name, type_) in enumerate(columns))


def _becomes(type_: PgType, kind: PgType) -> bool:
    """Whether Spark makes one column of these, as Postgres does."""
    if type_ == UNKNOWN:
        return kind == TEXT
    return type_ == kind or (type_.is_number and kind.is_number and kind.name not in ("float4",))


def _allow(node: exp.Expr, known: set[str]) -> None:
    """Refuse every clause that is not known."""
    for name, given in node.args.items():
        if given and name not in known:
            words = _WORDS.get(name, name.upper().replace("_", " ").strip())
            raise Refused(f"{words} is not translated", "leave it out, " + OTHER_DIALECT, node)


def ordering(node: exp.Expr, expressions: Expressions, output: Columns) -> str:
    """ORDER BY of a query; first its own columns are meant, then those of its tables."""
    order = node.args.get("order")
    if order is None:
        return ""
    return " ORDER BY " + ", ".join(_ordered(each, expressions, output) for each in order.expressions)


def _ordered(node: exp.Ordered, expressions: Expressions, output: Columns) -> str:
    what = node.this
    name = None
    if isinstance(what, exp.Literal) and not what.is_string:
        at = int(what.name) if what.name.isdecimal() else 0
        if not 0 < at <= len(output):
            raise Refused(f"ORDER BY {what.name}: there are {len(output)} columns", "name one", what)
        name = output[at - 1][0]
    elif isinstance(what, exp.Column) and not what.table:
        name = next((each for each, _ in output if each == folded(what.this)), None)
    if name is None:
        return expressions.windows.ordered(node)
    direction = "DESC" if node.args.get("desc") else "ASC"
    return f"{name_text(name)} {direction} NULLS {'FIRST' if node.args.get('nulls_first') else 'LAST'}"


def limits(node: exp.Expr) -> str:
    """LIMIT and OFFSET, constants."""
    found = ""
    limit, offset = node.args.get("limit"), node.args.get("offset")
    if isinstance(limit, exp.Fetch):
        options = limit.args.get("limit_options")
        if options is not None and (options.args.get("with_ties") or options.args.get("percent")):
            raise Refused(
                "FETCH … WITH TIES is not translated", "write it with rank() OVER (ORDER BY …)", limit
            )
        found += _limit("LIMIT", limit.args.get("count") or exp.Literal.number(1))
    elif limit is not None and not (
        isinstance(limit.expression, exp.Var) and limit.expression.name.upper() == "ALL"
    ):
        found += _limit("LIMIT", limit.expression)
    return found + (_limit("OFFSET", offset.expression) if offset is not None else "")


def _limit(word: str, count: exp.Expr) -> str:
    if not isinstance(count, exp.Literal) or not count.name.isdecimal():
        raise Refused(f"this {word} is not translated", "write a number", count)
    return f" {word} {count.name}"


class _Select:
    """One SELECT on its way."""

    def __init__(self, queries: Queries, node: exp.Select, outer: Scope | None) -> None:
        _allow(node, _SELECT)
        self.queries, self.node = queries, node
        self.scope = Scope(outer=outer)
        named = {each.name.lower(): each for each in node.args.get("windows") or []}
        self.expressions = Expressions(queries, self.scope, named)

    def translated(self) -> Query:
        node = self.node
        source = self._from()
        output = self._output()
        items = ", ".join(f"{value.sql} AS {name_text(name)}" for name, value in output)
        columns = tuple((name, value.type) for name, value in output)
        if not items:
            raise Refused("a SELECT without columns is not translated", "select one", node)
        text = f"SELECT {self._distinct()}{items}{source}"
        where, having = node.args.get("where"), node.args.get("having")
        if where is not None:
            text += f" WHERE {self.expressions.condition(where.this)}"
        text += self._group(output)
        if having is not None:
            text += f" HAVING {self.expressions.condition(having.this)}"
        return Query(text + ordering(node, self.expressions, columns) + limits(node), columns)

    def _distinct(self) -> str:
        distinct = self.node.args.get("distinct")
        if distinct is None:
            return ""
        if distinct.args.get("on"):
            hint = "write it with row_number() OVER (PARTITION BY … ORDER BY …)"
            raise Refused("DISTINCT ON is not translated", hint, distinct)
        return "DISTINCT "

    def _from(self) -> str:
        start = self.node.args.get("from_")
        if start is None:
            return ""
        return " FROM " + self._joined(start.this, self.node.args.get("joins") or [])

    def _joined(self, first: exp.Expr, joins: Sequence[exp.Join]) -> str:
        text = self._source(first)
        for join in [*(first.args.get("joins") or []), *joins]:
            _allow(join, _JOIN)
            text += self._join(join)
        return text

    def _source(self, node: exp.Expr) -> str:
        if isinstance(node, exp.Subquery | exp.Paren) and isinstance(node.this, exp.Table):
            if node.args.get("alias"):
                raise Refused("a name for a join is not translated", "name its tables", node)
            return f"({self._joined(node.this, [])})"
        text, source = self.queries.source(node)
        if any(each.name == source.name for each in self.scope.sources):
            raise Refused(f"there are two tables {source.name}", "give one another name", node)
        self.scope.sources.append(source)
        return text

    def _join(self, join: exp.Join) -> str:
        side, kind = (join.side or "").upper(), (join.kind or "").upper()
        if kind not in ("", "INNER", "OUTER", "CROSS"):
            raise Refused(f"{side} {kind} JOIN is none of Postgres'", "write EXISTS or NOT EXISTS", join)
        before = list(self.scope.sources)
        if (
            not side
            and not kind
            and join.args.get("on") is None
            and not join.args.get("using")
            and not join.method
        ):
            return f", {self._source(join.this)}"
        text = self._source(join.this)
        names = [folded(each) for each in join.args.get("using") or []]
        if join.method:
            if join.method.upper() != "NATURAL":
                raise Refused(f"{join.method} JOIN is none of Postgres'", "", join)
            left = {name for source in before for name, _ in source.columns}
            names = [name for name, _ in self.scope.sources[-1].columns if name in left]
        word = f" {side} JOIN" if side else " CROSS JOIN" if kind == "CROSS" else " JOIN"
        if names:
            self._merge(names, before, join)
            return f"{word} {text} USING ({', '.join(map(name_text, names))})"
        on = join.args.get("on")
        return f"{word} {text}" + (f" ON {self.expressions.condition(on)}" if on is not None else "")

    def _merge(self, names: Sequence[str], before: Sequence[Source], join: exp.Join) -> None:
        """USING: both tables have columns of these names, of one type."""
        for name in names:
            left = [value.type for each in before if (value := each.column(name)) is not None]
            right = self.scope.sources[-1].column(name)
            if not left or right is None:
                raise Refused(f"USING ({name}): both tables need such a column", "write ON", join)
            kind = common_type([Value("", left[0]), right])
            if kind is None or not (left[0] == right.type or (left[0].is_integer and right.type.is_integer)):
                raise Refused(
                    f"USING ({name}): they are {left[0]} and {right.type}", "write ON with a cast", join
                )
            self.scope.merged[name] = kind

    def _output(self) -> list[tuple[str, Value]]:
        found: list[tuple[str, Value]] = []
        for each in self.node.expressions:
            inner = each.this if isinstance(each, exp.Column) else each
            if isinstance(inner, exp.Star):
                found += self._star(each, inner)
                continue
            value = self.expressions.plain(self.expressions.value(each.unalias()), each)
            name = folded(each.args["alias"]) if isinstance(each, exp.Alias) else result_name(each)
            found.append((name, value))
        return found

    def _star(self, node: exp.Expr, star: exp.Star) -> list[tuple[str, Value]]:
        _allow(star, set())
        if not isinstance(node, exp.Column):
            return list(self.scope.all_columns())
        table = folded(node.args["table"])
        for source in self.scope.sources:
            if source.name == table:
                named = [(name, source.column(name)) for name, _ in source.columns]
                return [(name, value) for name, value in named if value is not None]
        raise Refused(f"there is no table {table}", "", node)

    def _group(self, output: Sequence[tuple[str, Value]]) -> str:
        group = self.node.args.get("group")
        if group is None:
            return ""
        _allow(group, {"expressions"})
        return " GROUP BY " + ", ".join(self._group_item(each, output) for each in group.expressions)

    def _group_item(self, node: exp.Expr, output: Sequence[tuple[str, Value]]) -> str:
        """Columns of the tables come before those of the result."""
        if isinstance(node, exp.Rollup | exp.Cube | exp.GroupingSets):
            raise Refused(f"{node.key.upper()} is not translated", "write UNION ALL of groupings", node)
        if isinstance(node, exp.Literal) and not node.is_string:
            at = int(node.name) if node.name.isdecimal() else 0
            if not 0 < at <= len(output):
                raise Refused(f"GROUP BY {node.name}: there are {len(output)} columns", "name one", node)
            return output[at - 1][1].sql
        if isinstance(node, exp.Column) and not node.table:
            name = folded(node.this)
            known = name in self.scope.merged or any(each.column(name) for each in self.scope.sources)
            aliased = [value for each, value in output if each == name]
            if not known and aliased:
                return aliased[0].sql
        return self.expressions.value(node).sql


def top_level(query: Query) -> str:
    """The query whose columns are a projection's: a constant without a type is a text."""
    if all(type_ != UNKNOWN for _, type_ in query.columns):
        return query.sql
    items = ", ".join(
        f"{as_text(name)} AS {name_text(name)}" if type_ == UNKNOWN else name_text(name)
        for name, type_ in query.columns
    )
    return f"SELECT {items} FROM ({query.sql})"  # noqa: S608


def as_text(name: str) -> str:
    return f"CAST({name_text(name)} AS STRING)"
