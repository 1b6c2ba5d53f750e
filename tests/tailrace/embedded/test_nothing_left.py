"""However the process that started servers ends, no process, folder, port or shared memory is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tailrace.embedded.guard import is_alive
from tailrace.embedded.process import wait_until
from tests.support import REPOSITORY

GONE_SECONDS = 120.0


@contextmanager
def host(ending: str, **options: Any) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Run ``host.py``; its servers run when the block begins."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.tailrace.embedded.host", ending],
        **{
            "cwd": REPOSITORY,
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            **options,
        },
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        line = process.stdout.readline()
        assert line, process.stderr.read()
        traces = json.loads(line)
        assert traces["wal_level"] == "logical"
        assert all(is_alive(pid) for pid in traces["pids"])
        process.stdin.write("go on\n")
        process.stdin.flush()
        try:
            yield process, traces
        finally:
            process.kill()


def shared_memory_of(pids: list[int]) -> list[str]:
    """System V segments on this machine that one of these processes made."""
    rows = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()]
    creator = rows[0].index("cpid")
    return [row[1] for row in rows[1:] if int(row[creator]) in pids]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def assert_nothing_left(traces: dict[str, Any]) -> None:
    def gone() -> bool:
        return not any(map(is_alive, traces["pids"])) and not any(map(os.path.exists, traces["folders"]))

    assert wait_until(gone, GONE_SECONDS), [
        *(pid for pid in traces["pids"] if is_alive(pid)),
        *(folder for folder in traces["folders"] if os.path.exists(folder)),
    ]
    assert not any(map(listens, traces["ports"]))
    assert shared_memory_of(traces["pids"]) == []


@pytest.mark.parametrize(
    ("ending", "code"), [("success", 0), ("exception", 1), ("no clean-up", 3), ("postmaster killed", 0)]
)
def test_after_an_end_of_its_own(ending: str, code: int) -> None:
    with host(ending) as (process, traces):
        assert process.wait(GONE_SECONDS) == code
    assert_nothing_left(traces)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_after_a_signal(number: signal.Signals) -> None:
    with host("signal") as (process, traces):
        process.send_signal(number)
        assert process.wait(GONE_SECONDS) == -number
    assert_nothing_left(traces)


def test_after_ctrl_c_in_its_terminal() -> None:
    """A terminal sends SIGINT to the whole foreground group, of which the servers must not be members."""
    with host("signal", process_group=0) as (process, traces):
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(GONE_SECONDS) == -signal.SIGINT
    assert_nothing_left(traces)


def test_servers_end_with_a_killed_guard() -> None:
    """Only the folders stay then: nobody is left who could remove them while the starter still runs."""
    with host("guard killed") as (process, traces):
        assert wait_until(lambda: not any(map(is_alive, traces["pids"])), GONE_SECONDS)
        assert not any(map(listens, traces["ports"]))
        process.terminate()
    for folder in traces["folders"]:
        subprocess.run(["rm", "-rf", folder], check=True)
