"""Any records of a table's topic: each is rows, says nothing new, or is parked with its reason, whatever stands beside
it. Only what no single record decides (what the columns mean, whether positions went back) stops."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import pyarrow as pa

from tailrace.cdc.kafka.decoded import Decoded, Place
from tailrace.cdc.kafka.decoder import TableDecoder
from tailrace.cdc.kafka.decoding import decode as decoding
from tailrace.cdc.kafka.decoding import fields, images, json_values, plans, records, shapes, types
from tailrace.cdc.kafka.decoding.values import cells, columns, numbers, texts
from tailrace.cdc.kafka.epochs import epoch, snapshots
from tailrace.cdc.kafka.epochs.epoch import EpochBuilder, Known
from tailrace.cdc.kafka.repeats import duplicates, positions
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.kafka.reader import Partition
from tailrace.eventstore.kafka.records import SCHEMA_WITH_HEADERS, RecordBatchRows
from tailrace.eventstore.model.kafka import PartitionProgress
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import KafkaSourceSettings
from tests.fuzz.fuzzing import Target, pack, unpack

NAME, ITEMS = "p.public.items", TopicId.table("shop", "public", "items")
COLUMNS = {
    "id": "integer", "note": "text", "amount": "numeric(12,2)", "any": "numeric", "at": "timestamp with time zone",
    "day": "date", "data": "bytea", "tags": "text[]", "place": "point", "more": "hstore", "uid": "uuid",
    "share": "real",
}  # fmt: skip
_WHERE = {"kind": "kafka", "brokers": ["h:1"], "topics": ["p.*"]}
_TABLE = {"columns": COLUMNS, "key": ["id"]}
DECLARED = KafkaSourceSettings.model_validate({**_WHERE, "tables": {"public.items": _TABLE}})
TOLD = KafkaSourceSettings.model_validate(_WHERE)
_NO_KEY, _NO_VALUE, _MOVED = 1, 2, 4
_RECORDS_MAX = 4  # each is decoded alone, too
_MODULES: Sequence[ModuleType] = (
    duplicates, epoch, positions, snapshots, decoding, fields, images, json_values, plans, records, shapes, types,
    cells, columns, numbers, texts,
)  # fmt: skip

Record = dict[str, Any]


def record_of(frame: bytes) -> Record:
    """A frame is: flags, the size of the key, key and value."""
    flags, size = (*frame[:2], 0, 0)[:2]
    key, value = frame[2 : 2 + size], frame[2 + size :]
    headers = [{"name": b"__debezium.oldkey", "value": key}] if flags & _MOVED else []
    return {
        "timestamp": int.from_bytes(value[-8:], "big", signed=True) if flags & _NO_KEY else 1,
        "key": None if flags & _NO_KEY else key,
        "value": None if flags & _NO_VALUE else value,
        "headers": headers,
    }


def table_of(some: Sequence[Record]) -> pa.Table:
    rows = [{"offset": at, **each} for at, each in enumerate(some)]
    return pa.Table.from_pylist(rows, schema=SCHEMA_WITH_HEADERS)


def check(data: bytes) -> list[str]:
    some = [record_of(frame) for frame in unpack(data)][:_RECORDS_MAX]
    if not some:
        return []
    together, words = outcome(DECLARED, some)
    alone = [outcome(DECLARED, [each])[0] for each in some]
    if together is None or None in alone:
        assert together is None and None in alone, "it is no matter of one record"
    else:
        assert rows_of(together) == [row for each in alone if each for row in rows_of(each)]
        reasons = [each.parked[0].reason if each and each.parked else None for each in alone]
        assert {each.offset: each.reason for each in together.parked} == {
            at: reason for at, reason in enumerate(reasons) if reason is not None
        }
    return [*words, *appended(TOLD, some)]


def outcome(settings: KafkaSourceSettings, some: Sequence[Record]) -> tuple[Decoded | None, set[str]]:
    """None for what stops."""
    try:
        found = TableDecoder.of(settings)(ITEMS, None, table_of(some), Place(5))
    except OperatorError as error:
        return None, {said(error.message)}
    counted = sum(each.rows.num_rows for each in found.rows)
    assert counted + len(found.parked) + found.ignored == len(some)
    assert found.origins.num_rows == counted
    return found, {said(each.reason) for each in found.parked}


def rows_of(found: Decoded) -> list[Record]:
    rows: list[Record] = []
    for each in found.rows:
        each.rows.validate(full=True)
        rows += each.rows.drop_columns(["_ordinal"]).to_pylist()
    return rows


def appended(settings: KafkaSourceSettings, some: Sequence[Record]) -> set[str]:
    """As epochs of a capture that parks, half of the records in each."""
    progress = {Partition(NAME, 0): PartitionProgress(NAME, 0, "id", 0)}
    known = Known("shop", 0, progress, {NAME: ITEMS}, {}, set())
    builder = EpochBuilder(known, TableDecoder.of(settings), lambda *_: set(), lambda _: {}, True, True)
    table, half = table_of(some), len(some) // 2
    for part, end in ((table.slice(0, half), half), (table.slice(half), len(some))):
        try:
            batch = builder.build([RecordBatchRows(NAME, 0, part, end)])
        except OperatorError as error:
            return {said(error.message)}
        assert batch.progress[0].next_offset == end
        known.after(batch)
    return set()


def said(text: str) -> str:
    """Without what differs from input to input."""
    return re.sub(r"[0-9]+|'.*'", "…", text)


def seeds() -> Mapping[str, bytes]:
    row = {
        "id": 1, "note": "n\u00e4\\", "amount": "ATk=", "any": {"scale": 1, "value": "AQ=="}, "day": 19_000,
        "at": "2026-01-02T03:04:05.678901Z", "data": "3q0=", "tags": ["a", None, "b"], "place": {"x": 1.5, "y": -2},
        "more": '{"a": "b", "c": null}', "uid": "00000000-0000-0000-0000-000000000001", "share": 0.25,
    }  # fmt: skip
    told = _envelope("c", 1, {"id": 1, "note": "n"})
    found = {
        "every type": [_frame("c", 1, row), _frame("u", 2, {**row, "note": "__debezium_unavailable_value"})],
        "loaded": [_frame("r", 1, row, "first"), _frame("r", 2, dict.fromkeys(row) | {"id": 2}, "last")],
        "deleted": [_frame("c", 1, row), _frame("d", 2, None), bytes([_NO_VALUE, 9]) + b'{"id": 1}'],
        "moved": [_frame("d", 1, None), _frame("c", 1, {**row, "id": 2}, flags=_MOVED)],
        "truncated": [_frame("t", 1, None, flags=_NO_KEY)],
        "another form": [_frame("c", 1, row), _key_one(json.dumps(row).encode()), _key_one(b"\0\0\0\0\7avro")],
        "with a schema": [_key_one(json.dumps({"schema": _SCHEMA, "payload": told}).encode())],
    }  # fmt: skip
    return {name: pack(frames) for name, frames in found.items()}


def _key_one(value: bytes) -> bytes:
    key = b'{"id": 1}'
    return bytes([0, len(key)]) + key + value


_SCHEMA = {
    "type": "struct",
    "fields": [
        {
            "field": "after",
            "type": "struct",
            "fields": [
                {"type": "int32", "field": "id"},
                {"type": "string", "optional": True, "field": "note"},
            ],
        }
    ],
}


def _envelope(op: str, lsn: int, after: Record | None, snapshot: str = "false") -> Record:
    source = {
        "txId": 7,
        "lsn": lsn,
        "sequence": f'["0","{lsn}"]',
        "snapshot": snapshot,
        "ts_us": 1,
        "ts_ms": 1,
    }
    source |= {"schema": "public", "table": "items"}
    return {"op": op, "before": None, "after": after, "source": source}


def _frame(op: str, lsn: int, after: Record | None, snapshot: str = "false", flags: int = 0) -> bytes:
    key = json.dumps({"id": after["id"] if after else 1}).encode()
    return bytes([flags, len(key)]) + key + json.dumps(_envelope(op, lsn, after, snapshot)).encode()


TARGET = Target(
    "envelopes",
    check,
    seeds,
    _MODULES,
    b'\x00\x01\x02\x04\x09{}[]":,0179eE+-.tfnrcudm\\ \xc3\xff',
    bytes_max=4096,
)
