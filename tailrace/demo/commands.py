"""Commands of the demo, run as a user runs them: as processes, in a folder with its configuration."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from tailrace.config.load import load_settings
from tailrace.embedded.process import ServerProcess, tail_of, wait_until
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.settings import Settings

COMMAND_SECONDS = 120
STOP_SECONDS = 20


@dataclass
class CommandFolder:
    """A folder with ``tailrace.toml``, and the commands that go on in it."""

    folder: Path
    running: list[ServerProcess] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.folder / "tailrace.toml"

    def settings(self) -> Settings:
        return load_settings(self.config)

    def run(self, *arguments: str) -> list[Any]:
        """Run a command, and return its JSON documents. Raises OperatorError when it fails."""
        argv = [sys.executable, "-m", "tailrace", "--config", str(self.config), "--json", *arguments]
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False,
            env=_environment(),
        )  # fmt: skip
        if done.returncode:
            raise OperatorError(
                f"tailrace {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()[-2000:]}",
                hint="run the demo with --keep, then the command by hand",
            )
        return [json.loads(line) for line in done.stdout.splitlines()]

    def start(self, command: str) -> ServerProcess:
        """``tailrace COMMAND`` as a process of its own. The guard starts it: it ends with us, however we end."""
        argv = [sys.executable, "-m", "tailrace", "--config", str(self.config), command]
        process = ServerProcess(argv, log=self._log(command), environment=_environment())
        self.running.append(process)
        return process

    def require_alive(self, process: ServerProcess, command: str) -> None:
        """Raises OperatorError, with the end of its log, when a command has ended by itself."""
        code = process.poll()
        if code is not None:
            raise OperatorError(
                f"the demo's {command} ended with {code}; its log ends:\n{tail_of(self._log(command))}",
                hint="this is what the demo is to show, so it is a bug: please report it",
            )

    def stop(self) -> None:
        """End all that goes on."""
        for process in self.running:
            if process.poll() is None:
                process.signal(signal.SIGTERM)
        for process in self.running:
            if not wait_until(lambda process=process: process.poll() is not None, STOP_SECONDS):  # type: ignore[misc]
                process.kill()

    def _log(self, command: str) -> Path:
        return self.folder / f"{command}.log"


def _environment() -> dict[str, str]:
    """Ours, without what would choose another project's configuration."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}


def shop_file(name: str) -> str:
    """The text of a file of the shop, as shipped."""
    return resources.files("tailrace.demo").joinpath("shop", name).read_text(encoding="utf-8")
