"""Partial results that a function in Python marks: ``stage``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from tailrace.eventstore.errors import UsageError
from tailrace.projections.definition.model import (
    Affects,
    Call,
    InputFacts,
    NoStage,
    Projection,
    ProjectionFailed,
    Result,
    Stage,
)
from tailrace.projections.definition.validate import mistakes_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTIAL = "_stage"
"""The input of the function that are its partial results."""


@dataclass(slots=True)
class _Marks:
    """One call of a function. ``given``: what stands for its partial results; ``ends``: it is called for these alone.
    ``marked`` are the keys and the lineages of what it marked."""

    given: DataFrame | None = None
    ends: bool = False
    marked: list[tuple[tuple[str, ...], Mapping[str, Affects]]] = field(default_factory=list)


_marks: ContextVar[_Marks | None] = ContextVar("tailrace_stage", default=None)


class _Reached(Exception):
    """The partial results of a call that is for these alone."""

    def __init__(self, rows: DataFrame) -> None:
        super().__init__()
        self.rows = rows


def stage(rows: DataFrame, *, key: str | Sequence[str], affects: Mapping[str, Affects]) -> DataFrame:
    """Mark rows inside a projection's function as partial results: changes are followed into them by ``key``, as into
    the result of a projection of their own, and the rest of the function is computed of all of them. ``affects`` says
    for each input, by its name, which keys a row takes part in. A refresh keeps and reads them once computing
    everything takes long; a build, and ``verify``, compute the function as it is written.

        parts = orders.groupBy("status", F.expr("id % 4096").alias("part")).agg(F.sum("amount").alias("total"))
        parts = stage(parts, key=("status", "part"), affects={"orders": {"part": Computed("id % 4096")}})
        return parts.groupBy("status").agg(F.sum("total").cast("decimal(20,2)").alias("total"))

    Gives the rows. Raises UsageError for a key or an ``affects`` that is none.
    """
    keys = (key,) if isinstance(key, str) else tuple(key)
    if not keys or not all(isinstance(each, str) and each for each in keys):
        raise UsageError(f"stage: {key!r} is no key", hint='name its columns: key=("status", "part")')
    if not isinstance(affects, Mapping) or not affects:
        raise UsageError(
            "stage: affects is no mapping", hint='say it by input: affects={"orders": {"part": "id"}}'
        )
    marks = _marks.get()
    if marks is None:
        return rows
    marks.marked.append((keys, affects))
    if marks.ends:
        raise _Reached(rows)
    return rows if marks.given is None else marks.given


@contextmanager
def _calling(marks: _Marks) -> Iterator[_Marks]:
    token = _marks.set(marks)
    try:
        yield marks
    finally:
        _marks.reset(token)


class _PartsOf:
    """A function up to its partial results."""

    def __init__(self, function: Any) -> None:
        self.__wrapped__ = function

    def __call__(self, **given: Any) -> Any:
        try:
            with _calling(_Marks(ends=True)):
                self.__wrapped__(**given)
        except _Reached as reached:
            return reached.rows
        raise NoStage("it marks none")


class _RestOf:
    """A function from its partial results on."""

    def __init__(self, function: Any) -> None:
        self.__wrapped__ = function

    def __call__(self, **given: Any) -> Any:
        with _calling(_Marks(given=given.pop(PARTIAL))):
            return self.__wrapped__(**given)


class MarkedStages:
    """Those that a function marks, which a call of it shows."""

    may_add: ClassVar[bool] = False

    def stage(self, defined: Projection, facts: InputFacts, call: Call) -> Stage:
        """Raises NoStage, and ProjectionFailed for an ``affects`` that does not fit."""
        with _calling(_Marks()) as marks:
            call(defined)
        if len(marks.marked) != 1:
            raise NoStage(f"it marks {len(marks.marked) or 'no'} partial results")
        ((key, affects),) = marks.marked
        unknown = sorted(affects.keys() - defined.inputs.keys())
        if unknown:
            raise ProjectionFailed(
                f"stage: affects names {unknown[0]!r}, which is no input of projection {defined.name!r}",
                hint=f"its inputs are {', '.join(defined.inputs)}",
            )
        inputs = {name: replace(source, affects=affects.get(name)) for name, source in defined.inputs.items()}
        partial = replace(defined, key=key, inputs=inputs, function=_PartsOf(defined.function), stages=None)
        for wrong in mistakes_of(partial):
            raise ProjectionFailed(wrong.what, hint=wrong.hint, place=wrong.place)
        over = replace(
            defined,
            inputs={**defined.inputs, PARTIAL: Result(defined.name)},
            function=_RestOf(defined.function),
            stages=None,
        )
        return Stage(partial, over, PARTIAL)
