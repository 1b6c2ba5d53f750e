"""A query in SQL with the columns that the catalog knows of its inputs: what follows from it, what its names mean."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING

from tailrace.eventstore.errors import IncompleteTopic, UsageError
from tailrace.eventstore.metadata.projection_steps import DerivedRun
from tailrace.eventstore.model.schema import unify
from tailrace.projections.compute.frames import shown_columns
from tailrace.projections.compute.read_plan import describe_input
from tailrace.projections.definition.findings import DefinitionFinding
from tailrace.projections.definition.model import KnownColumns, Projection, Result, State
from tailrace.projections.generations.generation import files_of
from tailrace.projections.generations.result_input import live_of
from tailrace.projections.generations.step_files import schema_from_bytes

if TYPE_CHECKING:
    from tailrace.eventstore.store import Store


def followed(
    store: Store, projection: Projection, expected: KnownColumns = MappingProxyType({})
) -> Projection:
    """The projection with what its inputs affect by the columns that they have now, or are ``expected`` to have. Starts
    no Spark."""
    if projection.names is None:
        return projection
    return projection.names.followed(projection, {**expected, **_columns_now(store, projection)})


def changed_names(store: Store, projection: Projection, last: DerivedRun) -> list[DefinitionFinding]:
    """Names in a query that meant something else when the ``last`` step was taken, before columns of its inputs
    changed. Starts no Spark."""
    if projection.names is None:
        return []
    now = _columns_now(store, projection)
    before = dict(_columns_then(store, projection, last))
    changed = {name for name, columns in before.items() if name in now and {*columns} != {*now[name]}}
    return list(projection.names.changed_names(projection, {**now, **before}, now)) if changed else []


def _columns_now(store: Store, projection: Projection) -> KnownColumns:
    """As the function sees them."""
    found = {}
    for name, source in projection.inputs.items():
        try:
            found[name] = list(shown_columns(describe_input(store, source), source))
        except (IncompleteTopic, UsageError):  # which is said where it is looked for
            continue
    return found


def _columns_then(store: Store, projection: Projection, last: DerivedRun) -> Iterator[tuple[str, list[str]]]:
    """Those of tables and of results of other projections at a step."""
    cut, results = store.cut(last.to_epoch), files_of(last).results
    for name, source in projection.inputs.items():
        if isinstance(source, Result) and source.projection in results:
            built = live_of(store, source.projection, results[source.projection])
            if built is not None:
                yield name, schema_from_bytes(built.schema).names
        elif isinstance(source, State) and source.columns is None:
            schemas = store.schemas_at(source.topic_id, cut)
            if schemas:
                yield name, [column.name for column in unify(schemas).columns]
