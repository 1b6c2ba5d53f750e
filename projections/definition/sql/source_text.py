"""The text of a query in SQL, to be run in the source: each input's name becomes what stands for it there. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.errors import SqlglotError

from tailrace.eventstore.errors import UsageError
from tailrace.projections.definition.model import NOW
from tailrace.projections.definition.sql.statements import statements

_DIALECT = "postgres"
_WRITING = (exp.DML, exp.DDL, exp.Into, exp.Lock, exp.Command)


class SourceText:
    """A query as Postgres reads it. Raises UsageError for a text that is not one SELECT there."""

    def __init__(self, text: str, label: str) -> None:
        self._text = text
        self._label = label
        try:
            self._tokens = sqlglot.tokenize(text, read=_DIALECT)
            parsed = statements(text, _DIALECT)
        except (SqlglotError, RecursionError):
            raise self._refusal("Postgres' SQL reads it otherwise, or not at all") from None
        if len(parsed) != 1 or not isinstance(parsed[0], exp.Query):
            raise self._refusal("in Postgres' SQL it is not one SELECT")
        self._query = parsed[0]
        for each in self._query.walk():
            if isinstance(each, _WRITING) and not isinstance(each, exp.Query):
                raise self._refusal(f"in Postgres' SQL it holds {each.key.upper()}")

    def names(self, column: str) -> bool:
        """Whether the query may read a column of this name: it has the name, or takes all columns."""
        folded = column.lower()
        return (
            any(each.name.lower() == folded for each in self._query.find_all(exp.Identifier))
            or any(not isinstance(each.parent, exp.Count) for each in self._query.find_all(exp.Star))
            or any(each.method == "NATURAL" for each in self._query.find_all(exp.Join))
        )

    def filled(self, relations: Mapping[str, str], now: datetime | None) -> str:
        """The text with ``relations`` in place of the inputs, and the time of the position in place of ``:now``."""
        inputs = {name.lower(): relation for name, relation in relations.items()}
        own = {each.alias.lower() for each in self._query.find_all(exp.CTE)}
        places: list[tuple[int, int, str]] = []
        for table in self._query.find_all(exp.Table):
            if not isinstance(table.this, exp.Identifier) or (not table.db and table.name.lower() in own):
                continue
            start, end = table.this.meta["start"], table.this.meta["end"] + 1
            relation = inputs.get(table.name.lower())
            if table.db or relation is None:
                raise self._refusal(f"in Postgres' SQL it reads {table.sql(_DIALECT)}, which is no input")
            alias = "" if table.alias else f" AS {self._text[start:end]}"
            places.append((start, end, relation + alias))
        return self._replaced([*places, *self._moments(now), *self._ends()])

    def _moments(self, now: datetime | None) -> list[tuple[int, int, str]]:
        if not any(self._query.find_all(exp.Placeholder, exp.Parameter)):
            return []
        literal = f"(TIMESTAMPTZ '{now.isoformat() if now else '1970-01-01T00:00:00+00:00'}')"
        return [
            (colon.start, name.end + 1, literal)
            for colon, name in zip(self._tokens, self._tokens[1:], strict=False)
            if colon.token_type is TokenType.COLON and name.text == NOW and name.start == colon.end + 1
        ]

    def _ends(self) -> list[tuple[int, int, str]]:
        """Semicolons: the text becomes part of another one."""
        return [
            (token.start, token.end + 1, "")
            for token in self._tokens
            if token.token_type is TokenType.SEMICOLON
        ]

    def _replaced(self, places: list[tuple[int, int, str]]) -> str:
        parts, at = [], 0
        for start, end, words in sorted(places):
            parts += [self._text[at:start], words]
            at = end
        return "".join([*parts, self._text[at:]])

    def _refusal(self, why: str) -> UsageError:
        return UsageError(
            f"{self._label} cannot be run in the source: {why}",
            hint="write it in SQL that Postgres reads the same; `tailrace verify` compares the sink with the log",
        )
