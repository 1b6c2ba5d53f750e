"""Partial results that group, sum and count columns as they are: no engine is needed to add them up. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from sqlglot import exp

from tailrace.projections.definition.model import Additive
from tailrace.projections.definition.sql.postgres.scope import folded


def with_plain_columns(additive: Additive, stage: exp.Select, names: Collection[str]) -> Additive:
    """``additive`` with the columns of its input, which has these ``names``, that the ``stage`` groups, sums and
    counts; as it is where the stage computes anything of a row, leaves rows out, or has other names for columns."""
    alias = stage.args["from_"].this.args.get("alias")
    if stage.args.get("where") is not None or (alias is not None and alias.columns):
        return additive
    columns: dict[str, str] = {}
    counts: dict[str, str | None] = {}
    for item in stage.expressions:
        value, call = item.this, item.this.name.lower() if isinstance(item.this, exp.Anonymous) else None
        of = value.expressions[0] if call is not None and len(value.expressions) == 1 else value
        column = _column(of, names)
        if call == "count" and (column is not None or isinstance(of, exp.Star)):
            counts[item.alias] = column
        elif column is not None and call in (None, "sum"):
            columns[item.alias] = column
        else:
            return additive
    return replace(additive, columns=columns, counts=counts)


def _column(node: exp.Expr, names: Collection[str]) -> str | None:
    if not isinstance(node, exp.Column) or node.args.get("db") is not None:
        return None
    name = folded(node.this)
    return name if name in names else None
