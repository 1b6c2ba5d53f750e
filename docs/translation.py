"""The page of the reference that says what of Postgres' SQL means the same here: the table of functions, the table of
types, and the forms that the tests compare with Postgres."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tailrace.projections.analysis.meaning.postgres_types import described_types
from tailrace.projections.definition.sql.postgres.functions import GROUPS
from tailrace.projections.definition.sql.postgres.functions.table import Absent, Row
from tailrace.projections.definition.sql.postgres.refusal import Refused
from tailrace.projections.definition.sql.postgres.translate import parse, translate
from tailrace.projections.definition.sql.postgres.types.types import NUMERIC, PgType
from tests.projections.meaning.syntax_cases import SYNTAX, X


def parts() -> Iterable[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """Title, head and rows of each table of the page."""
    yield "Types", ("type", "equal", "ordered", "read as"), _types()
    for title, forms in SYNTAX.items():
        yield title, ("what", "for example", "here"), _forms(forms)
    for title, rows in GROUPS.items():
        yield title, ("function", "gives", "here"), _functions(rows)


def _types() -> list[tuple[str, ...]]:
    return [
        (words, _yes(kind.equal), _yes(kind.order != "not as text"), ", ".join(sorted(kind.reads)))
        for words, kind in described_types()
    ]


def _yes(right: bool) -> str:
    return "yes" if right else "refused"


def _forms(forms: Mapping[str, str]) -> list[tuple[str, ...]]:
    return [(what, f"`{example}`", _here(example)) for what, example in forms.items()]


def _here(expression: str) -> str:
    """``equal``, or what to write instead."""
    try:
        translate(parse(f"SELECT {expression} AS v FROM x"), {"x": X}, "UTC")  # noqa: S608
    except Refused as error:
        return f"refused: {error.hint}"
    return "equal"


def _functions(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The overloads of a function in one line where the same is said of them."""
    lines: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        refused = f"refused: {row.spark.hint}" if isinstance(row.spark, Absent) else ""
        lines[row.name, refused or ("equal" if row.exact else "equal but for the last digits")].append(row)
    return [
        (", ".join(map(_call, overloads)), ", ".join(dict.fromkeys(map(_gives, overloads))), here)
        for (_, here), overloads in lines.items()
    ]


def _call(row: Row) -> str:
    return f"`{row.name}({', '.join('…' if each.endswith('*') else each for each in row.takes)})`"


def _gives(row: Row) -> str:
    if row.gives == "same":
        return "the same"
    kind = row.gives if isinstance(row.gives, PgType) else NUMERIC
    return str(replace(kind, precision=None, scale=None))
