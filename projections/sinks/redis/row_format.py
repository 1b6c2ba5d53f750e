"""How a row lies in Redis: as a hash, as JSON or as MessagePack. Each begins with the epoch that wrote it, which the
scripts read without the rest (``redis_scripts.py``); a tombstone is the epoch and ``_deleted``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

import msgpack
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.projections.sinks.redis.msgpack import from_packed, packed_maps, to_packed
from tailrace.projections.sinks.rows import (
    dump,
    field_cells,
    from_fields,
    from_objects,
    joined_bytes,
    json_objects,
    to_fields,
)

Piece: TypeAlias = bytes | pa.BinaryArray
"""What stands in every row, or one cell per row."""


def array_header(words: int) -> bytes:
    """How a command of so many words begins."""
    return b"*%d\r\n" % words


def bulk_string(text: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(text), text)


def command(*words: bytes) -> bytes:
    return array_header(len(words)) + b"".join(map(bulk_string, words))


def bulk_strings(cells: pa.Array, prefix: bytes = b"") -> tuple[Piece, ...]:
    """Each cell, with what is before all of them, as one word; null for null."""
    lengths = pc.add(pc.binary_length(cells), len(prefix))
    return (b"$", integers(lengths), b"\r\n" + prefix, cells.cast(pa.binary()), b"\r\n")


def integers(values: pa.Array) -> pa.BinaryArray:
    """Integers as the protocol writes them."""
    return values.cast(pa.string()).cast(pa.binary())


Opened = Mapping[Any, Any]
UNREADABLE = (pa.ArrowException, ValueError, TypeError, AttributeError)
"""What opening or decoding a row raises that somebody else wrote."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Rows of hashes in Redis' protocol: fields and values, and how many words they are in each row."""

    words: pa.Array
    pieces: Sequence[Piece]


class RowFormat(Protocol):
    """Rows to the values that a command or script takes, and the server's answers to rows. ``read`` is the command that
    answers with a row; ``epoch`` and ``deleted`` are what its two own fields are called in an opened one."""

    read: str
    epoch: str | bytes
    deleted: str | bytes

    def cells(self, rows: pa.Table, epoch: int) -> Fields | pa.Array:
        """Rows as a server is to hold them, a text or bytes each, unless they are hashes."""

    def values(self, rows: pa.Table, epoch: int) -> list[list[str | bytes]]:
        """Rows as a script takes them: of a hash without the epoch."""

    def tombstone(self, epoch: int) -> str | bytes:
        """What stands for a row that was deleted; the script itself writes a hash's."""

    def opened(self, answer: Any) -> Opened:
        """The fields of a row or tombstone. Raises one of UNREADABLE for something else."""

    def decoded(self, rows: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
        """Opened rows, typed. Raises one of UNREADABLE."""


class _Hashes(RowFormat):
    read, epoch, deleted = "HGETALL", b"_epoch", b"_deleted"

    def cells(self, rows: pa.Table, epoch: int) -> Fields:
        pieces: list[Piece] = [bulk_string(self.epoch), bulk_string(b"%d" % epoch)]
        words: pa.Array = pa.repeat(2, rows.num_rows)
        for name, cells in field_cells(rows):
            there = (bulk_string(name.encode()), *bulk_strings(cells))
            pieces += [joined_bytes(*there).fill_null(b"")] if cells.null_count else there
            words = pc.add(words, pc.if_else(cells.is_valid(), 2, 0))
        return Fields(words, pieces)

    def values(self, rows: pa.Table, epoch: int) -> list[list[str | bytes]]:
        return to_fields(rows)

    def tombstone(self, epoch: int) -> str:
        return ""

    def opened(self, answer: Any) -> Opened:
        return cast(Opened, answer)

    def decoded(self, rows: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
        return from_fields(rows, schema)


class _Objects(RowFormat):
    read, epoch, deleted = "GET", "_epoch", "_deleted"

    def cells(self, rows: pa.Table, epoch: int) -> pa.Array:
        return json_objects(rows, f'{{"_epoch":{epoch},')

    def values(self, rows: pa.Table, epoch: int) -> list[list[str | bytes]]:
        return [[text] for text in self.cells(rows, epoch).to_pylist()]

    def tombstone(self, epoch: int) -> str:
        return dump({"_epoch": epoch, "_deleted": True})

    def opened(self, answer: Any) -> Opened:
        return cast(Opened, json.loads(answer))

    def decoded(self, rows: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
        return from_objects(rows, schema)


class _Packed(RowFormat):
    read, epoch, deleted = "GET", "_epoch", "_deleted"

    def cells(self, rows: pa.Table, epoch: int) -> pa.Array:
        return packed_maps(rows, self._stamp(epoch))

    def values(self, rows: pa.Table, epoch: int) -> list[list[str | bytes]]:
        return [[row] for row in to_packed(rows, self._stamp(epoch))]

    def tombstone(self, epoch: int) -> bytes:
        return b"\x82" + self._stamp(epoch) + b"\xa8_deleted\xc3"

    def opened(self, answer: Any) -> Opened:
        return cast(Opened, msgpack.unpackb(answer))

    def decoded(self, rows: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
        return from_packed(rows, schema)

    @staticmethod
    def _stamp(epoch: int) -> bytes:
        """The first entry of each map, of one width for every epoch: ``_epoch`` and a uint 64."""
        return b"\xa6_epoch\xcf" + epoch.to_bytes(8, "big")


FORMATS: Mapping[str, RowFormat] = {"hash": _Hashes(), "json": _Objects(), "msgpack": _Packed()}
