"""The processes and servers of an installation, each of which may be killed and is started again."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from tailrace.embedded import PostgresServer
from tests.proof.rig import STEP_SECONDS, Rig


class Victims:
    """``commands``: of each process, as ``Rig.process`` takes them. ``ended``: who ended, with which code."""

    def __init__(
        self,
        rig: Rig,
        commands: Mapping[str, Sequence[str]],
        servers: Mapping[str, PostgresServer],
        stack: ExitStack,
    ) -> None:
        self._rig = rig
        self._stack = stack
        self._commands = dict(commands)
        self._servers = servers
        self.ended: list[tuple[str, int]] = []
        self.processes = {name: self._start(name) for name in commands}

    def _start(self, name: str) -> subprocess.Popen[str]:
        return self._stack.enter_context(self._rig.process(name, self._commands[name]))

    def kill(self, name: str) -> None:
        if name in self._servers:
            self._servers[name].kill()
            self._servers[name].start()
        else:
            self.processes[name].send_signal(signal.SIGKILL)
            self.processes[name].wait()
        self.revive()

    def revive(self) -> None:
        """What has ended, by a kill or because its server was away, is started again, as a supervisor would."""
        for name, process in self.processes.items():
            code = process.poll()
            if code is not None:
                self.ended.append((name, code))
                self.processes[name] = self._start(name)

    def stop(self, name: str) -> int:
        """A clean stop; gives the exit code."""
        process = self.processes.pop(name)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        return process.wait(4 * STEP_SECONDS)
