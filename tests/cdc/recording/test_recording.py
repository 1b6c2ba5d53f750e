"""A recording is decoded again without a server, to the rows that capture made of it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from tailrace.cdc.recording.file import FRAME, Recording, RecordingHeader, RecordingWriter
from tailrace.eventstore.errors import UsageError
from tests.support.capturing import Site
from tests.support.recordings import GOLDEN, SCENARIOS, SECRET, record, replay_rows


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_recording_gives_the_rows_that_capture_made(
    database: str, store_dir: Path, tmp_path: Path, name: str
) -> None:
    scenario, file = SCENARIOS[name], tmp_path / "recording"
    captured = record(Site.at(store_dir, database, **scenario.settings), scenario, file)
    assert len(captured) > len(scenario.statements)
    assert replay_rows(file, tmp_path / "replayed") == captured
    for document in Recording(file).records():
        assert SECRET.encode() not in document.data


@pytest.mark.parametrize("name", SCENARIOS)
def test_golden_recordings_give_the_rows_they_always_gave(tmp_path: Path, name: str) -> None:
    expected = [json.loads(line) for line in (GOLDEN / f"{name}.json").read_text().splitlines()]
    assert expected
    assert replay_rows(GOLDEN / f"{name}.rec", tmp_path) == expected


def test_a_recording_cut_anywhere_gives_what_came_before(tmp_path: Path) -> None:
    whole = (GOLDEN / "changes.rec").read_bytes()
    expected = replay_rows(GOLDEN / "changes.rec", tmp_path / "whole")
    for number, length in enumerate(range(len(whole) - 1, len(whole) // 2, -len(whole) // 9)):
        cut = tmp_path / f"{number}.rec"
        cut.write_bytes(whole[:length])
        found = replay_rows(cut, tmp_path / str(number))
        assert found == expected[: len(found)]
        assert len(found) < len(expected)


def test_what_is_no_recording_is_refused_and_none_is_overwritten(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"something else")
    with pytest.raises(UsageError, match="no recording"):
        Recording(other)
    with pytest.raises(UsageError, match="cannot be read"):
        Recording(tmp_path / "missing")
    frames = [each for each in Recording(GOLDEN / "changes.rec").records() if each.kind == FRAME]
    assert frames[0].data[:1] in (b"B", b"R", b"Y")


def test_what_a_large_block_brings_is_written_in_chunks_that_are_read_back(tmp_path: Path) -> None:
    writer, messages = RecordingWriter(tmp_path / "large", RecordingHeader("s", "1", "p")), 3
    begin = (tmp_path / "large").stat().st_size
    for number in range(messages):
        writer.add(FRAME, number, bytes([number]) * (40 << 20))
    writer.flush()
    writer.close()
    file, at, sizes = (tmp_path / "large").read_bytes(), begin, []
    while at < len(file):
        size, packed, _ = struct.unpack_from(">III", file, at)
        sizes.append(size)
        at += 12 + packed
    assert max(sizes) < 100 << 20 and sum(sizes) > 120 << 20
    assert [each.data[0] for each in Recording(tmp_path / "large").records()] == list(range(messages))
