"""The rows that changed in a step, as they were before it.

They are looked up in the log. Where that takes long, because the table is large, a process that goes on keeps all of
its rows in files of its own (``KeptRows``), and finds them there as soon as they are written.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.state.input import StateInput
from tailrace.eventstore.state.key_lookup import ChangedKeys
from tailrace.projections.compute.frames import read_buckets
from tailrace.projections.compute.patched_files import changed_rows, shows_keys
from tailrace.projections.context import ProjectionContext
from tailrace.projections.generations.key_set import KeySet
from tailrace.projections.refresh.by_key.restricted_inputs import Inputs
from tailrace.projections.round.kept_rows import ChangedRows

_LONG_SECONDS = 0.3
"""What takes less is looked up in the log."""


def rows_before(
    ctx: ProjectionContext, name: str, before: Inputs, cut: Cut, changed: ChangedKeys
) -> pa.Table:
    """The rows of a table with the keys that ``changed`` from the inputs ``before`` to a cut, in the columns that the
    function sees. Raises TooLarge."""
    planned, names = before.plan_of(name), before.visible_columns(name)
    assert isinstance(planned, StateInput), "others do not add up"
    columns = [planned.schema.field(column) for column in names]
    if changed.cells is None or not shows_keys(planned, pa.schema(columns), _key(planned)):
        return before.rows_by_source_key(name, changed.hashes, changed.cells).select(names)
    cells: Mapping[str, pa.ChunkedArray] = changed.cells
    keys = KeySet.of([cells[column] for column in _key(planned)])
    what = planned.topic.text, tuple(names), tuple(sorted(planned.on_unreadable.items()))

    def since(earlier: Cut) -> ChangedRows | None:
        limit = ctx.settings.projections.incremental_bytes
        return changed_rows(ctx.store, planned, earlier, before.cut, names, limit)

    def look_up() -> pa.Table:
        found = ctx.kept_rows.find(what, before.cut, keys, since)
        if found is not None:
            return found
        began = ctx.clock()
        rows = before.rows_by_source_key(name, changed.hashes, cells).select(names)
        if ctx.clock() - began >= _LONG_SECONDS and ctx.kept_rows.may_keep(what):
            every = read_buckets(ctx.store.storage, planned, range(planned.buckets))
            ctx.kept_rows.keep(what, before.cut, _key(planned), (each.select(names) for each in every))
        return rows

    return ctx.round_rows.get(("before", what, before.cut.epoch, cut.epoch), look_up)


def _key(planned: StateInput) -> list[str]:
    return [column.name for column in planned.target.key]
