"""A client of a replication slot as a process that is measured: wall clock, CPU, memory, and when it streams."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg

from benchmarks.memory import peak_kib

_SAMPLE_SECONDS = 0.02
_LOOK_SECONDS = 0.005
_WAIT_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Run:
    """One client's way through a backlog. ``streaming``: from its slot becoming active to its goal; ``process``: from
    start to exit. CPU is user and system time of the process, memory its largest resident set; ``server_cpu`` that of
    the server process that sent to it, as last seen."""

    streaming: float
    process: float
    cpu: float
    peak_mib: float
    server_cpu: float


class Client:
    """A started process. Its resident peak is read from /proc while it runs, see ``peak_kib``."""

    def __init__(self, command: Sequence[str | Path], output: Path) -> None:
        self._output = output
        with output.open("w") as log:
            self.begun = time.perf_counter()
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._ended = threading.Event()
        self._peak_kib = 0
        self._server: Path | None = None
        self.server_cpu = 0.0
        self._sampler = threading.Thread(target=self._sample, name="memory")
        self._sampler.start()

    @property
    def running(self) -> bool:
        """Without reaping: ``finish`` needs the resources it used."""
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def served_by(self, process: int) -> None:
        """The server's process, from now on watched too."""
        self._server = Path(f"/proc/{process}/stat")

    def stop(self) -> None:
        """Ask for a clean end (SIGTERM)."""
        self._process.terminate()

    def finish(self) -> tuple[float, float, float]:
        """Wait for the end: (seconds it ran, CPU seconds, peak MiB). SystemExit with its output when it failed."""
        try:
            _, status, used = os.wait4(self._process.pid, 0)
            seconds = time.perf_counter() - self.begun
        finally:
            self._stop_sampling()
        self._process.returncode = os.waitstatus_to_exitcode(status)
        if self._process.returncode:
            raise SystemExit(f"{self._process.args!r} failed:\n{self._output.read_text()}")
        return seconds, used.ru_utime + used.ru_stime, self._peak_kib / 1024

    def kill(self) -> None:
        """For the way out of an error; nothing to do when it has ended."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        self._stop_sampling()

    def _stop_sampling(self) -> None:
        self._ended.set()
        self._sampler.join()

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLE_SECONDS):
            self._peak_kib = max(self._peak_kib, peak_kib(self._process.pid))
            self._sample_server()

    def _sample_server(self) -> None:
        if self._server is not None:
            with suppress(OSError):  # it has ended
                fields = self._server.read_text().rpartition(")")[2].split()  # its name may hold anything
                self.server_cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def until_streaming(dsn: str, slot: str, capture: Client) -> None:
    """Wait for the capture's slot to become active. SystemExit when it ends before, or takes three minutes."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        query = "SELECT active FROM pg_catalog.pg_replication_slots WHERE slot_name = %s"
        deadline = time.monotonic() + _WAIT_SECONDS
        while connection.execute(query, [slot]).fetchone() != (True,):
            if not capture.running or time.monotonic() > deadline:
                raise SystemExit("the capture does not stream")
            time.sleep(0.05)


def follow_slot(
    dsn: str, slot: str, command: Sequence[str | Path], output: Path, goal: Callable[[Client], float | None]
) -> Run:
    """Run a client of ``slot`` to its end. ``goal`` waits for what is measured and gives its time on
    ``time.perf_counter``; None = the process's end."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        client = Client(command, output)
        try:
            began = _active_since(connection, slot, client)
            reached = goal(client)
            process, cpu, peak = client.finish()
        finally:
            client.kill()
    ended = client.begun + process if reached is None else reached
    return Run(ended - began, process, cpu, peak, client.server_cpu)


def _active_since(connection: psycopg.Connection[tuple[object, ...]], slot: str, client: Client) -> float:
    """When the slot was first seen in use; the process's start when it was too short for that."""
    query = "SELECT active_pid FROM pg_catalog.pg_replication_slots WHERE slot_name = %s"
    while client.running:
        row = connection.execute(query, [slot]).fetchone()
        if row is not None and isinstance(row[0], int):
            client.served_by(row[0])
            return time.perf_counter()
        time.sleep(_LOOK_SECONDS)
    return client.begun
