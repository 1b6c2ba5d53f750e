"""Parts of the catalog are decoded once, and read as any other segment."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.model.segment_ref import SegmentRef
from tailrace.eventstore.segment import inline_parts
from tailrace.eventstore.segment.inline_parts import read_inline
from tailrace.eventstore.segment.kept_answers import KeptAnswers
from tailrace.eventstore.segment.segment import read_segment
from tests.eventstore.histories import History
from tests.eventstore.state.test_key_lookup import STORAGE

COLUMNS = ["_hash", "_op", "after.body", "_offset", "_epoch"]


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[SegmentRef]:
    """Those of twenty epochs, none of which was decoded before."""
    monkeypatch.setattr(inline_parts, "_PARTS", KeptAnswers(16 << 20, most_answers=2048))
    history = History()
    for key in range(20):
        history.put(key, {"body": f"text {key}"})
        history.cut()
    return [*history.state_input(1, 1).refs]


def test_they_have_the_rows_of_each_one_after_another(parts: list[SegmentRef]) -> None:
    whole = pa.concat_tables([read_segment(STORAGE, ref, columns=COLUMNS) for ref in parts])
    for chosen in (parts, parts[5:], parts):
        found = read_inline(chosen, COLUMNS)
        assert found.to_pylist() == whole.slice(20 - len(chosen)).to_pylist()
        assert found.column_names == whole.column_names


def test_what_was_decoded_serves_again_until_others_take_its_room(
    parts: list[SegmentRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = list[bytes]()
    opened = pa.ipc.open_stream

    def counted(data: pa.Buffer) -> object:
        decoded.append(data.to_pybytes())
        return opened(data)

    monkeypatch.setattr("pyarrow.ipc.open_stream", counted)
    read_inline(parts, COLUMNS)
    read_inline(parts[3:], ["_op"])
    assert decoded == [ref.inline for ref in parts]
    kept = inline_parts._PARTS
    monkeypatch.setattr(kept, "_most_bytes", 2 * parts[0].bytes + 1)
    for again in (parts, parts[-1:]):
        read_inline(again, COLUMNS)
    assert len(decoded) == 20, "nothing new was decoded"
    moved = [replace(parts[0], first_epoch=77, last_epoch=77)]
    assert read_inline(moved, COLUMNS)["_epoch"].to_pylist() == [77], (
        "the same bytes of another epoch are others"
    )
    read_inline(parts[:1], COLUMNS)
    assert len(decoded) == 22
    assert kept._bytes <= kept._most_bytes


def test_a_part_that_is_not_what_the_catalog_says_is_refused(parts: list[SegmentRef]) -> None:
    piece = parts[0].ranges[0]
    wrong = replace(parts[0], ranges=(replace(piece, rows=piece.rows + 1),))
    with pytest.raises(IntegrityError, match="has 1 rows where the catalog says 2"):
        read_inline([wrong], COLUMNS)
