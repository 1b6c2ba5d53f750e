"""Debezium's envelope in JSON without schema: what consumers of its Postgres connector read.

What only the connector knows is put together of what the log knows: ``source.sequence`` begins with the LSN of the
transaction's own commit, not of the one before; ``source.lsn`` grows from row to row and ends at that commit. Rows of a
load are ``r`` with ``snapshot`` = incremental.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.eventstore.model.topic import Op, TopicId
from tailrace.eventstore.publishing.formats.assembly import (
    ERASED,
    Header,
    deletes_in,
    header_column,
    one_each,
    with_tombstones,
)
from tailrace.eventstore.publishing.formats.cells import Cells, Member
from tailrace.eventstore.publishing.formats.json_cells import TEXT, join, objects, or_null, text
from tailrace.eventstore.publishing.records import EpochRows
from tailrace.eventstore.segment.row_order import sort_by_commit

UNAVAILABLE = "__debezium_unavailable_value"
_BYTEAS, _UUIDS = 1001, 2951
_COUNTED = (1007, 1016, 1182)  # arrays of integer, bigint, date
OLD_KEY, NEW_KEY = b"__debezium.oldkey", b"__debezium.newkey"


def debezium_records(found: EpochRows, schema: TopicSchema) -> pa.Table:
    """``RECORDS`` of rows, in commit order. A delete is followed by a tombstone."""
    cells = Cells(sort_by_commit(found.rows), schema)
    keys = pa.nulls(cells.count, TEXT) if schema.bag else cells.objects("key")
    values = _envelopes(found, cells)
    records = one_each(cells, keys, values, header_column(cells.count, _headers(cells, keys)))
    return with_tombstones(records, deletes_in(cells))


def _envelopes(found: EpochRows, cells: Cells) -> pa.Array:
    after = objects([_member(each) for each in cells.members("after")], cells.count)
    told = pc.if_else(pa.array(cells.has("after")), after, text("null"))
    source = _source(found.topic, cells, _row_lsns(cells, found.ordinals))
    return join(
        text('{"before":'), or_null(_before(cells)), text(',"after":'), told, text(',"source":'),
        source, text(',"transaction":null,"op":"'), cells.column("_op").cast(TEXT),
        text('","ts_ms":'), _time(cells, 1_000), text("}"),
    )  # fmt: skip


def _member(member: Member) -> tuple[str, pa.Array, None]:
    texts = member.texts
    if member.unknown is not None:
        texts = pc.if_else(pa.array(member.unknown), text(_placeholder(member.column)), texts)
    return member.column.name, texts, None


def _placeholder(column: Column) -> str:
    """What the connector puts there (its UnchangedToastedPlaceholder); for types of which it sends null, the text."""
    data = UNAVAILABLE.encode()
    if column.policy:
        return json.dumps(UNAVAILABLE)
    if pa.types.is_binary(column.arrow):
        return json.dumps(base64.b64encode(data).decode())
    if column.type_name.rsplit(".", 1)[-1] == "hstore":
        return json.dumps(json.dumps({UNAVAILABLE: UNAVAILABLE}, separators=(",", ":")))
    if not column.type_name.endswith("[]"):
        return json.dumps(UNAVAILABLE)
    if column.meant_oid in _COUNTED:
        return json.dumps([*data], separators=(",", ":"))
    if column.meant_oid == _UUIDS:
        digest = hashlib.md5(data, usedforsecurity=False).digest()
        return json.dumps([str(uuid.UUID(bytes=digest, version=3))])
    return json.dumps([base64.b64encode(data).decode() if column.meant_oid == _BYTEAS else UNAVAILABLE])


def _before(cells: Cells) -> pa.Array:
    """What the source sent of the old row: all of it, or its key alone."""
    known = cells.column("_before")
    whole = pc.fill_null(pc.equal(known, "full"), False).to_numpy(zero_copy_only=False)
    keyed = pc.fill_null(pc.equal(known, "key"), False).to_numpy(zero_copy_only=False)
    members = [
        (each.column.name, each.texts, None if each.column.key else pa.array(whole))
        for each in cells.members("before")
    ]
    found = objects(members, cells.count)
    return pc.if_else(pa.array((whole | keyed) & cells.has("before")), found, pa.scalar(None, TEXT))


def _source(topic: TopicId, cells: Cells, row_lsns: pa.Array) -> pa.Array:
    name, schema, table = (json.dumps(part, ensure_ascii=False) for part in topic.parts)
    snapshot = pc.if_else(pc.equal(cells.column("_op"), Op.READ.value), text("incremental"), text("false"))
    commit, txn, lsn = (each.cast(TEXT) for each in (cells.column("_lsn"), cells.column("_txn"), row_lsns))
    return join(
        text(f'{{"version":"tailrace","connector":"postgresql","name":{name},"ts_ms":'), _time(cells, 1_000),
        text(',"snapshot":"'), snapshot, text(f'","db":{name},"sequence":"[\\"'), commit, text('\\",\\"'), lsn,
        text('\\"]","ts_us":'), _time(cells, 1), text(f',"schema":{schema},"table":{table},"txId":'), txn,
        text(',"lsn":'), lsn, text(',"xmin":null}'),
    )  # fmt: skip


def _row_lsns(cells: Cells, ordinals: int) -> pa.Array:
    """Places of rows in the WAL: below their commit, and above all that other transactions did to their keys before,
    as each row takes more than a byte there. ``ordinals``: the highest of the rows' transactions, where not all of
    their rows are here."""
    lsns, numbers = (cells.column(name).to_numpy() for name in ("_lsn", "_ordinal"))
    highest = numbers[np.r_[np.flatnonzero(np.diff(lsns)), len(lsns) - 1]] if len(lsns) else numbers
    counts = np.diff(np.r_[0, np.flatnonzero(np.diff(lsns)) + 1, len(lsns)]) if len(lsns) else numbers
    of_last = np.maximum(np.repeat(highest, counts), ordinals)
    loaded = pc.equal(cells.column("_op"), Op.READ.value).to_numpy(zero_copy_only=False)
    return pa.array(np.where(loaded, lsns, lsns - of_last + numbers))


def _time(cells: Cells, divisor: int) -> pa.Array:
    """When the transaction committed, counted since 1970."""
    micros = cells.column("_commit_ts").cast(pa.int64())
    filled = pc.fill_null(micros, 0).to_numpy(zero_copy_only=False)
    counted = pa.array(filled // divisor, mask=micros.is_null().to_numpy(zero_copy_only=False))
    return or_null(counted.cast(TEXT))


def _headers(cells: Cells, keys: pa.Array) -> dict[int, list[Header]]:
    """By row. Of a changed key, the delete of the old one is the row before the create of the new one."""
    found: dict[int, list[Header]] = {}
    moved = [] if cells.schema.bag else np.flatnonzero(cells.has("_moved_from")).tolist()
    if moved:
        old_keys = cells.objects("_moved_from")
        for row in moved:
            found[row] = [(OLD_KEY, old_keys[row].as_py().encode())]
            if row and cells.rows["_op"][row - 1].as_py() == Op.DELETE:
                found[row - 1] = [(NEW_KEY, keys[row].as_py().encode())]
    for row, names in cells.erased().items():
        found.setdefault(row, []).append((ERASED, json.dumps(names, ensure_ascii=False).encode()))
    return found
