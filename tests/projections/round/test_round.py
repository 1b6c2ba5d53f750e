"""What the projections of a round share is read once, and never that of another position."""

from __future__ import annotations

import gc
import stat
from contextlib import suppress
from pathlib import Path

from tailrace.eventstore.model.position import Cut
from tailrace.projections.round.files import Earlier, RoundFiles


class Writer:
    """Writes a file, and counts."""

    def __init__(self) -> None:
        self.written = 0
        self._earlier: list[Earlier | None] = []

    def __call__(self, folder: Path, earlier: Earlier | None) -> None:
        assert earlier is None or (earlier.folder / "0.parquet").exists()
        self._earlier.append(earlier)
        self.written += 1
        (folder / "0.parquet").write_text(str(self.written))

    def earlier(self) -> Earlier | None:
        """What it was last given."""
        return self._earlier[-1]


def test_files_are_written_once_for_a_position_and_gone_at_the_next() -> None:
    files, write = RoundFiles(), Writer()
    first = files.folder_of(Cut(1), "orders", write)
    assert files.folder_of(Cut(1), "orders", write) == first and write.written == 1
    assert files.folder_of(Cut(1), "customers", write) != first and write.written == 2
    inside = files.folder_of(Cut(1, {"shop": 7}), "orders", write)
    assert write.written == 3 and not first.exists(), "a position inside the epoch is another one"
    assert inside != first, "a name is never used again"
    assert files.folder_of(Cut(2), "orders", write).exists() and not inside.exists()


def test_what_is_written_anew_is_given_the_files_of_the_position_before_while_they_are_there() -> None:
    files, write = RoundFiles(), Writer()
    orders, customers = (files.folder_of(Cut(1), name, write) for name in ("orders", "customers"))
    assert write.earlier() is None
    later = files.folder_of(Cut(2), "orders", write)
    assert write.earlier() == Earlier(Cut(1), orders) and not orders.exists() and customers.exists()
    files.folder_of(Cut(3), "orders", write)
    assert write.earlier() == Earlier(Cut(2), later)
    assert not customers.exists(), "nobody asked for them at the position before"
    files.folder_of(Cut(3), "customers", write)
    assert write.earlier() is None


def test_nobody_else_may_read_them_and_they_go_with_their_owner() -> None:
    files = RoundFiles()
    root = files.folder_of(Cut(1), "orders", Writer()).parent
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    del files
    gc.collect()
    assert not root.exists()


def test_what_could_not_be_written_is_written_at_the_next_try() -> None:
    files, write = RoundFiles(), Writer()

    def fail(folder: Path, earlier: Earlier | None) -> None:
        raise OSError("no space left")

    with suppress(OSError):
        files.folder_of(Cut(1), "orders", fail)
    assert (files.folder_of(Cut(1), "orders", write) / "0.parquet").read_text() == "1"
