"""A process is named by host, place, number and start. What cannot be seen is neither running nor ended."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.eventstore.catalog import processes
from tailrace.eventstore.catalog.processes import Process, is_running, parse, this_process

TELL = "from tailrace.eventstore.catalog import processes as p; print(p.this_process().text, flush=True); input()"
OTHER_PLACE = "0123456789abcdef"


def in_another_container(*command: str) -> list[str]:
    """The command with its own numbers of processes, counted from 1, and our host's name; nothing where the kernel
    grants no namespaces."""
    alone = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    ways = [alone, [*alone, "--user", "--map-root-user"]] if shutil.which("unshare") else []
    for way in ways:
        if subprocess.run([*way, "true"], capture_output=True, check=False).returncode == 0:
            return [*way, *command]
    return []


@contextmanager
def living(*command: str) -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.communicate()  # its input ends, and it with that


@contextmanager
def process_of_another_container() -> Iterator[Process]:
    """A real one that lives, or the name of one where none can be made."""
    command = in_another_container(sys.executable, "-c", TELL)
    if not command:
        yield replace(this_process(), place=OTHER_PLACE)
        return
    with living(*command) as process:
        assert process.stdout is not None
        told = parse(process.stdout.readline().strip())
        assert told is not None
        yield told


def ended_process() -> Process:
    """Of this container."""
    process = subprocess.Popen(["true"])
    at = replace(this_process(), pid=process.pid, started=processes._status(process.pid)[1])
    process.wait()
    return at


def test_this_process_runs_and_one_that_was_waited_for_has_ended() -> None:
    mine = this_process()
    assert (mine.host, mine.pid) == (socket.gethostname(), os.getpid())
    assert mine.place
    assert is_running(mine) is True
    assert is_running(ended_process()) is False


def test_a_number_that_was_given_again_names_another_process() -> None:
    """Also that of this process itself: in a container every start may get the same number."""
    mine = this_process()
    assert is_running(replace(mine, started=mine.started - 1)) is False
    with living("cat") as process:
        started = processes._status(process.pid)[1]
        assert is_running(replace(mine, pid=process.pid, started=started)) is True
        assert is_running(replace(mine, pid=process.pid, started=started - 1)) is False


def test_a_process_of_another_host_container_or_boot_cannot_be_seen() -> None:
    for pid in (os.getpid(), ended_process().pid):
        mine = replace(this_process(), pid=pid)
        assert is_running(replace(mine, host="elsewhere")) is None
        assert is_running(replace(mine, place=OTHER_PLACE)) is None
        assert is_running(replace(mine, place="")) is None


def test_containers_that_share_a_host_name_do_not_take_each_other_for_dead() -> None:
    with process_of_another_container() as other:
        mine = this_process()
        assert other.host == mine.host
        assert other.place not in ("", mine.place)
        assert is_running(other) is None


def test_a_process_that_only_waits_for_its_parent_has_ended() -> None:
    process = subprocess.Popen(["true"])
    at = replace(this_process(), pid=process.pid, started=processes._status(process.pid)[1])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_running(at) is False
    process.wait()


def test_a_name_with_parentheses_is_no_state(tmp_path: Path) -> None:
    program = tmp_path / "a) Z 1 (b"
    program.symlink_to(shutil.which("cat") or "/bin/cat")
    with living(str(program)) as process:
        assert "a) Z 1 (b" in Path(f"/proc/{process.pid}/stat").read_text()
        at = replace(this_process(), pid=process.pid, started=processes._status(process.pid)[1])
        assert processes._status(process.pid)[0] != "Z"
        assert is_running(at) is True


@pytest.mark.parametrize("proc", ["none", "of a namespace above", "of a kernel that does not say"])
def test_without_proc_of_its_own_a_process_sees_nobody_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proc: str
) -> None:
    seen, gone = this_process(), ended_process()
    (tmp_path / "self").mkdir()
    numbers = f"NSpid:\t4711\t{os.getpid()}\n" if "above" in proc else "Pid:\t7\n"
    (tmp_path / "self/status").write_text(numbers)
    monkeypatch.setattr(processes, "_PROC", tmp_path / "none" if proc == "none" else tmp_path)
    assert this_process() == Process(seen.host, seen.pid)
    for process in (seen, gone, Process(seen.host, seen.pid), Process(gone.host, gone.pid)):
        assert is_running(process) is None


def test_a_process_that_proc_hides_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With hidepid others see no process of another user, but may learn that it is there."""
    (tmp_path / "self").symlink_to("/proc/self")
    (tmp_path / str(os.getpid())).symlink_to("/proc/self")
    gone = ended_process()
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    assert this_process().place
    with living("cat") as process:
        assert is_running(replace(this_process(), pid=process.pid)) is True
    assert is_running(gone) is False


@given(st.text() | st.from_regex(r"[a-z/:]*/[0-9a-f]{0,17}/[0-9]*:[0-9]*", fullmatch=True))
def test_any_text_is_a_process_or_none(text: str) -> None:
    """Whoever may write the catalog may write anything there."""
    process = parse(text)
    assert process is None or is_running(process) in (True, False, None)


@given(
    st.from_regex(r"[a-z0-9.-]{1,20}", fullmatch=True),
    st.integers(1, 4_194_304),
    st.integers(0, 2**63),
    st.sampled_from(["", OTHER_PLACE]),
)
def test_a_process_is_read_as_it_was_written(host: str, pid: int, started: int, place: str) -> None:
    process = Process(host, pid, place, started if place else 0)
    assert parse(process.text) == process
    assert str(process) == f"{host}:{pid}"
