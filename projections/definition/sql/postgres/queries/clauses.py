"""Clauses that several kinds of queries have: ORDER BY, LIMIT, OFFSET. What is not known of a node is refused."""

from __future__ import annotations

from sqlglot import exp

from tailrace.projections.definition.sql.postgres.expressions.expressions import Expressions
from tailrace.projections.definition.sql.postgres.refusal import OTHER_DIALECT, Refused
from tailrace.projections.definition.sql.postgres.scope import Columns, folded
from tailrace.projections.definition.sql.postgres.types.values import name_text

_WORDS = {
    "locks": "FOR UPDATE", "into": "INTO", "qualify": "QUALIFY", "laterals": "LATERAL VIEW", "sample": "TABLESAMPLE",
    "only": "ONLY", "db": "a schema", "connect": "CONNECT BY", "pivots": "PIVOT",
}  # fmt: skip


def allow(node: exp.Expr, known: set[str]) -> None:
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
    name = output_name(node.this, output, "ORDER BY")
    return expressions.windows.ordered(node) if name is None else name_text(name) + direction(node)


def output_name(node: exp.Expr, output: Columns, clause: str) -> str | None:
    """The column of the result that a number or a name means; None where it is something else."""
    if isinstance(node, exp.Literal) and not node.is_string:
        at = int(node.name) if node.name.isdecimal() else 0
        if not 0 < at <= len(output):
            raise Refused(f"{clause} {node.name}: there are {len(output)} columns", "name one", node)
        return output[at - 1][0]
    if isinstance(node, exp.Column) and not node.table:
        return next((each for each, _ in output if each == folded(node.this)), None)
    return None


def direction(node: exp.Ordered) -> str:
    """With its NULLs where Postgres puts them."""
    nulls = "FIRST" if node.args.get("nulls_first") else "LAST"
    return f" {'DESC' if node.args.get('desc') else 'ASC'} NULLS {nulls}"


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
