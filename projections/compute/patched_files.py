"""Files of a table's rows at a position, made of those at an earlier one: rows of changed keys are replaced.

Most rows are those of a moment ago, and reading them from a file takes a fraction of folding them from the log. The log
says which keys changed, and what their rows are now. Where it does not say all of that, nothing is made here:

  - the table has no key, or one whose columns the files lack or show in another way than the log;
  - its columns changed, its rows were read again, truncated or erased, or what was between is gone;
  - more than a twentieth of what makes the state is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailrace.eventstore.maintenance.redaction.receipts import erasures
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.state.input import StateInput
from tailrace.eventstore.state.key_lookup import TooLarge, changed_keys, state_of_keys
from tailrace.eventstore.store import Store
from tailrace.projections.compute.char_padding import has_log_hashes, unpad
from tailrace.projections.generations.key_set import KeySet, Mask
from tailrace.projections.round.files import Earlier
from tailrace.projections.round.kept_rows import ChangedRows

ROW_GROUP: Final = 1 << 17
"""Rows that are read at once: an engine holds all columns of them, for each of its tasks."""
_SAMPLE_ROWS: Final = 1 << 14
_REPEATING_MAX: Final = 0.2
"""Of so many values one is another: a dictionary of more takes longer to make than it saves."""
_SHARE: Final = 20
_MOST_BYTES: Final = 256 << 20
"""Of the history of changed rows."""


def reason_against_changes(store: Store, topic: TopicId, before: Cut, now: Cut) -> str | None:
    """Why the rows of a table at one position are not those at an earlier one but for the keys that changed between."""
    info = store.topic(topic)
    if info.complete_since is not None and info.complete_since > before.epoch:
        return f"{topic} was read again"
    old, new = store.schemas_at(topic, before), store.schemas_at(topic, now)
    if [schema.version for schema in old] != [schema.version for schema in new]:
        return f"the columns of {topic} changed"
    if not store.log_start(topic).has(topic, before):
        return f"the history of {topic} at epoch {before.epoch} is gone"
    return None


def parquet_options(rows: pa.Table) -> dict[str, Any]:
    """How files of this machine that begin with ``rows`` are written, these and those that are folded: they are read
    more often, and soon gone. Statistics would take a quarter more time. Spark and Sail read decimals sooner as
    integers, and what repeats from dictionaries; Spark also goes by the size of files where it chooses how to join."""
    return {
        "compression": "none",
        "use_dictionary": _repeating_columns(rows.slice(0, _SAMPLE_ROWS)),
        "store_decimal_as_integer": True,
        "write_statistics": False,
    }


def _repeating_columns(sample: pa.Table) -> list[str]:
    return [
        field.name
        for field in sample.schema
        if not (pa.types.is_nested(field.type) or pa.types.is_null(field.type))
        and pc.count_distinct(sample[field.name]).as_py() <= _REPEATING_MAX * sample.num_rows
    ]


def write_patched(
    store: Store, planned: StateInput, cut: Cut, schema: pa.Schema, earlier: Earlier, into: Path
) -> bool:
    """Write the files of a table's state at a position with the columns of ``schema``, of those that ``earlier`` has.
    False, and nothing is written, where that is not possible."""
    names = [column.name for column in planned.target.key]
    changed = (
        changed_rows(store, planned, earlier.cut, cut, schema.names, _MOST_BYTES)
        if shows_keys(planned, schema, names)
        else None
    )
    if changed is None:
        return False
    known, fresh = changed.keys, changed.rows.cast(schema)
    files = sorted(earlier.folder.iterdir())  # there is one at least

    def write(at: int) -> None:
        kept = pq.read_table(files[at], memory_map=True).cast(schema)
        kept = kept.filter(pa.array(~_has_key(known, kept, names)))
        rows = pa.concat_tables([kept, fresh]) if at == 0 else kept
        pq.write_table(rows, into / files[at].name, row_group_size=ROW_GROUP, **parquet_options(rows))

    with ThreadPoolExecutor(len(files), "tailrace-inputs") as pool:
        list(pool.map(write, range(len(files))))
    return True


def shows_keys(planned: StateInput, schema: pa.Schema, names: Sequence[str]) -> bool:
    """Whether files with these columns have those of the table's key, as the log has them."""
    target = planned.target
    return (
        not target.bag
        and bool(names)
        and set(names) <= {*schema.names}
        and has_log_hashes(target.key)
        and all(planned.on_unreadable.get(name, "error") != "text" for name in names)
    )


def changed_rows(
    store: Store, planned: StateInput, before: Cut, now: Cut, names: Sequence[str], most_bytes: int
) -> ChangedRows | None:
    """The keys that changed between two positions, and these columns of their rows at the later one, which is that of
    ``planned``; None where the log does not say all that did, or their history takes more than ``most_bytes``."""
    keys = _keys_between(store, planned, before, now)
    if keys is None:
        return None
    try:
        rows = state_of_keys(store.storage, planned, keys.hashes, most_bytes, keys.matches)
    except TooLarge:
        return None
    return ChangedRows(keys, unpad(rows, planned.selected_columns).select(list(names)))


def _keys_between(store: Store, planned: StateInput, before: Cut, now: Cut) -> KeySet | None:
    """The keys that changed between two positions; None where the log does not say all that did."""
    topic = planned.topic
    if before.below_lsn or now.below_lsn or before.epoch >= now.epoch:
        return None
    if reason_against_changes(store, topic, before, now) is not None:
        return None
    if any(epoch > before.epoch for epoch in erasures(store, [topic]).values()):
        return None
    refs = store.segments(topic, now, before.epoch)
    if sum(ref.rows for ref in refs) * _SHARE > planned.rows():
        return None
    changed = changed_keys(store.storage, refs, planned.versions, planned.target)
    if changed.truncated or changed.cells is None:
        return None
    return KeySet.of([changed.cells[column.name] for column in planned.target.key])


def _has_key(known: KeySet, rows: pa.Table, names: Sequence[str]) -> Mask:
    """Which rows have one of the keys. The first column alone leaves few of them."""
    first = rows[names[0]]
    values = known.table.column(0).unique().cast(first.type)
    places = np.flatnonzero(pc.is_in(first, value_set=values).to_numpy(zero_copy_only=False))
    found = np.zeros(rows.num_rows, np.bool_)
    found[places[known.matches([rows[name].take(pa.array(places)) for name in names])]] = True
    return found
