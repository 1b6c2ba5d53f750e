"""Random queries in Postgres' SQL over the table of all types, as sqlsmith makes them: joins, subqueries, groupings,
windows, set operations. Each gives ``id``, a whole number, and ``v``; its rows do not depend on the order of equal
ones, and nothing in it can overflow."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

COLUMNS = {
    "id": "int", "whole": "int", "whole_2": "int", "small": "int", "exact": "numeric", "words": "text",
    "words_2": "text", "flag": "bool", "day": "date",
}  # fmt: skip
"""Those of the table that queries are over."""
_CONSTANTS = {
    "int": ("0", "1", "9", "10", "-1"),
    "numeric": ("0.5", "10", "-2.25"),
    "text": ("'a'", "'B'", "''", "'zz'"),
    "bool": ("true", "false"),
    "date": ("date '2026-01-01'", "date '1970-01-01'"),
}
_TYPES = tuple(_CONSTANTS)
Columns = dict[str, str]
"""What an expression may name, with its type."""


@dataclass
class Queries:
    """One query after the other, as the seed has it."""

    seed: int
    _rng: random.Random = field(init=False)
    _names: int = 0

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def query(self) -> str:
        self._names = 0
        text = self._rng.choice([self._select, self._select, self._select, self._set_operation])(2)
        if self._rng.random() < 0.2:
            text = f"SELECT id, v FROM ({text}) limited ORDER BY id, v LIMIT {self._rng.randint(1, 6)}"  # noqa: S608
        if self._rng.random() < 0.2:
            name = self._name()
            where = self._condition({"id": "int"}, 1)
            return f"WITH {name} AS ({text}) SELECT id, v FROM {name} WHERE {where}"  # noqa: S608
        return text

    def _set_operation(self, depth: int) -> str:
        kind = self._rng.choice(_TYPES)
        operation = self._rng.choice(["UNION", "UNION ALL", "INTERSECT", "EXCEPT", "EXCEPT ALL"])
        return f"{self._select(depth - 1, kind)} {operation} {self._select(depth - 1, kind)}"

    def _select(self, depth: int, kind: str | None = None) -> str:
        source, columns = self._relation(depth)
        if self._rng.random() < 0.1:
            other, theirs = self._table()
            source, columns = f"{source}, {other}", columns | theirs
        where = f" WHERE {self._condition(columns, depth)}" if self._rng.random() < 0.6 else ""
        wanted = kind or self._rng.choice(_TYPES)
        make = self._rng.choice([self._plain, self._plain, self._grouped, self._grouped, self._windowed])
        return make(source, where, columns, wanted, depth)

    def _plain(self, source: str, where: str, columns: Columns, kind: str, depth: int) -> str:
        distinct = "DISTINCT " if self._rng.random() < 0.2 else ""
        key, value = self._value("int", columns, depth), self._value(kind, columns, depth)
        return f"SELECT {distinct}{key} AS id, {value} AS v FROM {source}{where}"  # noqa: S608

    def _grouped(self, source: str, where: str, columns: Columns, kind: str, depth: int) -> str:
        keys = [self._value(self._rng.choice(_TYPES), columns, 1) for _ in range(self._rng.randint(0, 2))]
        grouping = f" GROUP BY {', '.join(keys)}" if keys else ""
        having = ""
        if self._rng.random() < 0.3:
            having = f" HAVING {self._aggregate('int', columns)} > {self._rng.randint(0, 3)}"
        key, value = self._aggregate("int", columns), self._aggregate(kind, columns)
        return f"SELECT {key} AS id, {value} AS v FROM {source}{where}{grouping}{having}"  # noqa: S608

    def _windowed(self, source: str, where: str, columns: Columns, kind: str, depth: int) -> str:
        """Functions whose value is that of all rows that are equal in the order."""
        order = self._value(self._rng.choice(_TYPES), columns, 1)
        parts = (
            f"PARTITION BY {self._value(self._rng.choice(_TYPES), columns, 1)} "
            if self._rng.random() < 0.6
            else ""
        )
        direction = self._rng.choice(["", " DESC", " NULLS FIRST", " DESC NULLS LAST"])
        over = f"OVER ({parts}ORDER BY {order}{direction})"
        functions = ["rank()", "dense_rank()", "count(*)", f"sum({self._value('int', columns, 1)})"]
        value = f"{self._rng.choice(['min', 'max'])}({self._value(kind, columns, 1)}) {over}"
        if kind == "bool":  # which has no min
            value = self._value(kind, columns, depth)
        return f"SELECT {self._rng.choice(functions)} {over} AS id, {value} AS v FROM {source}{where}"  # noqa: S608

    def _relation(self, depth: int) -> tuple[str, Columns]:
        if depth <= 0 or self._rng.random() < 0.3:
            return self._table()
        if self._rng.random() < 0.3:
            name, kind = self._name(), self._rng.choice(_TYPES)
            return f"({self._select(depth - 1, kind)}) {name}", {f"{name}.id": "int", f"{name}.v": kind}
        (left, ours), (right, theirs) = self._relation(depth - 1), self._table()
        join = self._rng.choice(["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "CROSS JOIN"])
        if join == "CROSS JOIN":
            return f"{left} {join} {right}", ours | theirs
        # A full join needs an equality to be merged by.
        kind = self._rng.choice([each for each in _TYPES if each in ours.values()])
        equal = f"{self._column(kind, ours)} = {self._column(kind, theirs)}"
        more = (
            f" AND {self._condition(ours | theirs, 0)}"
            if join != "FULL JOIN" and self._rng.random() < 0.4
            else ""
        )
        return f"{left} {join} {right} ON {equal}{more}", ours | theirs

    def _table(self) -> tuple[str, Columns]:
        name = self._name()
        return f"t {name}", {f"{name}.{column}": kind for column, kind in COLUMNS.items()}

    def _condition(self, columns: Columns, depth: int) -> str:
        kind = self._rng.choice([each for each in _TYPES if each in columns.values()])
        one, other = self._value(kind, columns, depth - 1), self._value(kind, columns, depth - 1)
        forms = [
            f"{one} {self._rng.choice(['=', '<>', '<', '<=', '>', '>='])} {other}",
            f"{one} IS {self._rng.choice(['', 'NOT '])}NULL",
            f"{one} IS DISTINCT FROM {other}",
            f"{one} {self._rng.choice(['', 'NOT '])}IN ({self._constant(kind)}, {self._constant(kind)})",
            f"{one} BETWEEN {self._constant(kind)} AND {other}",
        ]
        if depth > 0:
            first, second = self._condition(columns, depth - 1), self._condition(columns, depth - 1)
            forms += [f"({first} AND {second})", f"({first} OR {second})", f"NOT ({first})"]
            forms += [self._in_rows(kind, one), self._exists(kind, columns)]
        return self._rng.choice(forms)

    def _in_rows(self, kind: str, value: str) -> str:
        source, columns = self._table()
        where = f" WHERE {self._condition(columns, 0)}" if self._rng.random() < 0.7 else ""
        negation = self._rng.choice(["", "NOT "])
        return f"{value} {negation}IN (SELECT {self._column(kind, columns)} FROM {source}{where})"  # noqa: S608

    def _exists(self, kind: str, columns: Columns) -> str:
        source, inner = self._table()
        equal = f"{self._column(kind, inner)} = {self._column(kind, columns)}"
        negation = self._rng.choice(["", "NOT "])
        return f"{negation}EXISTS (SELECT 1 FROM {source} WHERE {equal} AND {self._condition(inner, 0)})"  # noqa: S608

    def _aggregate(self, kind: str, columns: Columns) -> str:
        value = self._value(kind, columns, 1)
        condition = f" FILTER (WHERE {self._condition(columns, 0)})" if self._rng.random() < 0.2 else ""
        any_value = self._value(self._rng.choice(_TYPES), columns, 1)
        forms = {
            "int": [
                "count(*)",
                f"count({any_value})",
                f"count(DISTINCT {any_value})",
                f"sum({value})",
                f"max({value})",
            ],
            "bool": [f"bool_and({value})", f"bool_or({value})"],
            "text": [f"string_agg({value}, ',' ORDER BY {value})", f"min({value})", f"max({value})"],
            "numeric": [f"sum({value})", f"min({value})"],
        }.get(kind, [f"min({value})", f"max({value})"])
        return self._rng.choice(forms) + condition

    def _value(self, kind: str, columns: Columns, depth: int) -> str:
        if kind not in columns.values() or (depth <= 0 and self._rng.random() < 0.1):
            return self._constant(kind)
        column = self._column(kind, columns)
        if depth <= 0 or self._rng.random() < 0.5:
            return column
        deeper, other = self._value(kind, columns, depth - 1), self._value(kind, columns, depth - 1)
        forms = [
            f"coalesce({column}, {self._constant(kind)})",
            f"nullif({column}, {other})",
            f"CASE WHEN {self._condition(columns, 0)} THEN {deeper} ELSE {other} END",
        ]
        forms += {
            "int": [f"{column} % 7", f"(({column} % 100) * 3 + 1)"],
            "text": [f"lower({column})", f"({column} || 'x')", f"left({column}, 1)"],
            "numeric": [f"round({column}, 1)", f"({column} + 1.5)"],
            "bool": [f"(NOT {column})", f"({self._condition(columns, 0)})"],
        }.get(kind, [])
        return self._rng.choice(forms)

    def _column(self, kind: str, columns: Columns) -> str:
        found = [name for name, each in columns.items() if each == kind]
        return self._rng.choice(found) if found else self._constant(kind)

    def _constant(self, kind: str) -> str:
        return self._rng.choice(_CONSTANTS[kind])

    def _name(self) -> str:
        self._names += 1
        return f"a{self._names}"


def queries(seed: int, number: int) -> Sequence[str]:
    """So many different ones."""
    made = Queries(seed)
    found: dict[str, None] = {}
    while len(found) < number:
        found[made.query()] = None
    return list(found)
