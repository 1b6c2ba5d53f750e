"""The function of a projection that is written in SQL: one SELECT over its inputs' names. Knows no parser."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PLACE = re.compile(r"\(?line (\d+),? pos(?:ition)? (\d+)\)?")


@dataclass(frozen=True, slots=True)
class TableReference:
    """A place of the text that reads an input, from ``start`` to before ``end``. ``alias`` qualifies its columns where
    the text gives no other name."""

    start: int
    end: int
    input: str
    alias: str


@dataclass(frozen=True)
class SqlQuery:
    """``text`` is the file with its header blanked, so that lines and columns are the file's. ``words`` are its tokens
    without comments and layout. ``calls`` are the places (``line:column``) of its functions and clauses, by the names
    that DataFrames have for them; ``inputs`` those that declare them, ``header`` those of all
    that its header says (``key``, ``sink``)."""

    file: str
    line: int
    text: str
    words: tuple[str, ...]
    readings: tuple[TableReference, ...]
    calls: Mapping[str, tuple[str, ...]]
    inputs: Mapping[str, str]
    arguments: tuple[str, ...] = ()
    header: Mapping[str, str] = field(default_factory=dict)

    @property
    def __signature__(self) -> inspect.Signature:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(name, kind) for name in (*self.inputs, *self.arguments)])

    def __call__(self, *args: Any, **kwargs: Any) -> DataFrame:
        """The SELECT over DataFrames. Raises what Spark raises when it cannot be analysed."""
        given = self.__signature__.bind(*args, **kwargs).arguments
        frames = {f"i{at}": given[name] for at, name in enumerate(self.inputs)}
        arguments = {name: given[name] for name in self.arguments}
        spark = next(iter(frames.values())).sparkSession
        text = self._template(list(frames.values()))
        found: DataFrame = spark.sql(text, args=arguments or None, **frames)
        return found

    @property
    def fingerprint_words(self) -> tuple[str, ...]:
        """What decides about its meaning, apart from the inputs."""
        return self.words

    def _template(self, frames: Sequence[DataFrame]) -> str:
        """The query with a placeholder for each DataFrame: Spark takes no other names for them. Raises ProjectionFailed
        where the query is none over these."""
        places = {name: f"{{i{at}}}" for at, name in enumerate(self.inputs)}
        parts, at = [], 0
        for reading in self.readings:
            alias = f" AS {reading.alias}" if reading.alias else ""
            parts += [_escape(self.text[at : reading.start]), places[reading.input], alias]
            at = reading.end
        return "".join([*parts, _escape(self.text[at:])])

    def place_of(self, error: Exception) -> str:
        """The place of what Spark refuses: ``file:line``, with the column where that is the file's."""
        line = spark_line(error)
        if line is None:
            return f"{self.file}:{self.line}"
        context = _context(error)
        fragment = context[0].fragment() if context else ""
        text = self.text.splitlines()[line - 1] if line <= self.text.count("\n") + 1 else ""
        if fragment and text.count(fragment) == 1:
            return f"{self.file}:{line}:{text.index(fragment) + 1}"
        return f"{self.file}:{line}"

    def written(self, text: str, line: int) -> str:
        """A subquery as its author wrote it, of which Spark has the ``text`` from a ``line`` of its own on."""
        return text


def spark_line(error: Exception) -> int | None:
    """The line of the text in which Spark sees what it refuses, counted from 1."""
    context = _context(error)
    place = _PLACE.search(context[0].summary() if context else str(error)) or _PLACE.search(str(error))
    return int(place[1]) if place is not None else None


def _context(error: Exception) -> Sequence[Any]:
    return getattr(error, "getQueryContext", tuple)() or ()


def _escape(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
