"""Records in JSON, or in Avro, in an Arrow column, and the values in them that are wanted: as Arrow columns, without
Python for each. A value in Avro is what Connect's JSON has for it, and its schema what Connect's JSON has beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.cdc.kafka.decoding.avro.values import PROBLEMS as AVRO_PROBLEMS
from tailrace.cdc.kafka.decoding.avro.values import AvroReader, Schemas, framed
from tailrace.cdc.kernels import json_text
from tailrace.cdc.kernels.json_spans import DEPTH, Hints, Spans, Stack, Verdicts, Wanted, find_spans
from tailrace.cdc.kernels.rows import Bytes, Ints32
from tailrace.eventstore.errors import ProtocolError

Path = tuple[str, ...]
Names = Mapping[str, "Names | None"]
"""What is wanted of an object: members by name, each with what is wanted inside of it."""

_HINTS_SPARE = 32  # places in an object beyond the wanted ones at which a name is remembered
_BYTES_MAX = (1 << 31) - 1  # positions are 32 bits

PROBLEMS = {
    json_text.ABSENT: "there is no value",
    json_text.CUT: "the JSON text ends too early",
    json_text.SYNTAX: "not JSON",
    json_text.CONTROL: "a control character inside a JSON string",
    json_text.ESCAPE: "an unknown escape in a JSON string",
    json_text.SURROGATE: "half of a surrogate pair in a JSON string",
    json_text.NUL: "U+0000 in a JSON string, which no text of Postgres has",
    json_text.DEEP: f"objects and arrays nest deeper than {DEPTH}",
    json_text.TWICE: "a member of the JSON object is there twice",
    json_text.TRAILING: "more behind the JSON text",
    json_text.NO_OBJECT: "not a JSON object",
}
_NOT_UTF8 = "not UTF-8"
_MISSING = np.uint8(json_text.MISSING)


class Paths:
    """The wanted paths of one kind of record. Every name on the way to a value is one, too: ``before`` as well as
    ``before.id``.

    ``closed`` are the objects of which all members should be wanted. With ``wrapped`` records may also be
    ``{"schema": …, "payload": …}`` with the wanted ones inside of the payload; ``schema`` is then a path, too.
    ``in_avro``: the paths in records in Avro, which nothing is wrapped around."""

    SCHEMA: Path = ("schema",)
    PAYLOAD: Path = ("payload",)

    def __init__(self, names: Names, closed: frozenset[Path] = frozenset(), *, wrapped: bool = False) -> None:
        self.slots: dict[Path, int] = {}
        self._closed = closed
        self._nodes: list[tuple[bool, list[tuple[bytes, int, int, bool]]]] = []
        root = self._add(names, ())
        self.in_avro = dict(self.slots)
        self.schema_slot: int | None = None
        if wrapped:
            is_closed, members = self._nodes[root]
            self._nodes.append((is_closed, list(members)))
            inner = len(self._nodes) - 1
            self.schema_slot = len(self.slots)
            self.slots |= {self.SCHEMA: self.schema_slot, self.PAYLOAD: self.schema_slot + 1}
            members.append((b"schema", self.slots[self.SCHEMA], -1, True))
            members.append((b"payload", self.slots[self.PAYLOAD], inner, False))
        self.wanted, self.hints = self._arrays()

    def _add(self, names: Names, path: Path) -> int:
        """The number of a new node."""
        members: list[tuple[bytes, int, int, bool]] = []
        self._nodes.append((path in self._closed, members))
        number = len(self._nodes) - 1
        for name, inside in names.items():
            slot = self.slots.setdefault((*path, name), len(self.slots))
            node = -1 if inside is None else self._add(inside, (*path, name))
            members.append((name.encode(), slot, node, False))
        return number

    def _arrays(self) -> tuple[Wanted, int]:
        members = [member for _, found in self._nodes for member in found]
        counts = np.array([len(found) for _, found in self._nodes], np.int32)
        sizes = np.array([len(name) for name, *_ in members], np.int32)
        wanted = Wanted(
            first=_ends(counts),
            name_at=_ends(sizes)[:-1],
            name_size=sizes,
            names=np.frombuffer(b"".join(name for name, *_ in members) or b"\0", np.uint8),
            slot=np.array([slot for _, slot, _, _ in members], np.int32),
            node=np.array([node for _, _, node, _ in members], np.int32),
            opaque=np.array([opaque for *_, opaque in members], np.uint8),
            closed=np.array([closed for closed, _ in self._nodes], np.uint8),
            hints=_ends(counts + _HINTS_SPARE),
        )
        return wanted, int(wanted.hints[-1])


def _ends(counts: Ints32) -> Ints32:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


class Found:
    """What was found in a column of records, one a row. ``schemas``: those of records in Avro; None: there is no
    registry. Raises ProtocolError on a column of 2 GiB."""

    def __init__(self, column: pa.LargeBinaryArray, paths: Paths, schemas: Schemas | None = None) -> None:
        records = len(column)
        offsets = np.frombuffer(column.buffers()[1], np.int64, records + 1, column.offset * 8)
        start, stop = (int(offsets[0]), int(offsets[-1])) if records else (0, 0)
        if stop - start > _BYTES_MAX:
            raise ProtocolError(
                f"{stop - start} bytes of records at once", hint="take fewer records at a time: at most 2 GiB"
            )
        whole = column.buffers()[2]
        self._data: Bytes = np.frombuffer(whole, np.uint8)[start:stop] if whole else np.zeros(0, np.uint8)
        begins, ends = (offsets[:-1] - start).astype(np.int32), (offsets[1:] - start).astype(np.int32)
        ends[~_valid(column)] = -1
        self._paths, self._records = paths, records
        cells = records * len(paths.slots)
        self._spans = Spans(np.empty(cells, np.int32), np.empty(cells, np.int32), np.zeros(cells, np.uint8))
        self._verdicts = Verdicts(
            np.full(records, json_text.ABSENT, np.uint8),
            np.zeros(records, np.int32),
            np.empty(records, np.int32),
            np.full(records, -1, np.int32),
            np.full(records, -1, np.int32),
        )
        self._begins = begins
        self._avro = framed(self._data, begins, ends)
        self._broken, self._refused = list[int](), dict[int, str]()
        if len(self._avro) < records:
            in_json = ends.copy()
            in_json[self._avro] = -1
            self._find_json(in_json)
            self._broken = _not_utf8(column, in_json >= 0)
        if len(self._avro):
            reader = AvroReader(
                self._data, begins, ends, self._spans, self._verdicts, paths.in_avro, paths.schema_slot
            )
            texts, self._refused = reader.read(self._avro, schemas)
            self._data = np.concatenate([self._data, texts])

    def _find_json(self, ends: Ints32) -> None:
        hints = Hints(*(np.full(self._paths.hints, -1, np.int32) for _ in range(3)))
        stack = Stack(*(np.empty(DEPTH, np.int32) for _ in range(5)))
        find_spans(
            self._data,
            json_text.SIGNS,
            self._begins,
            ends,
            self._paths.wanted,
            hints,
            stack,
            self._spans,
            self._verdicts,
            np.full(3, -1, np.int64),
        )

    @property
    def good(self) -> NDArray[np.bool_]:
        """Which records can be used."""
        good: NDArray[np.bool_] = self._verdicts.status == json_text.OK
        good[self._broken] = False
        return good

    @property
    def absent(self) -> NDArray[np.bool_]:
        """Which records are null."""
        absent: NDArray[np.bool_] = self._verdicts.status == json_text.ABSENT
        return absent

    def problem(self, record: int) -> str:
        """What is wrong with a record, without its values."""
        if record in self._broken:
            return _NOT_UTF8
        if record in self._refused:
            return self._refused[record]
        status, place = (int(column[record]) for column in self._verdicts[:2])
        problems = AVRO_PROBLEMS if record in self._avro else PROBLEMS
        return f"{problems[status]} (at byte {place - int(self._begins[record])})"

    def strays(self) -> Iterator[tuple[int, str]]:
        """Records with a member that is not wanted in a closed object, and its name."""
        for record in np.flatnonzero(self.good & (self._verdicts.stray_size >= 0)).tolist():
            at, size = int(self._verdicts.stray_at[record]), int(self._verdicts.stray_size[record])
            yield record, self._data[at : at + size].tobytes().decode()

    def kinds(self, path: Path) -> Bytes:
        """The kind of each record's value, MISSING where it has none."""
        return self._spans.kind[self._slice(path)]

    def same_schema(self) -> Ints32:
        """By record: the record with the same schema, which is the first that has it in a row of such; -1: none."""
        return self._verdicts.same_as

    def texts(self, path: Path, at: NDArray[Any] | None = None) -> pa.BinaryArray:
        """Values of all records, or of those ``at``: strings without quotes and escapes, everything else as it is
        written; null for null and where there is none."""
        where = self._slice(path)
        spans = Spans(self._spans.at[where], self._spans.size[where], self._spans.kind[where])
        if at is None:
            return texts_of(self._data, spans._replace(kind=np.where(self.good, spans.kind, _MISSING)))
        return texts_of(self._data, Spans(spans.at[at], spans.size[at], spans.kind[at]))

    def _slice(self, path: Path) -> slice:
        slot = self._paths.slots[path]
        return slice(slot * self._records, (slot + 1) * self._records)


def texts_of(data: Bytes, spans: Spans) -> pa.BinaryArray:
    rows = len(spans.at)
    offsets, valid = np.empty(rows + 1, np.int32), np.zeros((rows + 7) >> 3, np.uint8)
    nulls = json_text.measure(data, json_text.SIGNS, spans.at, spans.size, spans.kind, offsets, valid)
    out = np.empty(int(offsets[rows]), np.uint8)
    json_text.write(data, json_text.SIGNS, spans.at, spans.size, spans.kind, out)
    buffers = [pa.py_buffer(valid) if nulls else None, pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.BinaryArray.from_buffers(pa.binary(), rows, buffers, nulls)


def _valid(column: pa.Array) -> NDArray[np.bool_]:
    valid: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _not_utf8(column: pa.LargeBinaryArray, in_json: NDArray[np.bool_]) -> list[int]:
    """The records that are not UTF-8, of those in JSON."""
    try:
        column.cast(pa.large_string())
    except pa.ArrowInvalid:
        return [row for row in np.flatnonzero(in_json).tolist() if not _is_utf8(column[row].as_py())]
    return []


def _is_utf8(text: bytes | None) -> bool:
    try:
        (text or b"").decode()
    except UnicodeDecodeError:
        return False
    return True
