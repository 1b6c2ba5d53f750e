"""Whether a projection may be refreshed incrementally: what speaks against it, in words for its author.

Three guards, each where it costs least: what is declared (always), what the plan says and what samples show (once for
each generation and version of its inputs' columns, ``samples``), and in every step an output of a key that is not
affected (``incremental``). ``incomparable`` says which columns of a lineage cannot be compared as keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from tailrace.eventstore.model.schema import TopicSchema
from tailrace.projections.analysis.analyse import Analysis, analyse
from tailrace.projections.compute.read_plan import Planned
from tailrace.projections.definition.computed import Computed
from tailrace.projections.definition.lineage import Direct, Lineage, lineage_of
from tailrace.projections.definition.model import Changes, Events, Input, Projection, ProjectionFailed, State
from tailrace.projections.generations.key_set import family
from tailrace.projections.generations.result_input import ResultInput

if TYPE_CHECKING:
    from tailrace.projections.context import ProjectionContext

Columns: TypeAlias = "TopicSchema | pa.Schema"
"""Those of a topic; of another projection's result."""


def declaration_refusal(projection: Projection) -> str | None:
    """What a projection's declaration alone says against following keys; None when nothing does."""
    lineage = lineage_of(projection)
    if not lineage.paths:
        return "no input says what it affects (affects=)"
    if not lineage.key:
        return "its inputs' affects have no column of the key in common"
    if projection.wants_now:
        return "its result depends on the time (now)"
    return None


def plan_analysis(ctx: ProjectionContext, projection: Projection) -> Analysis | str:
    """What the plan of a projection's function says, or why it has none. Needs Spark."""
    try:
        return analyse(ctx.spark, ctx.store, projection)
    except ProjectionFailed as error:
        return error.message


def incomparable(
    projection: Projection, lineage: Lineage, schema_of: Callable[[str], Columns], result: pa.Schema
) -> str | None:
    """Why rows of the inputs cannot be found by keys, the first reason; None when they can. ``schema_of`` gives the
    columns of an input, ``result`` are those of the projection's result."""
    for name, path in lineage.paths.items():
        source = projection.inputs[name]
        own = path.columns if isinstance(path, Direct) else path.own
        for at, column in enumerate(own):
            if isinstance(column, Computed):
                kind = result.field(lineage.key[at]).type
                if family(kind) is None:
                    return f"{lineage.key[at]} of its result is {kind}, which cannot be followed"
                continue
            if isinstance(path, Direct):
                other, kind = f"{lineage.key[at]} of its result", result.field(lineage.key[at]).type
            else:
                other = f"{path.theirs[at]} of {path.input}"
                theirs = _kind(projection.inputs[path.input], schema_of(path.input), path.theirs[at])
                if isinstance(theirs, str):
                    return f"{path.input}.{path.theirs[at]} {theirs}"
                kind = theirs
            mine = _kind(source, schema_of(name), column)
            if isinstance(mine, str):
                return f"{name}.{column} {mine}"
            if family(mine) is None or family(mine) != family(kind):
                return f"{name}.{column} is {mine}, which cannot be compared with {other}, {kind}"
    return None


def columns_of(planned: Planned) -> Columns:
    """The columns of an input by which rows may be found."""
    return planned.schema if isinstance(planned, ResultInput) else planned.target


def _kind(source: Input, schema: Columns, name: str) -> pa.DataType | str:
    """The type in which the function sees a column, or why its rows cannot be found by it."""
    if not isinstance(schema, TopicSchema):
        return schema.field(name).type if name in schema.names else "is no column of that result"
    column = schema.column(name)
    if column is None:
        return "is no column of its topic"
    match source:
        case State():
            if name in source.cast:
                return "is cast, so its values are not those in the log"
            policy = source.on_unreadable
            policy = policy if isinstance(policy, str) else policy.get(name, "error")
            if policy == "text" and not pa.types.is_string(column.arrow):
                return "is read as its source's text"
            if source.erased and source.columns is not None and name not in source.columns:
                return "is not among the columns that are read, though _erased is asked for"
        case Changes() if not column.key:
            return "is no part of the topic's key, which is all that every change has"
        case Events() | Changes():
            pass
    return column.arrow
