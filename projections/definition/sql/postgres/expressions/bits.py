"""Operators on the bits of integers."""

from __future__ import annotations

from tailrace.projections.definition.sql.postgres.refusal import NotInTable
from tailrace.projections.definition.sql.postgres.types.types import INT8
from tailrace.projections.definition.sql.postgres.types.values import Value, common_type, implicit

_OF_SPARK = {"&": "&", "|": "|", "#": "^"}


def bits(name: str, left: Value, right: Value) -> Value:
    """``& | #``, and ``<< >>`` by a constant. Raises NotInTable."""
    if name in ("<<", ">>"):
        return _shifted(name, left, right)
    kind = common_type([left, right])
    one, other = (
        implicit(each, kind) if kind is not None and kind.is_integer else None for each in (left, right)
    )
    if kind is None or one is None or other is None:
        raise NotInTable(f"{left.type} {name} {right.type}", "cast both to integer or bigint")
    return Value(f"({one.sql} {_OF_SPARK[name]} {other.sql})", kind)


def _shifted(name: str, left: Value, right: Value) -> Value:
    most = 63 if left.type == INT8 else 31
    by = int(right.constant) if right.constant is not None and right.constant.isdecimal() else None
    if left.type.name not in ("int4", "int8") or by is None or by > most:
        raise NotInTable(
            f"{left.type} {name} {right.type}", f"an integer or bigint is shifted by a constant to {most}"
        )
    return Value(f"{'shiftleft' if name == '<<' else 'shiftright'}({left.sql}, {by})", left.type)


def inverted(value: Value) -> Value:
    """``~``. Raises NotInTable."""
    if not value.type.is_integer:
        raise NotInTable(f"~ {value.type}", "cast it to integer or bigint")
    return Value(f"(~ {value.sql})", value.type)
