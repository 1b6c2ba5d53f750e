"""What stands in OVER (…)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from tailrace.projections.definition.sql.postgres.contract import TranslatesExpressions
from tailrace.projections.definition.sql.postgres.refusal import Refused
from tailrace.projections.definition.sql.postgres.types.types import DATE, TIMESTAMP, TIMESTAMPTZ
from tailrace.projections.definition.sql.postgres.types.values import Value
from tailrace.projections.definition.sql.postgres.types.zones import UTC

_ALLOWED = {"this", "partition_by", "order", "spec", "alias", "over", "first"}


class WindowText:
    """``named`` are those of the WINDOW clause."""

    def __init__(self, expressions: TranslatesExpressions, named: Mapping[str, exp.Window]) -> None:
        self._expressions, self._named = expressions, named

    def text(self, window: exp.Window) -> str:
        """Partition, order and frame. Raises Refused."""
        for name, given in window.args.items():
            if given and name not in _ALLOWED:
                raise Refused(f"{name} in a window is not translated", "leave it out", window)
        base = window.args.get("alias")
        if base is not None:
            return self._with_base(base, window)
        return self._own(window)

    def _with_base(self, base: exp.Expr, window: exp.Window) -> str:
        known = self._named.get(base.name.lower())
        if known is None:
            raise Refused(f"there is no window {base.name}", "define it: WINDOW w AS (…)", base)
        if any(window.args.get(part) for part in ("partition_by", "order", "spec")):
            raise Refused("a window that adds to a named one is not translated", "write it whole", base)
        return self.text(known)

    def _own(self, window: exp.Window) -> str:
        parts = []
        partition = window.args.get("partition_by") or []
        if partition:
            parts.append("PARTITION BY " + ", ".join(self._expressions.value(each).sql for each in partition))
        order = window.args.get("order")
        if order is not None:
            parts.append("ORDER BY " + ", ".join(self.ordered(each) for each in order.expressions))
        spec = window.args.get("spec")
        if spec is not None:
            keys = (
                [self._expressions.value(each.this) for each in order.expressions]
                if order is not None
                else []
            )
            parts.append(self._frame(spec, keys))
        return " ".join(parts)

    def ordered(self, node: exp.Ordered) -> str:
        """One of ORDER BY's, with its NULLs where Postgres puts them."""
        value = self._expressions.plain(self._expressions.value(node.this), node)
        if value.type.element is not None:
            raise Refused("an order of arrays is not translated", "order by its elements, or its size", node)
        direction = "DESC" if node.args.get("desc") else "ASC"
        return f"{value.sql} {direction} NULLS {'FIRST' if node.args.get('nulls_first') else 'LAST'}"

    def _frame(self, spec: exp.WindowSpec, keys: Sequence[Value]) -> str:
        kind = str(spec.args.get("kind") or "").upper()
        if kind not in ("ROWS", "RANGE") or spec.args.get("exclude"):
            raise Refused("this frame is not translated", "write ROWS or RANGE, without EXCLUDE", spec)
        start = self._bound(spec, "start", kind, keys)
        if not spec.args.get("end"):
            return f"{kind} {start}"
        return f"{kind} BETWEEN {start} AND {self._bound(spec, 'end', kind, keys)}"

    def _bound(self, spec: exp.WindowSpec, which: str, kind: str, keys: Sequence[Value]) -> str:
        bound, side = spec.args.get(which), str(spec.args.get(f"{which}_side") or "").upper()
        if isinstance(bound, str) and bound.upper() in ("UNBOUNDED", "CURRENT ROW"):
            return f"{bound.upper()} {side}".strip()
        counted = kind == "ROWS" or (len(keys) == 1 and keys[0].type.is_integer)
        if counted and isinstance(bound, exp.Literal) and bound.name.isdecimal():
            return f"{bound.name} {side}"
        if isinstance(bound, exp.Expr) and kind == "RANGE" and len(keys) == 1:
            text = self._distance(self._expressions.value(bound), keys[0])
            if text is not None:
                return f"{text} {side}"
        hint = "write a number of ROWS, of a whole number's RANGE, or an interval of one unit for a time's"
        raise Refused("this bound of a frame is not translated", hint, spec)

    def _distance(self, bound: Value, key: Value) -> str | None:
        """How far a RANGE of times reaches; None where Spark has no such."""
        by = bound.interval
        if by is None or (by.months and (by.days or by.micros)):
            return None
        if key.type == DATE:
            return str(by.days) if not (by.months or by.micros) else None
        if key.type == TIMESTAMP or (key.type == TIMESTAMPTZ and self._expressions.zone == UTC):
            if by.months:
                return f"INTERVAL '{by.months}' MONTH"
            return f"make_dt_interval({by.days}, 0, 0, {by.micros} * 0.000001BD)"
        return None
