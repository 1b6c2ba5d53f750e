"""``tailrace demo --keep``: everything goes on, for you to try."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tailrace.demo.commands import CommandFolder
from tailrace.terminal import Output


@dataclass(frozen=True, slots=True)
class Playground:
    """``commands`` to try, each with what it shows; ``addresses`` of the servers; ``more`` lines that help."""

    place: CommandFolder
    commands: Sequence[tuple[str, str]]
    addresses: Mapping[str, str]
    more: Sequence[str] = ()

    def wait_for_interrupt(self, output: Output) -> None:
        """Print what to try and how to stop, then wait for Ctrl-C."""
        if output.json:
            output.document({"config": str(self.place.config), **self.addresses})
        output.line("")
        output.line("Everything goes on. In another terminal:", style="bold")
        output.line(f"  export TAILRACE_CONFIG={self.place.config}", style="cyan")
        for command, why in self.commands:
            output.line(f"  {command:<34} # {why}")
        for line in self.more:
            output.line(f"  {line}")
        output.line("Ctrl-C here stops the servers and removes all files.", style="bold")
        _wait()


def _wait() -> None:
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while not stopped:
            time.sleep(0.2)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
