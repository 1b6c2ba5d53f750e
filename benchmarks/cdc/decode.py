"""Frames of whole transactions to Arrow rows: gathering and decoding, without socket, log or server.

An order-like table of seven columns, five changes a transaction, inserts and updates by turns; one core.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence

from benchmarks.options import Size, median, parse
from benchmarks.results import table, write_section
from tailrace.cdc.columnar.decode import BlockDecoder
from tailrace.cdc.policy.policies import Policies
from tailrace.cdc.stream.assemble import Assembler
from tailrace.cdc.wire.block import FrameBlock
from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.eventstore.model.topic import TopicId

RELID = 16_385
TOPIC = TopicId.table("shop", "public", "orders")
SCHEMA = TopicSchema(
    version=1,
    columns=(
        Column(1, "id", 20, key=True),
        Column(2, "customer_id", 23),
        Column(3, "status", 25),
        Column(4, "amount", 1700, (12 << 16 | 2) + 4),
        Column(5, "note", 25),
        Column(6, "created_at", 1184),
        Column(7, "meta", 25),
    ),
    relid=RELID,
)
CHANGES_PER_TRANSACTION = 5
EPOCH_BYTES = 32 << 20


def _relation() -> bytes:
    columns = b"".join(
        bytes([column.key]) + column.name.encode() + struct.pack(">xIi", column.type_oid, column.typmod)
        for column in SCHEMA.columns
    )
    return struct.pack(">cI", b"R", RELID) + b"public\0orders\0d" + struct.pack(">H", 7) + columns


def _change(number: int) -> bytes:
    cells: tuple[bytes | None, ...] = (
        b"%d" % number,
        b"%d" % (number % 1000),
        b"shipped",
        b"%d.%02d" % (number % 10_000, number % 100),
        b"leave it at the neighbour's" if number % 3 else None,
        b"2026-11-20 12:34:56.%06d+00" % (number % 900_000 + 100_000),
        b'{"source": %d}' % number,
    )
    texts = (b"n" if cell is None else b"t" + struct.pack(">I", len(cell)) + cell for cell in cells)
    tag = b"I" if number % 2 else b"U"
    return struct.pack(">cIcH", tag, RELID, b"N", len(cells)) + b"".join(texts)


def frames(changes: int) -> Iterator[bytes]:
    """What a server sends for so many changes."""
    for first in range(0, changes, CHANGES_PER_TRANSACTION):
        lsn = 1000 + first
        yield struct.pack(">cQqI", b"B", lsn, 10**15, first)
        if not first:
            yield _relation()
        yield from (_change(number) for number in range(first, first + CHANGES_PER_TRANSACTION))
        yield struct.pack(">cBQQq", b"C", 0, lsn, lsn + 1, 10**15)


def gather(sent: Sequence[bytes]) -> list[FrameBlock]:
    assembler = Assembler(EPOCH_BYTES, 200_000, 0)
    blocks = [assembler.cut() for frame in sent if assembler.feed(frame)]
    return [block for block in [*blocks, assembler.cut()] if block is not None]


def decode(blocks: Sequence[FrameBlock]) -> int:
    """Returns the number of rows."""
    decoder = BlockDecoder("shop", {TOPIC: SCHEMA}, lambda relation: None, Policies())
    return sum(part.rows.num_rows for block in blocks for part in decoder.decode(block).rows)


SIZES = (Size("changes", 1_000_000, 50_000, "changes"),)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("cdc.decode", __doc__, SIZES, arguments)
    changes = options["changes"]
    sent = list(frames(changes))
    gathering, decoding = [], []
    for _ in range(options.repeat):
        started = time.perf_counter()
        blocks = gather(sent)
        gathered = time.perf_counter()
        rows = decode(blocks)
        gathering.append(gathered - started)
        decoding.append(time.perf_counter() - gathered)
        if rows != changes:
            raise SystemExit(f"{rows} rows of {changes} changes")
    steps = {"gathered into blocks": median(gathering), "decoded to Arrow": median(decoding)}
    lines = [
        [name, f"{changes / took:,.0f}", f"{took / changes * 1e6:.2f}", f"{took:.2f}"]
        for name, took in steps.items()
    ]
    body = (
        f"{changes:,} changes, {CHANGES_PER_TRANSACTION} a transaction, seven columns; one core. Medians of "
        f"{options.repeat} rounds.\n\n" + table(["step", "changes/s", "µs per change", "seconds"], lines)
    )
    write_section(
        "decode",
        "Frames to Arrow",
        body,
        command=options.command,
        packages=["pyarrow", "numpy"],
        path=options.to,
    )


if __name__ == "__main__":
    main()
