"""What sinks of files have in common."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.eventstore.errors import Fenced, IntegrityError, NotOwner, OperatorError, UsageError
from tailrace.projections.sinks.contract import Sink
from tailrace.projections.sinks.folder import GenerationsFolder, folder_problems, point, replace_file
from tests.projections.sinks.parquet import test_sink as test_parquet_sink
from tests.projections.sinks.search import test_sink as test_search_sink
from tests.projections.sinks.sink_data import ANNA, fence, fill, target


@pytest.mark.parametrize("sink_at", [test_parquet_sink.sink_at, test_search_sink.sink_at])
def test_a_generation_that_is_dropped_before_its_promotion_has_the_lock_is_not_shown(
    sink_at: Callable[[Path], Sink], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_at(tmp_path)
    fill(sink, target(), [ANNA])
    promoting = GenerationsFolder.promotion_lock

    def late(folder: GenerationsFolder) -> AbstractContextManager[None]:
        monkeypatch.setattr(GenerationsFolder, "promotion_lock", promoting)
        sink_at(tmp_path).drop(target())
        return promoting(folder)

    monkeypatch.setattr(GenerationsFolder, "promotion_lock", late)
    with pytest.raises(UsageError, match="was never filled"):
        sink.promote(target(), None)
    assert sink.live(target().store, target().projection) is None


def test_a_folder_that_cannot_hold_generations_is_said_before(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    file.chmod(0o700)  # it may be written and run, which of a folder would be enough
    assert folder_problems(tmp_path, target()) == folder_problems(tmp_path / "a" / "b", target()) == []
    for name in ("a/b", ".hidden", "../up"):
        (problem,) = folder_problems(tmp_path, target(projection=name))
        assert problem == f"the name {name!r} cannot name a folder"
    with pytest.raises(OperatorError, match="Not a directory") as refused:
        Plain("a folder", file, "acme", "totals").owner(1)
    assert refused.value.hint == "check the folder, its owner and free space"
    (problem,) = folder_problems(file / "below", target())
    assert problem == f"{file / 'below'} cannot be written: make the folder, or correct [sinks] path"


def test_what_readers_are_shown_is_on_the_disk_before_and_its_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also over what a killed process of the same number left."""
    done: list[str] = []
    fsync, rename = os.fsync, os.replace

    def synced(fd: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else f"{os.fstat(fd).st_size} bytes"
        done.append(kind)
        fsync(fd)

    def replaced(old: Path, new: Path) -> None:
        done.append("renamed")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    for left in (f"live.{os.getpid()}.tmp", f".link.{os.getpid()}.tmp"):
        (tmp_path / left).write_text("left")
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for text in ("seven", "nine"):
        replace_file(tmp_path / "live", text)
        point(tmp_path / "link", text)
        assert (tmp_path / "live").read_text() == os.readlink(tmp_path / "link") == text
    of_link = ["renamed", "folder"]
    assert done == ["5 bytes", *of_link, *of_link, "4 bytes", *of_link, *of_link]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "live"]
    assert before in (0, len(os.listdir("/proc/self/fd"))), "every file is closed"


def test_a_generation_that_was_half_removed_does_not_come_back(tmp_path: Path) -> None:
    sink = test_parquet_sink.sink_at(tmp_path)
    folder = tmp_path / "acme" / "customer_totals"
    sink.drop(target())
    for generation in (1, 2):
        fill(sink, target(generation), [ANNA])
        assert sink.owner(target(generation)) == "log-1"
    (folder / ".dropped-g1" / "left").mkdir(parents=True)
    with pytest.raises(NotOwner):
        sink.drop(replace(target(), log_id="log-2"))
    with pytest.raises(NotOwner):
        sink.create(replace(target(), log_id="log-2"))
    sink.promote(target(2), None)
    sink.promote(target(2), 7)  # it is shown already
    with pytest.raises(Fenced, match="shows generation 2, not 7"):
        sink.promote(target(1), 7)
    with pytest.raises(UsageError, match="is live"):
        sink.drop(target(2))
    for _ in range(2):
        sink.drop(target())
        assert not [path for path in folder.iterdir() if "g1" in path.name]
    assert (sink.owner(target()), sink.live("acme", "customer_totals")) == (None, 2)


class Plain(GenerationsFolder):
    """A file names the generation that readers see."""

    def live(self) -> int | None:
        file = self.path / "live"
        return int(file.read_text()) if file.exists() else None

    def set_live(self, generation: int) -> None:
        replace_file(self.path / "live", str(generation))


def test_a_promotion_has_the_folder_alone_and_makes_none(tmp_path: Path) -> None:
    folder = Plain("a folder", tmp_path, "acme", "totals")
    with pytest.raises(UsageError, match="was never filled"):
        folder.promote(target(), None, lambda of: None)
    assert list(tmp_path.iterdir()) == []
    folder.create(target())
    with (
        folder.promotion_lock(),
        open(folder.path / ".promote.lock", "rb") as other,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    folder.promote(target(), None, lambda of: fence(of, 10))
    assert folder.live() == 1


def test_a_generation_s_name_is_on_the_disk_before_anything_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        fsync(fd)

    folder = Plain("a folder", tmp_path, "acme", "totals")
    monkeypatch.setattr(os, "fsync", noted)
    folder.create(target())
    (totals,) = tmp_path.rglob("totals")
    assert synced[-1] == totals.stat().st_ino


def test_no_link_leads_out_of_a_projection_s_folder(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", Plain("a folder", tmp_path / "lake", "acme", "totals")
    outside.mkdir()
    (outside / ".owner").write_text("log-1\n")
    folder.path.mkdir(parents=True)
    (folder.path / "g1").symlink_to(outside)
    (folder.path / ".promote.lock").symlink_to(outside / "lock")
    for use in (
        lambda: folder.owner(1),
        lambda: folder.create(target()),
        lambda: folder.remove(1),
        lambda: folder.promotion_lock().__enter__(),
    ):
        with pytest.raises(IntegrityError, match="leads out of"):
            use()
    assert [path.name for path in outside.iterdir()] == [".owner"]
