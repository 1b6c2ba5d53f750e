"""Personal values in rows of domain events: as they were, with the source's keys, or erased."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.streams.database.key_places import KeyPlace, no_keys
from tailrace.eventstore.streams.personal.sealing import QUOTED_MARK, key_ids, unseal


def opened(rows: pa.Table, keys: KeyPlace | None) -> pa.Table:
    """Rows of a topic of events, with their personal values in ``after.data``. Without ``keys`` they stay encrypted.
    Raises what ``KeyPlace.open_keys`` does."""
    if keys is None or not rows.num_rows:
        return rows
    after = rows["after"].combine_chunks()
    after = after.chunk(0) if isinstance(after, pa.ChunkedArray) else after
    data = opened_texts(after.field("data"), keys)
    if data is None:
        return rows
    fields = list(after.type)
    cells = [data if field.name == "data" else after.field(at) for at, field in enumerate(fields)]
    made = pa.StructArray.from_arrays(cells, fields=fields, mask=after.is_null())
    return rows.set_column(rows.schema.get_field_index("after"), rows.schema.field("after"), made)


def opened_texts(data: pa.Array, keys: KeyPlace) -> pa.Array | None:
    """None where nothing is encrypted."""
    sealed = pc.fill_null(pc.match_substring(data, QUOTED_MARK), False)
    if not pc.any(sealed).as_py():
        return None
    texts = data.filter(sealed).to_pylist()
    found = keys.open_keys(key_ids(texts))
    return pc.replace_with_mask(data, sealed, pa.array([unseal(text, found) for text in texts], data.type))


def require_keys(data: str | None, source: str) -> None:
    """Raises OperatorError for an event that is still encrypted."""
    if data is not None and QUOTED_MARK in data and key_ids([data]):
        raise no_keys(source)
