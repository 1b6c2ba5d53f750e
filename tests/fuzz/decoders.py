"""What fuzzing checks: any bytes as a block, through the columnar decoder and the reference: the same rows, or both
refuse. Bytes are frames, each behind its length in two bytes; relations of three tables come first."""

from __future__ import annotations

import tempfile
from array import array
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tailrace.cdc.columnar.decode import DecodedEpoch
from tailrace.cdc.stream.assemble import Assembler
from tailrace.cdc.stream.spool import Spool
from tailrace.cdc.wire import pgoutput as pg
from tailrace.cdc.wire.binary import binary_cells
from tailrace.cdc.wire.block import FrameBlock
from tailrace.cdc.wire.replication import parse
from tailrace.eventstore.errors import OperatorError, ProtocolError
from tests.cdc.messages import HUGE, decoder, encode
from tests.fuzz.fuzzing import pack, unpack
from tests.fuzz.reference import TABLES, Reference

ANNOUNCED = [encode(table.relation) for table in TABLES]


def block_of(frames: list[bytes]) -> FrameBlock:
    ends: array[int] = array("q")
    for frame in frames:
        ends.append((ends[-1] if ends else 0) + len(frame))
    return FrameBlock(b"".join(frames), ends, 1, 1, 1, 2, datetime(2026, 11, 20, tzinfo=UTC))


def refuse_only_as_protocol(frames: list[bytes]) -> None:
    """What else takes frames apart: of damaged ones nothing but a ProtocolError may come out, from the decoder one that
    names a place."""
    with suppress(ProtocolError):
        assembler = Assembler(HUGE, HUGE, skip_through=0)
        for frame in frames:
            assembler.feed(frame)
        assembler.cut()
    with suppress(ProtocolError), closing(Spool(Path(tempfile.gettempdir()))) as spool:
        for frame in frames:
            list(spool.feed(frame))
    for frame in frames:
        with suppress(ProtocolError):
            parse(frame)
        with suppress(ProtocolError):
            binary_cells(b"w" + bytes(24) + frame)
    words = ""
    try:
        decoder(*TABLES).decode_or_quarantine(block_of(frames))
    except ProtocolError as error:
        words = error.message
        place = "at byte" in words and "commit LSN" in words
    except OperatorError as error:
        words = error.message
        place = "tailrace.events has no column" in words
    assert not words or place, words


def check(data: bytes) -> bool:
    """Whether the block was taken; AssertionError when the two decoders disagree."""
    frames = [*ANNOUNCED, *unpack(data)]
    refuse_only_as_protocol(frames)
    reference = Reference()
    refused: ProtocolError | OperatorError | None = None
    try:
        reference.decode(frames)
    except (ProtocolError, OperatorError) as error:
        refused = error
    decoded: DecodedEpoch | ProtocolError | OperatorError
    try:
        decoded = decoder(*TABLES).decode(block_of(frames))
    except (ProtocolError, OperatorError) as error:
        decoded = error
    if not isinstance(decoded, DecodedEpoch):
        assert refused is not None, f"only the columnar decoder refuses: {decoded}"
        return False
    assert refused is None, f"only the reference refuses: {refused}"
    expected: dict[str, list[dict[str, Any]]] = {}
    for topic, row in reference.rows:
        expected.setdefault(topic, []).append(row)
    found: dict[str, list[dict[str, Any]]] = {}
    for part in decoded.rows:
        part.rows.validate(full=True)
        rows = part.rows.drop_columns(["_commit_ts"])  # damaged ones are beyond Python's calendar
        found.setdefault(part.topic.text, []).extend(rows.to_pylist())
    assert found.keys() == expected.keys()
    for topic, wanted in expected.items():
        shown = [{name: row[name] for name in like} for row, like in zip(found[topic], wanted, strict=True)]
        assert shown == wanted
    assert sum(decoded.ignored.values()) == reference.ignored
    return True


def words_of(data: bytes) -> list[str]:
    """Refusals are told apart by the lines that say them."""
    check(data)
    return []


def seeds() -> dict[str, bytes]:
    """Blocks with every kind of message, from which fuzzing starts."""
    wide = tuple(b"%d" % number for number in range(9))
    changes: dict[str, list[pg.PgOutput]] = {
        "insert": [pg.Insert(1, (b"1", b"x", pg.NULL)), pg.Insert(3, wide)],
        "update": [pg.Update(1, (b"1", pg.UNCHANGED, b"y")), pg.Update(2, (b"a", b"1"), old=(b"b", b"1"))],
        "moved": [
            pg.Update(1, (b"2", pg.UNCHANGED, b"y"), key=(b"1", pg.NULL, pg.NULL)),
            pg.Update(2, (pg.UNCHANGED, b"2"), old=(b"b", b"1")),
        ],
        "delete": [pg.Delete(1, key=(b"1", pg.NULL, pg.NULL)), pg.Delete(2, old=(b"b", b"1"))],
        "rare": [
            pg.Truncate((1, 2), True, False),
            pg.Message(True, 1, "audit", b"\xff"),
            pg.Message(True, 1, "tailrace.mark", b""),
            pg.Type(9, "public", "mood"),
            pg.Origin(1, "o"),
            pg.StreamAbort(1, 2),
        ],
        "nameless": [pg.Relation(7, "public", "", "d", ()), pg.Insert(7, (pg.Binary(b"x"),))],
        "unnamed column": [
            pg.Relation(7, "public", "x", "d", (pg.RelationColumn("", 25, -1, True),)),
            pg.Insert(7, (b"1",)),
        ],
        "another": [TABLES[0].relation, pg.Relation(7, "public", "x", "d", ()), pg.Insert(7, ())],
    }
    return {
        name: pack([encode(m) for m in (pg.Begin(200, 1, 7), *messages, pg.Commit(200, 210, 1))])
        for name, messages in changes.items()
    }
