"""What is said when it does not follow from a query which keys the rows of an input affect: why, where, and the line to
write. Pure.

Such an input is no mistake: each change of it has everything computed.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from tailrace.projections.definition.findings import DefinitionFinding
from tailrace.projections.definition.model import Projection
from tailrace.projections.definition.sql.derive import DerivedAffects
from tailrace.projections.definition.sql.header import EVERYTHING

_DOES_NOT_FOLLOW = "which keys its rows affect does not follow from the query"
_BARE_KEY = re.compile(r"[\w-]+", re.A)
_LONGEST = 60


@dataclass(frozen=True, slots=True)
class QueryText:
    """A file's ``text``, and the ``lines`` on which its inputs are declared."""

    text: str
    lines: Mapping[str, int]

    def position(self, offset: int) -> str:
        """``line:column`` of a character."""
        line = self.text.count("\n", 0, offset) + 1
        return f"{line}:{offset - self.text.rfind(chr(10), 0, offset)}"

    def line_with_affects(self, name: str, affects: str) -> str:
        """The line that declares an input, as it is with an ``affects`` (in TOML)."""
        line = self.text.splitlines()[self.lines[name] - 1]
        if line.lstrip().startswith("["):
            return f"affects = {affects} below {line.strip()}"
        left = line.partition("=")[0].strip()
        try:
            value: Any = tomllib.loads(line)
        except tomllib.TOMLDecodeError:  # it goes on in the next line
            return f"affects = {affects} for {left}"
        last = ""
        for last in _path(left):
            value = value[last]
        if last != name:  # inputs.orders.state = "…"
            return f"{left.rpartition('.')[0]}.affects = {affects}"
        given = {"state": value} if isinstance(value, str) else value
        parts = [f"{key} = {_toml(each)}" for key, each in given.items()] + [f"affects = {affects}"]
        return f"{left} = {{ {', '.join(parts)} }}"


def unfollowed_inputs(
    defined: Projection, query: exp.Query, written: QueryText, derived: DerivedAffects
) -> Iterator[DefinitionFinding]:
    """One warning for a key that is no column of an input, otherwise one for each input that leads nowhere."""
    if derived.missing and derived.untraced == defined.key:
        yield _untraced_key(defined, query, written, tuple(derived.missing))
        return
    for name, missing in derived.missing.items():
        what = (
            f"input {name!r}: {_DOES_NOT_FOLLOW}, so each change of it has everything computed: {missing.why}"
        )
        ways = [missing.remedy, _accepted(written, [name]), _followed(defined, name)]
        hint = "; ".join(way for way in ways if way)
        yield DefinitionFinding("warn", what, hint, _input_place(defined, written, name), name)


def _accepted(written: QueryText, names: Sequence[str]) -> str:
    lines = "; ".join(written.line_with_affects(name, f'"{EVERYTHING}"') for name in names)
    return f"if that is meant, write {lines}"


def _followed(defined: Projection, name: str) -> str:
    columns = ", ".join(f'{column} = "its column"' for column in defined.key)
    words = f"if it has the key, say where: affects = {{ {columns} }}"
    others = [each for each, source in defined.inputs.items() if source.affects is not None and each != name]
    if others:
        words += (
            f"; if its rows belong to those of {others[0]}: affects = {{ through = {json.dumps(others[0])},"
            ' on = { "its column" = "column there" } }'
        )
    return words


def _input_place(defined: Projection, written: QueryText, name: str) -> str:
    line = written.text.splitlines()[written.lines[name] - 1]
    return f"{defined.file}:{written.lines[name]}:{len(line) - len(line.lstrip()) + 1}"


def _untraced_key(
    defined: Projection, query: exp.Query, written: QueryText, names: Sequence[str]
) -> DefinitionFinding:
    key = defined.key[0]
    made = _made_as(query, key)
    place = f"{defined.file}:{written.position(_start(made)) if made is not None else defined.line}"
    hint = f"{_accepted(written, names)}; what is followed by key is a column of an input, or computed of one row's"
    why = f"its key ({', '.join(defined.key)}) is neither a column of an input nor computed of one row of it"
    if isinstance(made, exp.Column):
        if not made.table and len(_tables_around(made)) > 1:
            tables = " or ".join(f"{table}.{made.name}" for table in _tables_around(made))
            why = f"its key {key} may be a column of several tables"
            hint = f"write it with its table: {tables}"
    elif made is not None:
        why = f"its key {key} is computed: {_source(made, written.text)}"
    what = f"each change has everything computed: {why}"
    return DefinitionFinding("warn", what, hint, place, column=key)


def _made_as(query: exp.Expr, name: str) -> exp.Expr | None:
    """The expression that a column of the result is, looked up in inner queries by its name."""
    outer: exp.Expr = query
    while isinstance(outer, exp.SetOperation | exp.Subquery):
        outer = outer.left if isinstance(outer, exp.SetOperation) else outer.this
    found: exp.Expr | None = None
    for each in outer.expressions if isinstance(outer, exp.Select) else ():
        if each.alias_or_name.lower() == name.lower():
            found = each.unalias()
    sought = found.name if isinstance(found, exp.Column) else name
    if found is None or isinstance(found, exp.Column):
        for alias in query.find_all(exp.Alias):
            if alias.alias.lower() == sought.lower() and not isinstance(alias.this, exp.Column):
                return alias.unalias()
    return found


def _tables_around(column: exp.Column) -> list[str]:
    """The tables of the SELECT that a column stands in."""
    select = column.find_ancestor(exp.Select)
    start = select.args.get("from_") if select is not None else None
    joins = (select.args.get("joins") or []) if select is not None else []
    return [each.this.alias_or_name for each in ([start] if start else []) + joins]


def _ends(expression: exp.Expr) -> tuple[int, int]:
    """The first and the last character of what a parser has kept of an expression."""
    marks = [each.meta for each in expression.walk() if "start" in each.meta]
    starts, ends = [int(mark["start"]) for mark in marks], [int(mark["end"]) for mark in marks]
    return min(starts, default=0), max(ends, default=0)


def _start(expression: exp.Expr) -> int:
    return _ends(expression)[0]


def _source(expression: exp.Expr, text: str) -> str:
    """An expression as it is written, with the parentheses that close it."""
    start, end = _ends(expression)
    while text.count("(", start, end + 1) > text.count(")", start, end + 1):
        closed = text.find(")", end + 1)
        if closed < 0:
            break
        end = closed
    words = " ".join(text[start : end + 1].split())
    return words if len(words) <= _LONGEST else words[:_LONGEST] + "…"


def _path(key: str) -> Iterator[str]:
    """The names of a dotted key."""
    at: Any = tomllib.loads(f"{key} = 0")
    while isinstance(at, dict):
        ((name, at),) = at.items()
        yield name


def _toml(value: Any) -> str:
    """A value of a header, on one line."""
    if isinstance(value, dict):
        inside = [
            f"{key if _BARE_KEY.fullmatch(key) else json.dumps(key)} = {_toml(each)}"
            for key, each in value.items()
        ]
        return f"{{ {', '.join(inside)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)
