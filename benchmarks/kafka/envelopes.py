"""Debezium's envelopes in JSON and in Avro to rows of the log, without broker, registry, log or server; beside it what
a program in Python does that takes those in JSON apart record by record.

An order-like table of twelve columns, inserts and updates by turns; records in JSON are without a schema. One core, CPU
seconds.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from benchmarks.options import Size, median, parse
from benchmarks.results import table, write_section
from tailrace.cdc.kafka.decoded import Place
from tailrace.cdc.kafka.decoding.avro.schema import parse_schema
from tailrace.cdc.kafka.decoding.avro.values import Schemas
from tailrace.cdc.kafka.decoding.decode import decode
from tailrace.cdc.kafka.decoding.json_values import Found
from tailrace.cdc.kafka.decoding.shapes import SHAPES
from tailrace.cdc.kafka.decoding.types import declared_table
from tailrace.cdc.kafka.topics.declaration import Declaration
from tailrace.eventstore.model.topic import TopicId
from tests.support import avro

TOPIC = TopicId.table("shop", "public", "orders")
COLUMNS = {
    "id": "bigint", "customer": "bigint", "status": "text", "total": "numeric(12,2)", "placed": "timestamp",
    "paid": "timestamptz", "day": "date", "note": "text", "gift": "boolean", "weight": "double precision",
    "items": "integer", "country": "text",
}  # fmt: skip
FEW = ("id", "customer", "status", "total")
DECLARATION = Declaration(table=declared_table(COLUMNS, ["id"], "public.orders"))


def envelope(number: int, columns: Collection[str] = COLUMNS) -> bytes:
    every = {
        "id": number,
        "customer": number * 7 % 1000,
        "status": "shipped",
        "total": base64.b64encode((number * 7919).to_bytes(5, "big")).decode(),
        "placed": 1_709_168_523_123_456 + number * 1_000_003,
        "paid": f"2026-11-20T12:34:{number % 60:02}.500000Z",
        "day": 19_000 + number % 900,
        "note": "leave it at the neighbour's" if number % 3 else None,
        "gift": number % 2 == 0,
        "weight": number / 7,
        "items": number % 99,
        "country": "NZ",
    }
    after = {name: every[name] for name in columns}
    lsn = 29_248_640 + 64 * number
    source = {
        "version": "3.6.1.Final", "connector": "postgresql", "name": "shop", "ts_ms": 1_795_646_272_731,
        "snapshot": "false", "db": "shop", "sequence": f'["{lsn - 64}","{lsn}"]', "ts_us": 1_795_646_272_731_333,
        "ts_ns": 1_795_646_272_731_333_000, "schema": "public", "table": "orders", "txId": 813 + number // 5,
        "lsn": lsn, "xmin": None,
    }  # fmt: skip
    document = {
        "before": None, "after": after, "source": source, "transaction": None, "op": "u" if number % 2 else "c",
        "ts_ms": 1_795_646_272_999, "ts_us": 1_795_646_272_999_123, "ts_ns": 1_795_646_272_999_123_000,
    }  # fmt: skip
    return json.dumps(document, separators=(",", ":")).encode()


KINDS = {
    "id": "int64", "customer": "int64", "status": "string", "total": "bytes", "placed": "int64", "paid": "string",
    "day": "int32", "note": "string", "gift": "boolean", "weight": "double", "items": "int32", "country": "string",
    "ts_ms": "int64", "ts_us": "int64", "ts_ns": "int64", "txId": "int64", "lsn": "int64", "xmin": "int64",
}  # fmt: skip
NAMES = {
    "total": ("org.apache.kafka.connect.data.Decimal", {"scale": "2", "connect.decimal.precision": "12"}),
    "placed": ("io.debezium.time.MicroTimestamp", {}),
    "paid": ("io.debezium.time.ZonedTimestamp", {}),
    "day": ("io.debezium.time.Date", {}),
}


def connect_schema(document: dict[str, Any]) -> dict[str, Any]:
    """The schema of an envelope, as Connect has it."""

    def fields(inside: dict[str, Any]) -> list[dict[str, Any]]:
        return [field(name) for name in inside]

    def field(name: str) -> dict[str, Any]:
        told: dict[str, Any] = {"field": name, "type": KINDS.get(name, "string"), "optional": True}
        if name in NAMES:
            told["name"], told["parameters"] = NAMES[name]
        return told

    def struct(field: str, name: str, inside: dict[str, Any]) -> dict[str, Any]:
        return {"field": field, "type": "struct", "name": name, "optional": True, "fields": fields(inside)}

    images = [struct(name, "shop.public.orders.Value", document["after"]) for name in ("before", "after")]
    source = struct("source", "io.debezium.connector.postgresql.Source", document["source"])
    block = struct("transaction", "event.block", {"id": ""})
    rest = fields(dict.fromkeys(("op", "ts_ms", "ts_us", "ts_ns")))
    return {
        "type": "struct",
        "name": "shop.public.orders.Envelope",
        "fields": [*images, source, block, *rest],
    }


KEY = {"type": "struct", "name": "shop.public.orders.Key", "fields": [{"field": "id", "type": "int64"}]}


def in_avro(records: pa.Table) -> tuple[pa.Table, Schemas]:
    """The same records as Connect's Avro converter writes them, and their schemas."""
    documents = [json.loads(value) for value in records["value"].to_pylist()]
    connect = connect_schema(documents[0])
    columns = {
        "key": [avro.record(1, KEY, document["after"]) for document in documents],
        "value": [avro.record(2, connect, document) for document in documents],
    }
    for name, made in columns.items():
        place = records.column_names.index(name)
        records = records.set_column(place, name, pa.array(made, pa.large_binary()))
    return records, {1: parse_schema(avro.schema_text(KEY)), 2: parse_schema(avro.schema_text(connect))}


def one_by_one(records: pa.Table) -> int:
    """Without types: decimals stay base64, times numbers."""
    rows = [json.loads(value)["after"] for value in records["value"].to_pylist()]
    return len(pa.Table.from_pylist(rows))


def seconds(work: Callable[[], int], records: int, repeat: int) -> float:
    taken = []
    for _ in range(repeat):
        started = time.process_time()
        if work() != records:
            raise SystemExit("not every record is there")
        taken.append(time.process_time() - started)
    return median(taken)


SIZES = (Size("records", 200_000, 20_000, "records"),)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("kafka.envelopes", __doc__, SIZES, arguments)
    count = options["records"]
    values = [envelope(number) for number in range(count)]
    records = pa.table(
        {
            "offset": pa.array(range(count), pa.int64()),
            "timestamp": pa.nulls(count, pa.timestamp("ms", "UTC")),
            "key": pa.array([b'{"id":%d}' % number for number in range(count)], pa.large_binary()),
            "value": pa.array(values, pa.large_binary()),
        }
    )
    avro_records, schemas = in_avro(records)
    avro_size = len(avro_records["value"][count - 1].as_py())
    paths = SHAPES[DECLARATION.form].paths(COLUMNS)

    few = pa.table({"value": pa.array([envelope(number, FEW) for number in range(count)], pa.large_binary())})
    paths_of_few = SHAPES[DECLARATION.form].paths(FEW)

    def spans(of: pa.Table) -> int:
        named = paths_of_few if of is few else paths
        return int(Found(of["value"].chunk(0), named, schemas).good.sum())

    def rows(of: pa.Table) -> int:
        decoded = decode(of, TOPIC, DECLARATION, None, Place(1), schemas)
        return sum(batch.rows.num_rows for batch in decoded.rows)

    for each in (records, avro_records):
        spans(each), rows(each)  # compiled
    steps: dict[str, Callable[[], int]] = {
        f"JSON, {len(FEW)} columns: spans of {len(paths_of_few.slots)} values": partial(spans, few),
        f"JSON: spans of {len(paths.slots)} values": partial(spans, records),
        f"Avro: spans of {len(paths.slots)} values": partial(spans, avro_records),
        "JSON: typed rows, with keys and their hashes": partial(rows, records),
        "Avro: typed rows, with keys and their hashes": partial(rows, avro_records),
        "`json.loads` and `pa.Table.from_pylist`, untyped": lambda: one_by_one(records),
    }
    taken = {name: seconds(work, count, options.repeat) for name, work in steps.items()}
    lines = [
        [name, f"{spent / count * 1e6:.2f}", f"{count / spent:,.0f}", f"{spent:.2f}"]
        for name, spent in taken.items()
    ]
    body = (
        f"{count:,} envelopes of about {len(values[-1])} bytes in JSON and {avro_size} in Avro, twelve columns; one"
        f" core. Medians of {options.repeat} rounds.\n\n"
        + table(["step", "CPU µs per record", "records per CPU second", "CPU seconds"], lines)
    )
    write_section(
        "envelopes",
        "Debezium's envelopes to Arrow",
        body,
        command=options.command,
        packages=["pyarrow", "numpy"],
        path=options.to,
    )


if __name__ == "__main__":
    main()
