"""The golden recordings, and what native capture has of the same changes."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from tailrace.cdc.kafka.decoded import Decoded, Place
from tailrace.cdc.kafka.decoding.avro.schema import AvroSchema, parse_schema
from tailrace.cdc.kafka.decoding.decode import decode
from tailrace.cdc.kafka.topics.declaration import Declaration, IntervalMode
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.topic import TopicId
from tests.cdc.kafka.decoding.golden.scenarios import CONFIGURATIONS

GOLDEN = Path(__file__).parent / "golden"
RECORDS = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
        pa.field("key", pa.large_binary()),
        pa.field("value", pa.large_binary()),
        pa.field("headers", pa.list_(pa.struct([("name", pa.large_binary()), ("value", pa.large_binary())]))),
    ]
)
FULL = ("whole", "bag")
"""Tables with REPLICA IDENTITY FULL."""
_CELLS = ("_op", "key", "after", "before", "_before", "_unchanged", "_moved_from", "_raw")
Row = dict[str, Any]


def topic(table: str) -> TopicId:
    return TopicId.table("shop", "public", table)


def table_of(records: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Records given as dicts; what they leave out is null, offsets count from 0."""
    rows = [{"offset": at, "headers": [], **record} for at, record in enumerate(records)]
    return pa.Table.from_pylist(rows, schema=RECORDS)


@cache
def recorded(configuration: str) -> dict[str, pa.Table]:
    """The records of each table."""
    found: dict[str, list[Row]] = {}
    for name, key, value, *headers in _lines(configuration):
        if name == "schema":
            continue
        found.setdefault(name.rpartition(".")[2], []).append(
            {
                "key": _data(key),
                "value": _data(value),
                "headers": [
                    {"name": name.encode(), "value": base64.b64decode(data)}
                    for name, _, data in (header.partition("=") for header in headers)
                ],
            }
        )
    return {name: table_of(rows) for name, rows in found.items()}


def _lines(configuration: str) -> Iterator[list[str]]:
    text = gzip.decompress((GOLDEN / f"{configuration}.records.gz").read_bytes()).decode()
    return (line.split(" ") for line in text.splitlines())


@cache
def schema_texts(configuration: str) -> dict[int, str]:
    """By number, those of a recording in Avro."""
    schemas = (line for line in _lines(configuration) if line[0] == "schema")
    return {int(number): base64.b64decode(text[1:]).decode() for _, number, text in schemas}


@cache
def schemas_of(configuration: str) -> dict[int, AvroSchema | str] | None:
    found: dict[int, AvroSchema | str] = {
        number: parse_schema(text) for number, text in schema_texts(configuration).items()
    }
    return found or None


def _data(text: str) -> bytes | None:
    return None if text == "-" else base64.b64decode(text[1:])


@cache
def _native() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress((GOLDEN / "native.gz").read_bytes()))
    return found


def schema_of(table: str) -> TopicSchema:
    """As Postgres' catalog had it before the changes."""
    return TopicSchema.from_json(json.dumps(_native()["schemas"][f"public.{table}"]))


def declaration_of(configuration: str, table: str) -> Declaration:
    settings, schema = CONFIGURATIONS[configuration], schema_of(table)
    if settings.modes.interval is IntervalMode.NUMERIC:  # the connector leaves it out
        columns = tuple(column for column in schema.columns if column.name != "interval")
        schema = replace(schema, columns=columns)
    return Declaration(settings.form, schema, settings.modes, table in FULL)


def decoded(configuration: str, table: str, declaration: Declaration | None = None) -> Decoded:
    declaration = declaration or declaration_of(configuration, table)
    records, schemas = recorded(configuration)[table], schemas_of(configuration)
    return decode(records, topic(table), declaration, None, Place(lsn=5), schemas)


def rows_of(result: Decoded) -> list[Row]:
    """All rows, as JSON has them."""
    return _documents([row for batch in result.rows for row in batch.rows.to_pylist()])


def native_rows(table: str, schema: str = "public") -> list[Row]:
    """All rows in commit order; of a load in the order of their keys; a truncate, of which each partition has a copy,
    once."""
    found: dict[tuple[int, int, str], Row] = {}
    for row in _native()["rows"][f"shop.{schema}.{table}"]:
        loaded = row["_op"] == "r"
        found[0 if loaded else row["_lsn"], 0 if loaded else row["_ordinal"], str(row["key"])] = row
    return _documents([found[place] for place in sorted(found)])


def _documents(rows: Sequence[Row]) -> list[Row]:
    kept = [{name: row[name] for name in _CELLS} for row in rows]
    documents: list[Row] = json.loads(json.dumps(kept, default=str))
    return documents


def cells_of(row: Row, schema: TopicSchema) -> Row:
    """The values of a row; of those that their column cannot hold the text."""
    names = {column.id: column.name for column in schema.columns}
    return {
        **(row["after"] or {}),
        **{names[number]: text for number, text in row["_raw"] or [] if number > 0},
    }
