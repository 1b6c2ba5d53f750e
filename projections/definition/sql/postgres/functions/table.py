"""The form of the table of functions, and the choice of a row for a call.

A row says what a function of Postgres takes and gives, and how Spark computes the same:

    Row("upper", ("text",), TEXT, "upper({0})")
    Row("round", ("numeric", "int4 constant"), _rounded, "round({0}, {1})")
    Row("sum", ("int4",), INT8, "sum({0})", "aggregate")

- ``takes`` names types (``types.py``). Arguments are converted to them as Postgres does without a cast. ``any`` is any
  type, ``array`` any array, ``element`` a value as it is, and ``numeric`` takes integers as well. ``constant`` after a
  type: only a literal. ``*`` behind the last one: any number of it.
- ``gives`` is a type, ``"same"`` (that of the first argument), or a function of the arguments.
- ``spark`` is a template with ``{0}``, ``{1}`` and ``{*}`` (all, with commas), or a function from the arguments to the
  text; ``InZone`` is one that needs the declared time zone. It raises ``NotInTable`` for arguments for which Spark has
  nothing of the same meaning.
- Where nothing of Spark's has the meaning, ``spark`` is ``Absent`` with what to write instead: better than the next
  function of the name, and than none.
- ``exact=False`` says that the last digits of a float may differ, as they do between two servers.

Several rows of one name are overloads. A new row goes into a module of ``functions/``, and queries for Postgres to
answer into ``tests/projections/meaning/``. Where the meaning differs in any case, no row computes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tailrace.projections.definition.sql.postgres.refusal import NotInTable as NotInTable
from tailrace.projections.definition.sql.postgres.types.types import UNKNOWN, PgType
from tailrace.projections.definition.sql.postgres.types.values import Value, implicit

Kind = Literal["scalar", "aggregate", "window"]
_PLACE = re.compile(r"\{(\*|\d+)\}")


@dataclass(frozen=True, slots=True)
class InZone:
    """Makes the text of a call from its arguments and the declared time zone."""

    text: Callable[[Sequence[Value], str], str]


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no translation; ``hint`` is what to write."""

    hint: str


@dataclass(frozen=True, slots=True)
class Row:
    """See the module. The text of an aggregate or window function is one call, ``f(…)``: DISTINCT, FILTER and OVER go
    into it and behind it; ``around`` is what stands around all that."""

    name: str
    takes: tuple[str, ...]
    gives: PgType | Literal["same"] | Callable[[Sequence[Value]], PgType]
    spark: str | InZone | Absent | Callable[[Sequence[Value]], str]
    kind: Kind = "scalar"
    around: str = "{0}"
    exact: bool = True

    def arguments(self, given: Sequence[Value]) -> list[Value] | None:
        """The arguments as the types of the row; None where they do not fit."""
        takes = list(self.takes)
        if takes and takes[-1].endswith("*"):
            repeated = takes.pop().removesuffix("*").strip()
            takes += [repeated] * max(0, len(given) - len(takes))
        if len(takes) != len(given):
            return None
        found = [_fit(value, wanted) for value, wanted in zip(given, takes, strict=True)]
        return [value for value in found if value is not None] if None not in found else None

    def result(self, arguments: Sequence[Value], zone: str = "UTC") -> Value:
        """The call. Raises NotInTable where ``spark`` does."""
        text = self._text(arguments, zone)
        if self.gives == "same":
            return Value(text, arguments[0].type)
        return Value(text, self.gives if isinstance(self.gives, PgType) else self.gives(arguments))

    def _text(self, arguments: Sequence[Value], zone: str) -> str:
        if isinstance(self.spark, Absent):
            raise NotInTable(
                f"{self.name}({', '.join(str(each.type) for each in arguments)})", self.spark.hint
            )
        if isinstance(self.spark, str):
            return filled(self.spark, [each.sql for each in arguments])
        return self.spark.text(arguments, zone) if isinstance(self.spark, InZone) else self.spark(arguments)


def filled(template: str, texts: Sequence[str]) -> str:
    """A template with the texts in its places."""
    return _PLACE.sub(lambda at: ", ".join(texts) if at[1] == "*" else texts[int(at[1])], template)


def _fit(value: Value, wanted: str) -> Value | None:
    name, _, rest = wanted.partition(" ")
    if rest == "constant" and value.constant is None:
        return None
    if name == "array":
        return value if value.type.element is not None else None
    if name == "element":
        return value
    if name == "any":
        return implicit(value, PgType("text")) if value.type == UNKNOWN else value
    return implicit(value, PgType(name))


def choose(rows: Iterable[Row], given: Sequence[Value]) -> tuple[Row, list[Value]] | None:
    """The row that fits best, as Postgres chooses among functions of one name: that with most arguments of the very
    type, then the first."""
    best: tuple[int, Row, list[Value]] | None = None
    for row in rows:
        arguments = row.arguments(given)
        if arguments is None:
            continue
        exact = sum(
            one.type.name == wanted.split()[0].rstrip("*")
            for one, wanted in zip(given, row.takes, strict=False)
        )
        if best is None or exact > best[0]:
            best = (exact, row, arguments)
    return None if best is None else (best[1], best[2])
