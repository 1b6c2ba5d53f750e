"""Debezium's records from a broker into the log, beside the loop that one writes in Python, and native capture.

All three bring the same rows into stores of the same kind, durably, in epochs of at most 200,000 changes. Ours is
``KafkaCapture`` with its usual settings. The loop takes records from kafka-python's ``poll``, parses them with orjson
(json where that is not installed), makes an Arrow table of an epoch's rows, column by column, and appends it. It looks
for nothing that comes twice or cannot be read, and keeps no offsets. Native capture reads the same changes from
Postgres. Rounds take turns; what the stores hold is compared.
"""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from kafka import KafkaConsumer, TopicPartition

from benchmarks.cdc.capture import QUIET
from benchmarks.eventstore.append import writer_of
from benchmarks.kafka import broker
from benchmarks.kafka.kafka_fetch import write
from benchmarks.kafka.same_rows import (
    TOPIC,
    Natively,
    as_debezium,
    captured,
    empty,
    make_changes,
    prepare,
    rows_of,
    store_in,
)
from benchmarks.options import Size, median, parse
from benchmarks.results import table
from benchmarks.spent import Spent
from tailrace.cdc.kafka.capture import KafkaCapture
from tailrace.cdc.kafka.decoding.types import declared_table
from tailrace.cdc.kafka.prepare import prepare_kafka
from tailrace.embedded import KafkaServer, PostgresServer
from tailrace.eventstore.kafka.codecs import Codec
from tailrace.eventstore.kafka.reader import Partition
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.keys import hash_columns
from tailrace.eventstore.model.schema import change_schema
from tailrace.eventstore.model.time import from_micros
from tailrace.eventstore.settings import KafkaSourceSettings
from tailrace.eventstore.store import Store

PARSER = "orjson" if importlib.util.find_spec("orjson") else "json"
CODEC = Codec.LZ4 if broker.by_kafka_python(Codec.LZ4) else Codec.NONE
EPOCH_CHANGES = 200_000
_WARM = 500
COLUMNS = {
    "id": "bigint", "customer_id": "integer", "status": "text", "amount": "numeric(12,2)", "note": "text",
    "created_at": "timestamptz", "meta": "text",
}  # fmt: skip
SCHEMA = declared_table(COLUMNS, ["id"], "public.orders")
_AFTER = change_schema(SCHEMA).field("after").type
_IN_JSON = pa.struct([(each.name, pa.string() if pa.types.is_decimal(each.type) or pa.types.is_timestamp(each.type)
                       else each.type) for each in _AFTER])  # fmt: skip


def looped(server: KafkaServer, partition: Partition, count: int, store: Store) -> Spent:
    loads = importlib.import_module(PARSER).loads
    consumer = KafkaConsumer(
        bootstrap_servers=server.address, isolation_level="read_committed", enable_auto_commit=False,
        max_poll_records=10_000, max_partition_fetch_bytes=8 << 20,
    )  # fmt: skip
    known = TopicPartition(*partition)
    consumer.assign([known])
    consumer.seek(known, 0)
    writer = writer_of(store, {TOPIC: SCHEMA})

    def work() -> None:
        done, waiting = 0, list[dict[str, Any]]()
        while done < count:
            for records in consumer.poll(1000).values():
                waiting += [loads(record.value) for record in records]
            if len(waiting) >= EPOCH_CHANGES or done + len(waiting) == count:
                done += len(waiting)
                rows = as_rows(waiting)
                moment = from_micros(waiting[-1]["source"]["ts_us"])
                writer.append(
                    EpochBatch("shop", done, done, done, moment, 1, [TopicRows(TOPIC, SCHEMA.version, rows)])
                )
                waiting = []

    try:
        return Spent.on(work)
    finally:
        consumer.close()


def as_rows(envelopes: Sequence[dict[str, Any]]) -> pa.Table:
    """Envelopes without old rows as rows of the log."""
    count, schema = len(envelopes), change_schema(SCHEMA)
    sources = [each["source"] for each in envelopes]
    parsed = pa.array([each["after"] for each in envelopes], _IN_JSON)
    after = pa.StructArray.from_arrays(
        [column.cast(each.type) for column, each in zip(parsed.flatten(), _AFTER, strict=True)],
        fields=list(_AFTER),
    )
    key = after.field("id")
    columns = {
        "_hash": hash_columns([key.cast(pa.string())]),
        "_op": [each["op"] for each in envelopes],
        "_lsn": [int(each["lsn"]) for each in sources],
        "_txn": [int(each["txId"]) for each in sources],
        "_ordinal": np.arange(count),
        "_commit_ts": pa.array([each["ts_us"] for each in sources]).cast(pa.timestamp("us", "UTC")),
        "key": pa.StructArray.from_arrays([key], fields=list(schema.field("key").type)),
        "after": after,
    }
    filled = [
        pa.nulls(count, field.type) if column is None else pa.array(column, field.type)
        for field in schema
        for column in [columns.get(field.name)]
    ]
    return pa.table(filled, schema=schema)


def ours(server: KafkaServer, partition: Partition, count: int, store: Store) -> Spent:
    settings = KafkaSourceSettings.model_validate(
        {
            "kind": "kafka",
            "brokers": [server.address],
            "topics": [partition.topic],
            "without_snapshot": "complete",
            "connector": {"decimal_handling_mode": "string"},
            "tables": {"public.orders": {"columns": COLUMNS, "key": ["id"]}},
        }
    )
    prepare_kafka(store, "shop", settings)
    stop = threading.Event()
    capture = KafkaCapture(store, "shop", settings, stop=stop)
    return captured(capture, stop, lambda: capture.status.changes >= count)


LOOP = f"kafka-python poll, {PARSER}, append"
OURS = "tailrace capture of Kafka"
NATIVE = "tailrace capture of Postgres, the same rows"


def measure(count: int, rounds: int, folder: Path) -> tuple[dict[str, list[Spent]], int]:
    """Rounds by way, and the bytes of a record's value."""
    with PostgresServer(settings=QUIET, trust=True) as postgres, broker.broker() as server:
        prepare(postgres)
        first = Natively(postgres, folder, "first")
        make_changes(postgres, _WARM)
        first.spent(_WARM)  # compiles
        warm = broker.fill(server, as_debezium(first.store), CODEC, "warm.public.orders")
        empty(postgres)
        sources = [Natively(postgres, folder, f"native{number}") for number in range(rounds)]
        make_changes(postgres, count)
        done: dict[str, list[Spent]] = {LOOP: [], OURS: [], NATIVE: []}
        done[NATIVE].append(sources[0].spent(count))
        expected = rows_of(sources[0].store, "_op", "key", "after")
        records = as_debezium(sources[0].store)
        partition = broker.fill(server, records, CODEC, "shop.public.orders")
        ways: dict[str, Callable[..., Spent]] = {LOOP: looped, OURS: ours}
        for number, source in enumerate(sources):
            for name, way in ways.items():
                if not number:
                    with store_in(folder, f"{way.__name__}_warm") as store:
                        way(server, warm, _WARM, store)
                with store_in(folder, f"{way.__name__}{number}") as store:
                    done[name].append(way(server, partition, count, store))
                    if not rows_of(store, "_op", "key", "after").equals(expected):
                        raise SystemExit(f"{name}: other rows than in Postgres")
            if number:
                done[NATIVE].append(source.spent(count))
    return done, records["value"].nbytes // count


_HEAD = ["way", "CPU µs a record", "least to most", "by the loop's", "records/s by the clock"]


def rows(count: int, done: dict[str, list[Spent]]) -> list[list[str]]:
    """A line a way. The ratio is that of rounds, its median."""
    lines = []
    for name, runs in done.items():
        cost = [run.processors / count * 1e6 for run in runs]
        ratio = median([run.processors / loop.processors for run, loop in zip(runs, done[LOOP], strict=True)])
        clock = median([run.clock for run in runs])
        lines.append(
            [
                name,
                f"{median(cost):.2f}",
                f"{min(cost):.2f} to {max(cost):.2f}",
                f"{ratio:.2f}",
                f"{count / clock:,.0f}",
            ]
        )
    return lines


SIZES = (Size("records", 500_000, 5_000, "records of a topic"),)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("kafka.kafka_capture", __doc__, SIZES, arguments)
    count = options["records"]
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name:
        done, size = measure(count, options.repeat, Path(name))
    body = (
        f"{count:,} changes of seven columns, five a transaction: records of Debezium without schemas, {size} bytes "
        f"and a key, {CODEC.name.lower()}, in one partition. Every store held the same rows in the end. CPU is that "
        "of the client's process alone, all of its threads; what is compiled was compiled before. "
        f"Medians of {options.repeat} rounds, by turns.\n\n" + table(_HEAD, rows(count, done))
    )
    parsers = [PARSER] if PARSER == "orjson" else []
    write("kafka_capture", "From Kafka into the log", body, options, [*parsers, "pyarrow"])


if __name__ == "__main__":
    main()
