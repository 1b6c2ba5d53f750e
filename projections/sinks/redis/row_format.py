"""How a row lies in Redis: as a hash, as JSON or as MessagePack; and rows as commands of Redis' protocol.

Each row begins with the epoch that wrote it, which scripts read without the rest (``scripts``). A tombstone is the
epoch and ``_deleted``. Commands are RESP, <https://redis.io/docs/latest/develop/reference/protocol-spec/>: an array of
bulk strings, ``*2``, then ``$3``, ``GET`` and so on, each ended by CR LF. They are made column by column, without a
Python object for each cell.
"""

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
    join_bytes,
    json_objects,
    to_fields,
)

Piece: TypeAlias = bytes | pa.BinaryArray
"""The same bytes in every row, or a cell for each row."""


def array_header(words: int) -> bytes:
    """The beginning of a command of so many words."""
    return b"*%d\r\n" % words


def bulk_string(text: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(text), text)


def command(*words: bytes) -> bytes:
    return array_header(len(words)) + b"".join(map(bulk_string, words))


def bulk_strings(cells: pa.Array, prefix: bytes = b"") -> tuple[Piece, ...]:
    """Each cell, after the prefix, as one word; null for null."""
    lengths = pc.add(pc.binary_length(cells), len(prefix))
    return (b"$", integers(lengths), b"\r\n" + prefix, cells.cast(pa.binary()), b"\r\n")


def integers(values: pa.Array) -> pa.BinaryArray:
    """Integers as the protocol writes them."""
    return values.cast(pa.string()).cast(pa.binary())


Unpacked = Mapping[Any, Any]
UNREADABLE = (pa.ArrowException, ValueError, TypeError, AttributeError)
"""What parsing or decoding raises for a row that Tailrace did not write."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Hashes in Redis' protocol: their fields and values, and the number of words in each row."""

    words: pa.Array
    pieces: Sequence[Piece]


class RowFormat(Protocol):
    """From rows to values of commands and scripts, and from the server's answers to rows. The command ``read`` answers
    with a row; ``epoch`` and ``deleted`` are its own two fields in a parsed row."""

    read: str
    epoch: str | bytes
    deleted: str | bytes

    def cells(self, rows: pa.Table, epoch: int) -> Fields | pa.Array:
        """Rows as the server stores them, a text or bytes each; hashes are ``Fields``."""

    def values(self, rows: pa.Table, epoch: int) -> list[list[str | bytes]]:
        """Rows as a script takes them: a hash without the epoch."""

    def tombstone(self, epoch: int) -> str | bytes:
        """The value of a deleted row. For a hash the script itself writes it."""

    def unpack(self, answer: Any) -> Unpacked:
        """The fields of a row or tombstone. Raises one of UNREADABLE for anything else."""

    def decode(self, rows: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
        """Opened rows, typed. Raises one of UNREADABLE."""


class _Hashes(RowFormat):
    read, epoch, deleted = "HGETALL", b"_epoch", b"_deleted"

    def cells(self, rows: pa.Table, epoch: int) -> Fields:
        pieces: list[Piece] = [bulk_string(self.epoch), bulk_string(b"%d" % epoch)]
        words: pa.Array = pa.repeat(2, rows.num_rows)
        for name, cells in field_cells(rows):
            there = (bulk_string(name.encode()), *bulk_strings(cells))
            pieces += [join_bytes(*there).fill_null(b"")] if cells.null_count else there
            words = pc.add(words, pc.if_else(cells.is_valid(), 2, 0))
        return Fields(words, pieces)

    def values(self, rows: pa.Table, epoch: int) -> list[list[str | bytes]]:
        return to_fields(rows)

    def tombstone(self, epoch: int) -> str:
        return ""

    def unpack(self, answer: Any) -> Unpacked:
        return cast(Unpacked, answer)

    def decode(self, rows: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
        return from_fields(rows, schema)


class _Objects(RowFormat):
    read, epoch, deleted = "GET", "_epoch", "_deleted"

    def cells(self, rows: pa.Table, epoch: int) -> pa.Array:
        return json_objects(rows, f'{{"_epoch":{epoch},')

    def values(self, rows: pa.Table, epoch: int) -> list[list[str | bytes]]:
        return [[text] for text in self.cells(rows, epoch).to_pylist()]

    def tombstone(self, epoch: int) -> str:
        return dump({"_epoch": epoch, "_deleted": True})

    def unpack(self, answer: Any) -> Unpacked:
        return cast(Unpacked, json.loads(answer))

    def decode(self, rows: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
        return from_objects(rows, schema)


class _Packed(RowFormat):
    read, epoch, deleted = "GET", "_epoch", "_deleted"

    def cells(self, rows: pa.Table, epoch: int) -> pa.Array:
        return packed_maps(rows, self._stamp(epoch))

    def values(self, rows: pa.Table, epoch: int) -> list[list[str | bytes]]:
        return [[row] for row in to_packed(rows, self._stamp(epoch))]

    def tombstone(self, epoch: int) -> bytes:
        return b"\x82" + self._stamp(epoch) + b"\xa8_deleted\xc3"

    def unpack(self, answer: Any) -> Unpacked:
        return cast(Unpacked, msgpack.unpackb(answer))

    def decode(self, rows: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
        return from_packed(rows, schema)

    @staticmethod
    def _stamp(epoch: int) -> bytes:
        """The first entry of each map, of the same width for every epoch: ``_epoch`` and a uint 64."""
        return b"\xa6_epoch\xcf" + epoch.to_bytes(8, "big")


FORMATS: Mapping[str, RowFormat] = {"hash": _Hashes(), "json": _Objects(), "msgpack": _Packed()}
