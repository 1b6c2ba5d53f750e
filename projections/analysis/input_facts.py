"""What the walk of a plan has to know of a projection's inputs, and casts in their declarations that nobody means."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import pyarrow as pa

from tailrace.eventstore.model.schema import NUMERIC
from tailrace.eventstore.model.topic import TopicKind
from tailrace.eventstore.state.input import StateInput
from tailrace.projections.analysis.determinism import Declaration
from tailrace.projections.analysis.proof import InputFacts
from tailrace.projections.compute.read_plan import Planned
from tailrace.projections.definition.findings import DefinitionFinding
from tailrace.projections.definition.model import Changes, Events, Projection, Result, State
from tailrace.projections.definition.source import SourceLines
from tailrace.projections.generations.result_input import ResultInput

_PLACE = ("_partition", "_offset")
_BARE_DECIMAL = re.compile(r"\s*(decimal|dec|numeric)\s*", re.I)


def declaration_of(
    projection: Projection, inputs: Mapping[str, Planned], texts_of_results: Mapping[str, frozenset[str]]
) -> Declaration:
    """``texts_of_results``: the columns of other projections' results that are numeric text."""
    return Declaration(
        frozenset(projection.tolerance),
        projection.trust,
        {name: _facts(projection, name, planned) for name, planned in inputs.items()},
        {**_numeric_texts(projection, inputs), **texts_of_results},
        frozenset(name for name, source in projection.inputs.items() if isinstance(source, State)),
        {name: each.projection for name, each in projection.inputs.items() if isinstance(each, Result)},
    )


def _facts(projection: Projection, name: str, planned: Planned) -> InputFacts:
    match projection.inputs[name]:
        case State():
            assert isinstance(planned, StateInput)
            key = tuple(column.name for column in planned.target.key)
            return InputFacts(name, () if planned.target.bag else (key,))
        case Changes():
            return InputFacts(name, (_PLACE,), nested=True)
        case Events():
            return InputFacts(name, (_PLACE, ("stream", "version")))
        case Result():
            assert isinstance(planned, ResultInput)
            return InputFacts(name, (planned.key,))


def _numeric_texts(projection: Projection, inputs: Mapping[str, Planned]) -> dict[str, frozenset[str]]:
    """Columns that are numeric in Postgres and text in the DataFrame; ``after.price`` of changes."""
    found = {}
    for name, planned in inputs.items():
        source = projection.inputs[name]
        if isinstance(planned, ResultInput) or planned.target.kind is not TopicKind.TABLE:
            continue
        cast = source.cast if isinstance(source, State) else {}
        rows = [""] if isinstance(source, State) else ["key", "after", "before", "_moved_from"]
        found[name] = frozenset(
            f"{row}.{column.name}" if row else column.name
            for row in rows
            for column in planned.target.columns
            if column.type_oid == NUMERIC
            and column.name not in cast
            and _is_text(planned.schema, row, column.name)
        )
    return found


def _is_text(schema: pa.Schema, row: str, column: str) -> bool:
    held = schema.field(row).type if row else schema
    names = [held.field(at).name for at in range(held.num_fields)] if row else schema.names
    return column in names and bool(pa.types.is_string(held.field(column).type))


def bare_decimals(projection: Projection, lines: SourceLines) -> Iterator[DefinitionFinding]:
    """Casts that nobody means: Spark's ``decimal`` alone has no place behind the point."""
    for name, source in projection.inputs.items():
        for column, ddl in source.cast.items() if isinstance(source, State) else ():
            if _BARE_DECIMAL.fullmatch(ddl):
                what = f"input {name!r}: {ddl} is decimal(10,0) in Spark: {column} loses what is behind its point"
                hint = f'say how many digits: cast={{"{column}": "decimal(20,4)"}}'
                yield DefinitionFinding("warn", what, hint, lines.of_input(name), name, column)
