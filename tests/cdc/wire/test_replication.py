"""The frames around WAL: opened exactly, answered exactly."""

from __future__ import annotations

import struct
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cdc.wire.replication import (
    Keepalive,
    XLogData,
    micros,
    moment,
    parse,
    status_update,
    without_long_message,
)
from tailrace.eventstore.errors import ProtocolError

uint64 = st.integers(0, 2**64 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)


@given(uint64, uint64, int64, st.binary(min_size=1, max_size=40))
def test_wal_data_is_opened(start: int, end: int, sent: int, payload: bytes) -> None:
    frame = struct.pack(">cQQq", b"w", start, end, sent) + payload
    assert parse(frame) == XLogData(start, end, sent, payload)
    for cut in range(26):
        with pytest.raises(ProtocolError):
            parse(frame[:cut])


@given(uint64, int64, st.booleans())
def test_a_keepalive_is_opened(wal_end: int, sent: int, reply: bool) -> None:
    frame = struct.pack(">cQqB", b"k", wal_end, sent, reply)
    assert parse(frame) == Keepalive(wal_end, sent, reply)
    for cut in range(len(frame)):
        with pytest.raises(ProtocolError):
            parse(frame[:cut])
    with pytest.raises(ProtocolError):
        parse(frame + b"\0")


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (b"", "1 bytes expected"), (b"x" * 30, "unknown tag"), (b"r" + b"\0" * 33, "unknown tag"),
        (b"k" + b"\0" * 16 + b"\2", "neither 0 nor 1"), (b"w" + b"\0" * 24, "no message behind the header"),
    ],
)  # fmt: skip
def test_other_frames_are_refused(frame: bytes, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        parse(frame)


def test_a_message_longer_than_the_limit_is_replaced_by_an_empty_one_at_its_place() -> None:
    header = struct.pack(">cQQq", b"w", 0x10, 0x20, 5)
    frame = header + b"M" + b"x" * 50
    assert without_long_message(frame, len(frame)) is None
    instead = without_long_message(memoryview(frame), len(frame) - 1)
    assert instead == header + b"M" + bytes(18), "with the id of a transaction: 4, 1, 8, 1 and 4 bytes"
    assert parse(instead) == XLogData(0x10, 0x20, 5, b"M" + bytes(18))
    for other in (header + b"I" + b"x" * 50, b"k" + frame[1:]):
        assert without_long_message(other, 1) is None


def test_a_status_update_has_the_documented_layout() -> None:
    now = datetime(2000, 1, 1, 0, 0, 1, 5, tzinfo=UTC)
    frame = status_update(0x30, 0x20, 0x10, now, reply=True)
    assert frame == b"r" + struct.pack(">QQQqB", 0x30, 0x20, 0x10, 1_000_005, 1)


@given(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)))  # noqa: DTZ001
def test_times_survive_the_servers_count(time: datetime) -> None:
    assert moment(micros(time)) == time


def test_a_time_outside_every_calendar_is_refused() -> None:
    with pytest.raises(ProtocolError):
        moment(2**62)
