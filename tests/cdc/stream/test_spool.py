"""Protocol version 2 comes out of the spool as version 1 would have sent it, whatever is interleaved or rolled back."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cdc.stream.spool import Spool, SpooledStream
from tailrace.cdc.stream.spool_file import SpoolFile
from tailrace.cdc.wire import pgoutput as pg
from tailrace.cdc.wire.copy_data import Messages
from tailrace.cdc.wire.streaming import StreamCommit, StreamStart, StreamStop, control, unwrap
from tailrace.eventstore.errors import OperatorError, ProtocolError, TransientError
from tests.cdc.messages import encode
from tests.support.plaintext import nameless_files


def start(xid: int, *, first: bool) -> bytes:
    return struct.pack(">cIB", b"S", xid, first)


STOP = b"E"


def commit(xid: int, lsn: int) -> bytes:
    return struct.pack(">cIBQQq", b"c", xid, 0, lsn, lsn + 8, 5)


def abort(xid: int, subxid: int) -> bytes:
    return encode(pg.StreamAbort(xid, subxid))


def inside(subxid: int, message: pg.PgOutput) -> bytes:
    frame = encode(message)
    return frame[:1] + struct.pack(">I", subxid) + frame[1:]


def row(number: int) -> pg.Insert:
    return pg.Insert(7, (str(number).encode(),))


def whole(xid: int, lsn: int, rows: Iterable[int]) -> list[bytes]:
    """The transaction as version 1 sends it."""
    body = [encode(row(number)) for number in rows]
    return [encode(pg.Begin(lsn, 5, xid)), *body, encode(pg.Commit(lsn, lsn + 8, 5))]


def through(folder: Path, *messages: bytes) -> list[bytes]:
    with closing(Spool(folder)) as spool:
        return [given for message in messages for given in spool.feed(message)]


def test_blocks_of_two_transactions_that_alternate_come_out_apart(tmp_path: Path) -> None:
    given = through(
        tmp_path,
        start(1, first=True), inside(1, row(10)), STOP,
        start(2, first=True), inside(2, row(20)), STOP,
        start(1, first=False), inside(1, row(11)), STOP,
        commit(2, 100),
        commit(1, 200),
    )  # fmt: skip
    assert given == [*whole(2, 100, [20]), *whole(1, 200, [10, 11])]


def test_a_rolled_back_savepoint_leaves_nothing_and_its_neighbours_everything(tmp_path: Path) -> None:
    given = through(
        tmp_path,
        start(1, first=True), inside(1, row(1)), inside(2, row(2)), inside(3, row(3)), STOP,
        abort(1, 2),
        start(1, first=False), inside(1, row(4)), inside(2, row(5)), STOP,
        commit(1, 100),
    )  # fmt: skip
    assert given == whole(1, 100, [1, 3, 4])


def test_an_aborted_transaction_and_one_that_was_never_streamed_leave_nothing(tmp_path: Path) -> None:
    given = through(tmp_path, start(1, first=True), inside(1, row(1)), STOP, abort(1, 1), abort(9, 9))
    assert given == []


def test_what_is_not_streamed_passes_between_the_blocks(tmp_path: Path) -> None:
    plain = whole(5, 50, [7])
    given = through(tmp_path, start(1, first=True), inside(1, row(1)), STOP, *plain, commit(1, 100))
    assert given == [*plain, *whole(1, 100, [1])]


def test_an_origin_stays_in_its_transaction(tmp_path: Path) -> None:
    origin = encode(pg.Origin(3, "upstream"))
    given = through(tmp_path, start(1, first=True), origin, inside(1, row(1)), STOP, commit(1, 100))
    assert given == [whole(1, 100, [])[0], origin, *whole(1, 100, [1])[1:]]


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([STOP], id="a stop without a start"),
        pytest.param([start(1, first=False)], id="a first block that says it is none"),
        pytest.param([start(1, first=True), STOP, start(1, first=True)], id="a second first block"),
        pytest.param([start(1, first=True), start(2, first=True)], id="blocks that nest"),
        pytest.param([commit(1, 100)], id="a commit of what was not streamed"),
        pytest.param([start(1, first=True), commit(1, 100)], id="a commit inside a block"),
        pytest.param([start(1, first=True), encode(pg.Begin(1, 2, 3))], id="a begin inside a block"),
        pytest.param([start(1, first=True)[:-1]], id="a start cut short"),
        pytest.param([start(1, first=True) + b"x"], id="a start with garbage behind"),
        pytest.param([commit(1, 100)[:-1]], id="a commit cut short"),
        pytest.param([start(1, first=True), b"I\0\0"], id="a row too short for its transaction"),
    ],
)  # fmt: skip
def test_what_cannot_come_is_refused(tmp_path: Path, messages: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        through(tmp_path, *messages)


def test_messages_about_streaming_are_read_back() -> None:
    assert control(start(3, first=True)) == StreamStart(3, True)
    assert control(STOP) == StreamStop()
    assert control(commit(3, 100)) == StreamCommit(3, 100, 108, 5)
    assert control(abort(3, 4) + b"\0" * 16) == pg.StreamAbort(3, 4), "the parallel kind has LSN and time"
    assert control(encode(row(1))) is None
    assert unwrap(inside(4, row(1))) == (4, encode(row(1)))


def test_a_disk_without_room_is_the_operators_concern(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OperatorError, match="cannot be kept"):
        through(tmp_path / "file", start(1, first=True))


def test_many_rolled_back_savepoints_cost_a_bit_each(tmp_path: Path) -> None:
    """Any role may roll back millions in one transaction."""
    savepoints = range(2, 50_000, 2)
    with closing(Spool(tmp_path)) as spool:
        for message in (
            start(1, first=True),
            inside(2, row(2)),
            inside(3, row(3)),
            inside(49_998, row(4)),
            STOP,
        ):
            list(spool.feed(message))
        aborts = [abort(1, subxid) for subxid in savepoints]
        tracemalloc.start()
        try:
            for message in aborts:
                spool.feed(message)
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert taken < 100_000
        assert list(spool.feed(commit(1, 100))) == whole(1, 100, [3])


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[bytes], list[bytes]]:
    """Random transactions, streamed in random blocks that alternate, with savepoints rolled back: what version 2
    sends, and what version 1 would have."""
    streamed: list[bytes] = []
    expected: list[bytes] = []
    rows: dict[int, list[tuple[int, int]]] = {}
    aborted: set[int] = set()
    number = 0
    for _ in range(draw(st.integers(1, 15))):
        xid = 10 * draw(st.integers(1, 3))
        action = draw(st.sampled_from(["block", "block", "block", "savepoint", "commit", "abort"]))
        if action == "block":
            streamed.append(start(xid, first=xid not in rows))
            kept = rows.setdefault(xid, [])
            for _ in range(draw(st.integers(0, 4))):
                number += 1
                subxid = draw(st.sampled_from([s for s in range(xid, xid + 4) if s not in aborted]))
                kept.append((subxid, number))
                streamed.append(inside(subxid, row(number)))
            streamed.append(STOP)
        elif xid in rows and action == "savepoint":
            subxid = xid + draw(st.integers(1, 3))
            aborted.add(subxid)
            streamed.append(abort(xid, subxid))
            rows[xid] = [(sub, row_) for sub, row_ in rows[xid] if sub != subxid]
        elif xid in rows:
            kept = rows.pop(xid)
            aborted -= set(range(xid, xid + 4))
            if action == "commit":
                number += 1
                streamed.append(commit(xid, number * 100))
                expected += whole(xid, number * 100, [row_ for _, row_ in kept])
            else:
                streamed.append(abort(xid, xid))
    return streamed, expected


@given(histories())
def test_any_history_comes_out_as_version_1_sends_it(
    tmp_path: Path, history: tuple[list[bytes], list[bytes]]
) -> None:
    streamed, expected = history
    assert through(tmp_path, *streamed) == expected


class Frames:
    """The server's end of a stream: CopyData frames that have arrived."""

    timeout: float | None = None
    heard_at = 0.0

    def __init__(self, messages: Iterable[bytes]) -> None:
        self._frames: Iterator[bytes] = (b"w" + struct.pack(">QQq", 9, 9, 0) + each for each in messages)

    def fileno(self) -> int:
        return -1

    def receive(self) -> Messages:
        return Messages.of(list(islice(self._frames, 50)))

    def send(self, frame: bytes) -> None:
        pass

    def silence_error(self) -> TransientError:
        return TransientError("gone")

    def finish(self) -> None:
        pass


def test_a_transaction_larger_than_memory_is_kept_on_disk_and_given_out_in_pieces(tmp_path: Path) -> None:
    count = 5000
    wide = [pg.Insert(7, (str(number).encode() * 50,)) for number in range(count)]
    stream = SpooledStream(
        Frames([start(1, first=True), *(inside(1, each) for each in wide), STOP, commit(1, 100)]),
        tmp_path,
        piece_bytes=10_000,
    )
    pieces = [list(stream.receive().each()) for _ in range(2 * count)]
    sizes = [sum(map(len, piece)) for piece in pieces]
    assert 0 < max(sizes) < 20_000 + 25 * 100
    given = [frame for piece in pieces for frame in piece]
    assert [frame[25:] for frame in given[1:-1]] == [encode(each) for each in wide]
    positions = [struct.unpack_from(">Q", frame, 9)[0] for frame in given]
    assert positions[-1] == 9 and not any(positions[:-1]), "only the commit has a position"
    assert list(tmp_path.iterdir()) == [], "files without names: a crash leaves none behind"


def test_a_spool_file_gives_back_what_was_written_and_has_no_name(tmp_path: Path) -> None:
    sizes = [10, 70_000, 65_536, 0, 1, 900_000, 3, 65_535]  # within and beyond what stays in memory
    written = [(b"plain%d" % number * size)[:size] for number, size in enumerate(sizes)]
    with closing(SpoolFile(tmp_path)) as file:
        for data in written:
            file.write(data)
        (on_disk,) = nameless_files(tmp_path)
        assert b"".join(file.pieces()) == b"".join(written)
        assert b"".join(written).startswith(on_disk) and len(on_disk) >= sum(sizes) - 65_536
        assert list(tmp_path.iterdir()) == []
    assert nameless_files(tmp_path) == []
