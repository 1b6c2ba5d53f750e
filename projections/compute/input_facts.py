"""What the catalog knows of a definition's inputs, for the choice of its partial results. Starts no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tailrace.eventstore.model.position import Cut
from tailrace.projections.compute.frames import shown_columns
from tailrace.projections.compute.read_plan import ChangesInput, describe_input, plan_input
from tailrace.projections.definition.model import InputFacts, NoStage, Projection
from tailrace.projections.generations.result_input import ResultInput

if TYPE_CHECKING:
    from tailrace.eventstore.store import Store


def facts_of(store: Store, definition: Projection, cut: Cut | None = None) -> InputFacts:
    """Of the inputs at a position; without one, as if they had no rows. Raises NoStage for an input that is neither a
    table nor a result, and what resolving an input raises."""
    schemas, keys, rows = {}, {}, {}
    for name, source in definition.inputs.items():
        planned = describe_input(store, source) if cut is None else plan_input(store, source, cut)
        if isinstance(planned, ChangesInput):
            raise NoStage(f"input {name} is no table")
        shown = shown_columns(planned, source)
        schemas[name] = pa.schema([planned.schema.field(column) for column in shown])
        if isinstance(planned, ResultInput):
            keys[name], rows[name] = planned.key, planned.rows
        else:
            keys[name] = tuple(column.name for column in planned.target.key)
            rows[name] = sum(ref.rows for ref in planned.refs)
    return InputFacts(schemas, keys, rows)
