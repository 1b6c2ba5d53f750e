"""Files in a folder are durable in the right order; fail points. (What holds of every storage: test_storage.)"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace.eventstore import failpoints
from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.storage import PARTIAL, LocalStorage


def test_content_is_synced_before_it_has_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order that makes a file durable: data, name, folder; and new folders from the top down."""
    steps: list[str] = []
    real_sync, real_rename = os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        steps.append("sync " + Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real_sync(descriptor)

    def rename(old: Path, new: Path) -> None:
        steps.append(f"rename {Path(new).name}")
        real_rename(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    root = tmp_path / "root"
    root.mkdir()
    LocalStorage(root).write("x/y/file", b"1")
    assert steps == ["sync root", "sync x", "sync file" + PARTIAL, "rename file", "sync y"]


def test_a_disk_that_refuses_is_said_clearly(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OperatorError, match="file/inside") as caught:
        LocalStorage(tmp_path).write("file/inside/x", b"1")
    assert caught.value.hint


@pytest.mark.parametrize("text", ["no_such_place", "inside_commit:x", "inside_commit~", "inside_commit~1s"])
def test_fail_points_that_do_not_exist_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="TAILRACE_FAILPOINT"):
        failpoints.parse(text)


def test_fail_points_kill_at_the_pass_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, signal: killed.append(signal))
    monkeypatch.setattr(failpoints, "_armed", failpoints.parse("epoch_committed:3, seal_written"))
    for _ in range(2):
        failpoints.hit("epoch_committed")
        failpoints.hit("inside_commit")
    assert killed == []
    failpoints.hit("epoch_committed")
    failpoints.hit("seal_written")
    assert killed == [9, 9]
