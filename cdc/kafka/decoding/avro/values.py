"""Records in Avro in an Arrow column: their wanted values, noted as those of JSON texts are.

Confluent's framing: a zero, the number of the schema in four bytes, and the value. No JSON text begins with a zero, so
both may be in one column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.cdc.kafka.decoding.avro.programs import Path, program_of
from tailrace.cdc.kafka.decoding.avro.schema import DEPTH_MAX, AvroSchema
from tailrace.cdc.kernels import avro_text, json_text
from tailrace.cdc.kernels.avro_scalars import FLOATS, LITERALS, NEXT, TO, Floats
from tailrace.cdc.kernels.avro_values import HEADER, MORE_FLOATS, Levels, read_records, write_floats
from tailrace.cdc.kernels.json_spans import Spans, Verdicts
from tailrace.cdc.kernels.rows import Bytes, Ints, Ints32
from tailrace.eventstore.errors import ProtocolError

Schemas = Mapping[int, AvroSchema | str]
"""By number: the schema, or why it cannot be used."""

PROBLEMS = {
    json_text.CUT: "the Avro record ends too early",
    json_text.NUL: "U+0000 in a string, which no text of Postgres has",
    json_text.TRAILING: "more behind the Avro record",
    avro_text.LONG_NUMBER: "a number that is too long for its type in Avro",
    avro_text.BRANCH: "a branch of a union, or a symbol, that its schema does not have",
    avro_text.TRUTH: "a truth value that is neither 0 nor 1",
    avro_text.NOT_UTF8: "a string that is not UTF-8",
    avro_text.LARGE: "its values are too many times longer as texts",
}
_NO_REGISTRY = "it begins as Avro with the number of a schema does, and the source names no registry"
_BYTES_MAX = (1 << 31) - 1  # positions are 32 bits
_ROOM_MIN = 1 << 16


def framed(data: Bytes, begins: Ints32, ends: Ints32) -> Ints:
    """The records that begin with a zero."""
    some = np.flatnonzero(ends > begins)
    found: Ints = some[data[begins[some]] == 0].astype(np.int64)
    return found


def numbers_of(data: Bytes, begins: Ints32, ends: Ints32, rows: Ints) -> Ints:
    """The numbers of the schemas of records that are framed; -1: it is cut off."""
    whole = ends[rows] - begins[rows] >= HEADER
    numbers: Ints = np.full(len(rows), -1, np.int64)
    at = begins[rows[whole]].astype(np.int64)
    for byte in range(4):
        numbers[whole] = (numbers[whole] if byte else 0) << 8 | data[at + 1 + byte]
    return numbers


def schema_numbers(records: pa.Table) -> frozenset[int]:
    """Of the schemas that keys, values and values of headers name, in ``tailrace.eventstore.kafka.records``' form."""
    columns = [records["key"], records["value"]]
    if "headers" in records.column_names:
        columns.append(pc.struct_field(pc.list_flatten(records["headers"]), "value"))
    chunks = [chunk for column in columns for chunk in column.chunks]
    return frozenset(number for chunk in chunks for number in _numbers_in(chunk) if number >= 0)


def _numbers_in(chunk: pa.LargeBinaryArray) -> list[int]:
    begins = pc.fill_null(pc.binary_slice(chunk, 0, HEADER), b"")
    first = pc.starts_with(begins, b"\0")
    texts: list[bytes] = pc.unique(begins.filter(first)).to_pylist()
    return [int.from_bytes(text[1:], "big") for text in texts if len(text) == HEADER]


def schema_of(record: bytes | None, schemas: Schemas | None) -> AvroSchema | None:
    """That of one record; None when it is not in Avro, or its schema cannot be used."""
    if not record or record[0] or len(record) < HEADER or schemas is None:
        return None
    schema = schemas[int.from_bytes(record[1:HEADER], "big")]
    return schema if isinstance(schema, AvroSchema) else None


@dataclass(slots=True)
class AvroReader:
    """Reads records among those of ``data`` into ``spans`` and ``verdicts``. ``schema_slot``: where the schema is
    noted, as Connect's JSON has it."""

    data: Bytes
    begins: Ints32
    ends: Ints32
    spans: Spans
    verdicts: Verdicts
    slots: Mapping[Path, int]
    schema_slot: int | None

    def read(self, rows: Ints, schemas: Schemas | None) -> tuple[Bytes, dict[int, str]]:
        """The texts that lie behind ``data``, and by refused record why. Raises ProtocolError on 2 GiB of them."""
        numbers = numbers_of(self.data, self.begins, self.ends, rows)
        self.verdicts.status[rows], self.verdicts.place[rows] = json_text.CUT, self.begins[rows]
        room, refused, told = self._room(rows), dict[int, str](), dict[int, bytes]()
        for number in np.unique(numbers[numbers >= 0]).tolist():
            mine = rows[numbers == number]
            schema = _NO_REGISTRY if schemas is None else schemas[number]
            if isinstance(schema, str):
                self.verdicts.status[mine] = avro_text.REFUSED
                refused |= dict.fromkeys(mine.tolist(), schema)
                continue
            self._read(mine, schema, room)
            if self.schema_slot is not None:
                self.verdicts.same_as[mine] = mine[0]
                told[self.schema_slot * len(self.begins) + int(mine[0])] = schema.connect
        parts = [room.finish(self.spans)]
        broken = rows[self.verdicts.status[rows] != json_text.OK]
        for slot in self.slots.values():  # what was noted of them may lie where nothing was written
            self.spans.kind[slot * len(self.begins) + broken] = json_text.MISSING
        at = len(self.data) + len(parts[0])
        _require_size(at + sum(map(len, told.values())))
        for cell, text in told.items():
            self.spans.at[cell], self.spans.size[cell], self.spans.kind[cell] = (
                at,
                len(text),
                json_text.OBJECT,
            )
            parts.append(np.frombuffer(text, np.uint8))
            at += len(text)
        return np.concatenate(parts), refused

    def _room(self, rows: Ints) -> _Room:
        size = int((self.ends[rows].astype(np.int64) - self.begins[rows]).sum()) + _ROOM_MIN
        _require_size(len(self.data) + size)
        out = np.empty(size, np.uint8)
        out[: len(LITERALS)] = np.frombuffer(LITERALS, np.uint8)
        numbers, places = np.empty(len(rows), np.int64), np.empty(len(rows), np.int32)
        floats = Floats(numbers, np.empty(len(rows), np.uint8), places, places.copy())
        return _Room(out, floats, np.array([0, len(LITERALS), 0]))

    def _read(self, rows: Ints, schema: AvroSchema, room: _Room) -> None:
        program = program_of(schema.root, self.slots)
        levels = Levels(*(np.empty(DEPTH_MAX, np.int32) for _ in range(3)))
        room.state[NEXT] = 0
        while lacks := read_records(
            self.data,
            rows,
            self.begins,
            self.ends,
            len(self.data),
            program,
            levels,
            self.spans,
            self.verdicts,
            room.out,
            room.floats,
            room.state,
        ):
            room.grow(len(self.data), lacks)


@dataclass(slots=True)
class _Room:
    """Where the kernel writes."""

    out: Bytes
    floats: Floats
    state: Ints

    def grow(self, base: int, lacks: int) -> None:
        if lacks == MORE_FLOATS:
            bits, single, place, cell = self.floats
            size = 2 * len(bits)
            self.floats = Floats(
                np.resize(bits, size), np.resize(single, size), np.resize(place, size), np.resize(cell, size)
            )
            return
        _require_size(base + 2 * len(self.out))
        self.out = np.resize(self.out, 2 * len(self.out))

    def finish(self, spans: Spans) -> Bytes:
        """All texts, with those of floating point numbers in their places."""
        count = int(self.state[FLOATS])
        if count:
            _, offsets, data = _float_texts(self.floats.bits[:count], self.floats.single[:count]).buffers()
            write_floats(
                np.frombuffer(data, np.uint8), np.frombuffer(offsets, np.int32), self.floats, self.out, spans
            )
        return self.out[: self.state[TO]]


def _float_texts(bits: Ints, single: Bytes) -> pa.StringArray:
    """As JSON has them, in as many digits as tell them from others; those that are no number in words."""
    doubles, floats = pa.array(bits.view(np.float64)), pa.array(bits.astype(np.uint32).view(np.float32))
    is_single = pa.array(single.astype(np.bool_))
    texts = pc.if_else(is_single, floats.cast(pa.string()), doubles.cast(pa.string()))
    for word, told in (("nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
        texts = pc.if_else(pc.equal(texts, word), told, texts)
    return texts


def _require_size(size: int) -> None:
    if size > _BYTES_MAX:
        raise ProtocolError(
            f"{size} bytes of values at once", hint="take fewer records at a time: at most 2 GiB"
        )
