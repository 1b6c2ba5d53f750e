"""What stands in FROM: tables, joins, subqueries, functions that give rows."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from tailrace.projections.definition.findings import did_you_mean
from tailrace.projections.definition.sql.postgres.contract import TranslatesQueries
from tailrace.projections.definition.sql.postgres.expressions.expressions import Expressions
from tailrace.projections.definition.sql.postgres.queries.clauses import allow
from tailrace.projections.definition.sql.postgres.queries.sets import SETS
from tailrace.projections.definition.sql.postgres.refusal import OTHER_DIALECT, NotInTable, Refused
from tailrace.projections.definition.sql.postgres.scope import Columns, Scope, Source, folded
from tailrace.projections.definition.sql.postgres.types.types import INT8
from tailrace.projections.definition.sql.postgres.types.values import Value, common_type, name_text

_JOIN = {"this", "side", "kind", "on", "using", "method"}


class Tables:
    """Those of one SELECT; they go into its ``scope``."""

    def __init__(self, queries: TranslatesQueries, scope: Scope, expressions: Expressions) -> None:
        self._queries, self._scope, self._expressions = queries, scope, expressions

    def joined(self, first: exp.Expr, joins: Sequence[exp.Join]) -> str:
        """A table with its joins. Raises Refused."""
        text = self._source(first, beside=False)
        for join in [*(first.args.get("joins") or []), *joins]:
            allow(join, _JOIN)
            text += self._join(join)
        return text

    def _source(self, node: exp.Expr, *, beside: bool) -> str:
        """``beside``: behind others, whose columns functions and LATERAL see."""
        if isinstance(node, exp.Subquery | exp.Paren) and isinstance(node.this, exp.Table):
            if node.args.get("alias"):
                raise Refused("a name for a join is not translated", "name its tables", node)
            return f"({self.joined(node.this, [])})"
        text, source = self._item(node, beside=beside)
        if any(each.name == source.name for each in self._scope.sources):
            raise Refused(f"there are two tables {source.name}", "give one another name", node)
        self._scope.sources.append(source)
        return text

    def _item(self, node: exp.Expr, *, beside: bool) -> tuple[str, Source]:
        lateral = isinstance(node, exp.Lateral)
        alias = node.args.get("alias")
        if isinstance(node, exp.Lateral):
            allow(node, {"this", "alias"})
            node = node.this
        match node:
            case exp.Table(this=exp.Identifier()):
                allow(node, {"this", "alias", "joins"})
                return self._table(node)
            case exp.Table(this=exp.Anonymous() as call):
                allow(node, {"this", "alias", "joins", "ordinality"})
                return self._rows(call, alias, node.args.get("ordinality"), beside=beside)
            case exp.Anonymous():
                return self._rows(node, alias, None, beside=beside)
            case exp.Unnest():
                allow(node, {"expressions", "alias", "offset"})
                call = exp.Anonymous(this="unnest", expressions=[each.copy() for each in node.expressions])
                call.meta.update(node.meta)
                return self._rows(
                    call, alias or node.args.get("alias"), node.args.get("offset"), beside=beside
                )
            case exp.Subquery() | exp.Values():
                return self._subquery(node, alias or node.args.get("alias"), lateral=lateral)
        raise Refused(
            f"{node.key.upper()} in FROM is not translated", OTHER_DIALECT.removeprefix("or "), node
        )

    def _subquery(self, node: exp.Expr, alias: exp.Expr | None, *, lateral: bool) -> tuple[str, Source]:
        inner = node
        if isinstance(node, exp.Subquery):
            allow(node, {"this", "alias", "with_", "joins"})
            inner = node.this
        query = self._queries.query(inner, self._scope if lateral else self._scope.outer)
        columns = renamed(query.columns, alias)
        name = folded(alias.this) if alias is not None and alias.this is not None else "unnamed_subquery"
        text = f"({query.sql}) AS {name_text(name)} {names_of(columns)}"
        return ("LATERAL " if lateral else "") + text, Source(name, columns)

    def _rows(
        self, call: exp.Anonymous, alias: exp.Expr | None, numbered: object, *, beside: bool
    ) -> tuple[str, Source]:
        """A function that gives rows of one column, WITH ORDINALITY of two."""
        function = str(call.this).lower()
        if function not in SETS:
            hint = did_you_mean(function, SETS) or f"there are {', '.join(SETS)}"
            raise Refused(f"the function {function}() in FROM is not translated", hint, call)
        given = [self._expressions.value(each) for each in call.expressions]
        try:
            array, type_ = SETS[function](given, self._queries.zone)
        except NotInTable as error:
            raise Refused(f"{error.what} is not translated", error.hint or OTHER_DIALECT, call) from error
        name = folded(alias.this) if alias is not None and alias.this is not None else function
        plain: Columns = ((name, type_), *([("ordinality", INT8)] if numbered else []))
        if isinstance(numbered, exp.Identifier):
            plain = (plain[0], (folded(numbered), INT8))
        columns = renamed(plain, alias)
        before = "LATERAL " if beside else ""
        if not numbered:
            return f"{before}explode({array}) AS {name_text(name)} {names_of(columns)}", Source(name, columns)
        text = f"(SELECT col, CAST(pos + 1 AS BIGINT) FROM posexplode({array}))"  # noqa: S608
        return f"{before}{text} AS {name_text(name)} {names_of(columns)}", Source(name, columns)

    def _table(self, node: exp.Table) -> tuple[str, Source]:
        name, alias = folded(node.this), node.args.get("alias")
        text, columns = self._queries.table(name, node)
        shown = folded(alias.this) if alias is not None and alias.this is not None else name
        named = renamed(columns, alias)
        names = f" {names_of(named)}" if named is not columns else ""
        return f"{text} AS {name_text(shown)}{names}", Source(shown, named)

    def _join(self, join: exp.Join) -> str:
        side, kind = (join.side or "").upper(), (join.kind or "").upper()
        if kind not in ("", "INNER", "OUTER", "CROSS"):
            raise Refused(f"{side} {kind} JOIN is none of Postgres'", "write EXISTS or NOT EXISTS", join)
        before = list(self._scope.sources)
        text = self._source(join.this, beside=True)
        on, using = join.args.get("on"), join.args.get("using") or []
        if not side and not kind and on is None and not using and not join.method:
            return f", {text}"
        names = [folded(each) for each in using]
        if join.method:
            if join.method.upper() != "NATURAL":
                raise Refused(f"{join.method} JOIN is none of Postgres'", "write JOIN", join)
            left = {name for source in before for name, _ in source.columns}
            names = [name for name, _ in self._scope.sources[-1].columns if name in left]
        word = f" {side} JOIN" if side else " CROSS JOIN" if kind == "CROSS" else " JOIN"
        if names:
            self._merge(names, before, join)
            return f"{word} {text} USING ({', '.join(map(name_text, names))})"
        return f"{word} {text}" + (f" ON {self._expressions.condition(on)}" if on is not None else "")

    def _merge(self, names: Sequence[str], before: Sequence[Source], join: exp.Join) -> None:
        """USING: both tables have columns of these names, of one type."""
        for name in names:
            left = [value.type for each in before if (value := each.column(name)) is not None]
            right = self._scope.sources[-1].column(name)
            if not left or right is None:
                raise Refused(f"USING ({name}): both tables need such a column", "write ON", join)
            kind = common_type([Value("", left[0]), right])
            if kind is None or not (left[0] == right.type or (left[0].is_integer and right.type.is_integer)):
                raise Refused(
                    f"USING ({name}): they are {left[0]} and {right.type}", "write ON with a cast", join
                )
            self._scope.merged[name] = kind


def renamed(columns: Columns, alias: exp.Expr | None) -> Columns:
    """With the names that ``AS t(a, b)`` gives. Raises Refused."""
    names = [folded(each) for each in alias.columns] if isinstance(alias, exp.TableAlias) else []
    if len(names) > len(columns):
        raise Refused(f"{len(names)} names for {len(columns)} columns", "leave some out", alias)
    if not names:
        return columns
    return tuple((names[at] if at < len(names) else name, type_) for at, (name, type_) in enumerate(columns))


def names_of(columns: Columns) -> str:
    return "(" + ", ".join(name_text(name) for name, _ in columns) + ")"
