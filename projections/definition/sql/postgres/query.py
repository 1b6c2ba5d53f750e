"""The function of a projection that is written in Postgres' SQL."""

from __future__ import annotations

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
            raise ProjectionFailed(error.what, hint=error.hint, place=self._place(error.offset)) from error
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


def columns_of(frame: DataFrame) -> Columns:
    """The columns of a DataFrame, with Postgres' types of their values."""
    return tuple((field.name, type_of_spark(field.dataType)) for field in frame.schema.fields)


@lru_cache(_TRANSLATIONS_MAX)
def _translate(text: str, inputs: tuple[tuple[str, Columns], ...], zone: str) -> SourceMap:
    return translate(parse(text), dict(inputs), zone)
