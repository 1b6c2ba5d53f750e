"""The function of a projection that is written in Postgres' SQL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from tailrace.projections.definition.model import ProjectionFailed
from tailrace.projections.definition.sql.postgres.refusal import Refused
from tailrace.projections.definition.sql.postgres.scope import Columns
from tailrace.projections.definition.sql.postgres.source_map import SourceMap
from tailrace.projections.definition.sql.postgres.translate import TRANSLATION, parse, translate
from tailrace.projections.definition.sql.postgres.types.types import type_of_spark
from tailrace.projections.definition.sql_query import SqlQuery, spark_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TRANSLATIONS_MAX = 512
_SUBQUERY = re.compile(r"\(\s*(?:select|with)\b", re.I)
_PARENTHESIS = re.compile(r"'[^']*'|[()]")


@dataclass(frozen=True)
class PostgresQuery(SqlQuery):
    """Translated when it is called, because only DataFrames tell the types of columns. ``time_zone`` is that of clocks
    in the query."""

    time_zone: str = "UTC"
    _last: list[SourceMap] = field(default_factory=list, repr=False, compare=False)

    @property
    def fingerprint_words(self) -> tuple[str, ...]:
        return (*self.words, f"postgres {TRANSLATION} {self.time_zone}")

    def _template(self, frames: Sequence[DataFrame]) -> str:
        columns = tuple((name, columns_of(frame)) for name, frame in zip(self.inputs, frames, strict=True))
        try:
            found = _translate(self.text, columns, self.time_zone)
        except Refused as error:
            first, *others = (
                ProjectionFailed(each.what, hint=each.hint, place=self._place(each.offset))
                for each in (error, *error.others)
            )
            first.others = tuple(others)
            raise first from error
        self._last[:] = [found]
        return found.text

    def _place(self, offset: int | None) -> str:
        """``file:line:column`` of a character of the text."""
        if offset is None:
            return f"{self.file}:{self.line}"
        line, column = self.text.count("\n", 0, offset) + 1, offset - self.text.rfind("\n", 0, offset)
        return f"{self.file}:{line}:{column}"

    def place_of(self, error: Exception) -> str:
        line = spark_line(error)
        return self._place(self._last[0].offset(line) if line is not None and self._last else None)

    def written(self, text: str, line: int) -> str:
        inside = (
            self._last[0].offset(line + 1) if self._last else None
        )  # what it begins with has its own line
        begins = [each.start() for each in _SUBQUERY.finditer(self.text, 0, inside or 0)]
        return _in_parentheses(self.text[begins[-1] :]) if begins else text


def _in_parentheses(text: str) -> str:
    """A text from its first parenthesis to the one that closes it."""
    depth = 0
    for each in _PARENTHESIS.finditer(text):
        depth += {"(": 1, ")": -1}.get(each[0], 0)
        if depth == 0:
            return text[: each.end()]
    return text


def columns_of(frame: DataFrame) -> Columns:
    """The columns of a DataFrame, with Postgres' types of their values."""
    return tuple((field.name, type_of_spark(field.dataType)) for field in frame.schema.fields)


@lru_cache(_TRANSLATIONS_MAX)
def _translate(text: str, inputs: tuple[tuple[str, Columns], ...], zone: str) -> SourceMap:
    return translate(parse(text), dict(inputs), zone)
