"""Any records as rows and ends of transactions: whatever they say, each goes into an epoch, once and in its order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tailrace.cdc.kafka.epochs import transactions
from tailrace.cdc.kafka.epochs.transactions import TransactionCut, tables_of
from tailrace.eventstore.kafka.reader import Partition
from tailrace.eventstore.kafka.records import SCHEMA_WITH_HEADERS, RecordBatchRows
from tests.fuzz.fuzzing import Target, pack, unpack

META, ITEMS, ORDERS = "p.transaction", "p.public.items", "p.public.orders"
_TOPICS = (Partition(META, 0), Partition(ITEMS, 0), Partition(ITEMS, 1), Partition(ORDERS, 0))


def check(data: bytes) -> list[str]:
    """A frame is a record: which partition, and its value."""
    cut = TransactionCut(META, tables_of([ITEMS, ORDERS]))
    sent: dict[Partition, list[bytes | None]] = {each: [] for each in _TOPICS}
    went: dict[Partition, list[bytes | None]] = {each: [] for each in _TOPICS}
    broken: list[int] = []

    def take(*, everything: bool = False) -> None:
        taken, cut_ones = cut.take(everything=everything)
        broken.extend(cut_ones)
        for each in taken:
            went[Partition(each.topic, each.partition)] += each.table["value"].to_pylist()

    for frame in unpack(data):
        if not frame:
            continue
        partition, value = _TOPICS[frame[0] % len(_TOPICS)], frame[1:] or None
        offset = len(sent[partition])
        sent[partition].append(value)
        row: dict[str, Any] = {"offset": offset, "value": value, "headers": []}
        table = pa.Table.from_pylist([row], schema=SCHEMA_WITH_HEADERS)
        cut.add(RecordBatchRows(*partition, table, offset + 1))
        take()
    take(everything=True)
    for partition in _TOPICS[1:]:
        assert went[partition] == sent[partition]
    assert cut.bytes == 0
    return ["broken"] if broken else []


def seeds() -> Mapping[str, bytes]:
    def row(partition: int, xid: int, order: int) -> bytes:
        document = {"op": "c", "transaction": {"id": f"{xid}:9", "total_order": order}}
        return bytes([partition]) + json.dumps(document).encode()

    def end(xid: int, **counts: int) -> bytes:
        collections = [{"data_collection": f"public.{name}", "event_count": n} for name, n in counts.items()]
        document = {"status": "END", "id": f"{xid}:9", "data_collections": collections}
        return bytes([0]) + json.dumps(document).encode()

    wrapped = bytes([0]) + json.dumps({"schema": None, "payload": json.loads(end(3, items=1)[1:])}).encode()
    found = {
        "whole": [row(1, 1, 1), row(3, 1, 2), end(1, items=1, orders=1), row(2, 2, 1), end(2, items=1)],
        "behind": [end(1, items=2), row(1, 1, 1), row(1, 1, 1), row(2, 1, 2)],
        "wrapped": [row(1, 3, 1), wrapped, b"\x01"],
        "none": [
            b"\x01" + b'{"op": "r", "transaction": null}',
            b"\x00" + b'{"status": "BEGIN", "id": "4:1"}',
        ],
    }
    return {name: pack(frames) for name, frames in found.items()}


TARGET = Target("transactions", check, seeds, (transactions,), b'\x00\x01\x02\x03{}[]":,0917eE+-.ntfNI\\\xff')
