"""Operators with a syntax of their own: arrays, rows, ANY, AT TIME ZONE, patterns."""

from __future__ import annotations

from sqlglot import exp

from tailrace.projections.definition.sql.postgres.contract import TranslatesExpressions
from tailrace.projections.definition.sql.postgres.expressions import arrays
from tailrace.projections.definition.sql.postgres.expressions.operators import as_type, comparable
from tailrace.projections.definition.sql.postgres.expressions.rows import in_as_value, row_comparison
from tailrace.projections.definition.sql.postgres.refusal import NotInTable, Refused
from tailrace.projections.definition.sql.postgres.types.types import (
    BOOL,
    DATE,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    PgType,
)
from tailrace.projections.definition.sql.postgres.types.values import Value, common_type, of_column
from tailrace.projections.definition.sql.postgres.types.zones import instant, named_zone, wall_clock


def array(expressions: TranslatesExpressions, node: exp.Array) -> Value:
    """``ARRAY[…]``."""
    if any(isinstance(each, exp.Query) for each in node.expressions):
        raise NotInTable("ARRAY(SELECT …)", "write it with array_agg(… ORDER BY …)")
    return arrays.array(
        [expressions.plain(expressions.value(each), each) for each in node.expressions], expressions.zone
    )


def bracket(expressions: TranslatesExpressions, node: exp.Bracket) -> Value:
    """``a[i]`` and ``a[m:n]``."""
    value = expressions.value(node.this)
    if len(node.expressions) != 1 or isinstance(node.this, exp.Bracket):
        raise NotInTable("more than one subscript", "")
    at = node.expressions[0]
    if not isinstance(at, exp.Slice):
        return arrays.subscript(value, expressions.value(at))
    start, end = (at.args.get(name) for name in ("this", "expression"))
    if at.args.get("step") is not None:
        raise NotInTable("a slice with a step", "")
    return arrays.slice_(
        value, *(expressions.value(each) if each is not None else None for each in (start, end))
    )


def with_any(expressions: TranslatesExpressions, name: str, node: exp.Binary) -> Value:
    """``= ANY (array)`` and ``<> ALL (array)``."""
    word = quantified(node.right)
    inner = node.right.expressions[0] if isinstance(node.right, exp.Anonymous) else node.right.this.unnest()
    positive = name == "=" and word == "ANY"
    if isinstance(inner, exp.Query) or not (positive or (name == "<>" and word == "ALL")):
        raise NotInTable(f"{name} {word}", "write IN, NOT IN, or EXISTS with a subquery")
    found = arrays.any_of(expressions.value(node.left), expressions.value(inner), expressions.zone)
    return found if positive else Value(f"(NOT {found.sql})", BOOL)


def quantified(node: exp.Expr) -> str:
    """ANY or ALL; "" for something else."""
    name = str(node.this).upper() if isinstance(node, exp.Anonymous) else node.key.upper()
    one = not isinstance(node, exp.Anonymous) or len(node.expressions) == 1
    return {"ANY": "ANY", "SOME": "ANY", "ALL": "ALL"}.get(name, "") if one else ""


def rows_in_query(expressions: TranslatesExpressions, node: exp.In) -> str:
    """``(a, b) IN (SELECT …)`` as a condition."""
    if node.args.get("negate") or isinstance(node.parent, exp.Not):
        raise Refused("NOT IN with several columns is not translated", "write NOT EXISTS", node)
    query = expressions.query(node.args["query"])
    left = [expressions.value(each) for each in node.this.expressions]
    types = [type_ for _, type_ in query.columns]
    if len(left) != len(types) or any(one.type != type_ for one, type_ in zip(left, types, strict=True)):
        raise Refused(
            "IN with several columns of other types is not translated", "cast them, or write EXISTS", node
        )
    return f"(({', '.join(each.sql for each in left)}) IN ({query.sql}))"


def rows(expressions: TranslatesExpressions, name: str, node: exp.Binary) -> Value:
    """``(a, b) = (c, d)``."""
    if not isinstance(node.right, exp.Tuple):
        raise NotInTable("a row beside what is none", "write another row")
    left, right = ([expressions.value(each) for each in side.expressions] for side in (node.left, node.right))
    return row_comparison(name, left, right, expressions.zone)


def row(expressions: TranslatesExpressions, node: exp.Tuple) -> Value:
    """A row that is counted: it is none that is NULL."""
    parts = [expressions.plain(expressions.value(each), each) for each in node.expressions]
    return Value(f"struct({', '.join(each.sql for each in parts)})", PgType("row"))


def in_rows(expressions: TranslatesExpressions, node: exp.In) -> Value:
    """``(a, b) IN ((1, 2), …)``."""
    left = [expressions.value(each) for each in node.this.expressions]
    found = []
    for each in node.expressions:
        if not isinstance(each, exp.Tuple):
            raise NotInTable("a row among values", "write rows")
        right = [expressions.value(part) for part in each.expressions]
        found.append(row_comparison("=", left, right, expressions.zone).sql)
    return Value("(" + " OR ".join(found) + ")", BOOL)


def in_query(expressions: TranslatesExpressions, node: exp.In) -> Value:
    """``x IN (SELECT …)`` as a value, NULL where Postgres has NULL."""
    if isinstance(node.this, exp.Tuple):
        raise NotInTable("IN with several columns as a value", "write EXISTS")
    query = expressions.query(node.args["query"])
    one = expressions.value(node.this)
    given = of_column("", query.columns[0][1])
    kind = common_type([one, given])
    if len(query.columns) != 1 or kind is None or kind.name != given.type.name:
        raise NotInTable(f"{one.type} IN (SELECT …)", "select one column of the same type")
    return in_as_value(as_type(one, kind, expressions.zone).sql, query.sql)


def joined(expressions: TranslatesExpressions, left: Value, right: Value) -> Value | None:
    """``||`` with an array; None where there is none."""
    if left.type.element is None and right.type.element is None:
        return None
    return arrays.joined(left, right, expressions.zone)


def contains(expressions: TranslatesExpressions, node: exp.Binary) -> Value:
    """``@>``."""
    return arrays.contains(*comparable_arrays(expressions, node))


def contained(expressions: TranslatesExpressions, node: exp.Binary) -> Value:
    """``<@``."""
    left, right = comparable_arrays(expressions, node)
    return arrays.contains(right, left)


def overlaps(expressions: TranslatesExpressions, node: exp.Binary) -> Value:
    """``&&``."""
    return arrays.overlaps(*comparable_arrays(expressions, node))


def comparable_arrays(expressions: TranslatesExpressions, node: exp.Binary) -> tuple[Value, Value]:
    left, right = (expressions.value(each) for each in (node.left, node.right))
    if left.type.element is None or right.type.element is None:
        raise NotInTable(f"{node.key.upper()} of {left.type} and {right.type}", "it is translated for arrays")
    one, other = comparable("=", [left, right], expressions.zone)
    return one, other


def at_time_zone(expressions: TranslatesExpressions, node: exp.AtTimeZone) -> Value:
    """An instant as clocks of the zone show it, or the other way round."""
    value, zone = expressions.value(node.this), named_zone(expressions.value(node.args["zone"]))
    if value.type == TIMESTAMPTZ:
        return Value(wall_clock(value.sql, zone), TIMESTAMP)
    if value.type == TIMESTAMP:
        return Value(instant(value.sql, zone), TIMESTAMPTZ)
    if value.type == DATE:
        return Value(
            wall_clock(instant(f"CAST({value.sql} AS TIMESTAMP_NTZ)", expressions.zone), zone), TIMESTAMP
        )
    hint = "cast it to timestamp or timestamptz" if value.type == UNKNOWN else ""
    raise NotInTable(f"{value.type} AT TIME ZONE", hint)


def collate(expressions: TranslatesExpressions, node: exp.Collate) -> Value:
    """``COLLATE "C"``: texts are compared by their bytes anyway."""
    if node.expression.name not in ("C", "POSIX"):
        raise NotInTable(f"COLLATE {node.expression.name}", 'texts are ordered by their bytes: COLLATE "C"')
    return expressions.value(node.this)
