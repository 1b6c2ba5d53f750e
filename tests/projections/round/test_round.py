"""What the projections of a round share is read once, and never that of another position."""

from __future__ import annotations

import gc
import stat
from contextlib import suppress
from pathlib import Path

from tailrace.eventstore.model.position import Cut
from tailrace.projections.round.files import RoundFiles


class Writer:
    """Writes a file, and counts."""

    def __init__(self) -> None:
        self.written = 0

    def __call__(self, folder: Path) -> None:
        self.written += 1
        (folder / "0.parquet").write_text(str(self.written))


def test_files_are_written_once_for_a_position_and_gone_at_the_next() -> None:
    files, write = RoundFiles(), Writer()
    first = files.folder_of(Cut(1), "orders", write)
    assert files.folder_of(Cut(1), "orders", write) == first and write.written == 1
    assert files.folder_of(Cut(1), "customers", write) != first and write.written == 2
    inside = files.folder_of(Cut(1, {"shop": 7}), "orders", write)
    assert write.written == 3 and not first.exists(), "a position inside the epoch is another one"
    assert inside != first, "a name is never used again"
    assert files.folder_of(Cut(2), "orders", write).exists() and not inside.exists()


def test_nobody_else_may_read_them_and_they_go_with_their_owner() -> None:
    files = RoundFiles()
    root = files.folder_of(Cut(1), "orders", Writer()).parent
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    del files
    gc.collect()
    assert not root.exists()


def test_what_could_not_be_written_is_written_at_the_next_try() -> None:
    files, write = RoundFiles(), Writer()

    def fail(folder: Path) -> None:
        raise OSError("no space left")

    with suppress(OSError):
        files.folder_of(Cut(1), "orders", fail)
    assert (files.folder_of(Cut(1), "orders", write) / "0.parquet").read_text() == "1"
