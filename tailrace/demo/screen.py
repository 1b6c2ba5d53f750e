"""What the demo prints: numbered steps, figures, and checks that must hold."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tailrace.eventstore.errors import DifferenceFound
from tailrace.terminal import Output


@dataclass
class Screen:
    """Prints steps, figures and checks, and remembers which checks failed. With JSON: one document each."""

    output: Output
    started: float = field(default_factory=time.monotonic)
    failures: list[str] = field(default_factory=list)
    checks: int = 0
    _step: int = 0

    def step(self, title: str, why: str) -> None:
        """Begin a step: what happens, and what it shows, in a line."""
        self._step += 1
        if self.output.json:
            self.output.document({"step": self._step, "title": title, "why": why, "at_seconds": self.seconds})
            return
        self.output.line("")
        self.output.line(f"{self._step:>2}. {title}", style="bold")
        self.output.line(f"    {why}", style="dim")

    def figure(self, text: str) -> None:
        """Something measured just now."""
        if self.output.json:
            self.output.document({"step": self._step, "figure": text})
        self.output.line(f"    - {text}")

    def command(self, text: str) -> None:
        """The command that does the same by hand."""
        if self.output.json:
            self.output.document({"step": self._step, "command": text})
        self.output.line(f"    $ {text}", style="cyan")

    def check(self, holds: bool, text: str) -> None:
        """Something that must be true; the demo fails at its end when it is not."""
        self.checks += 1
        if not holds:
            self.failures.append(text)
        if self.output.json:
            self.output.document({"step": self._step, "check": text, "holds": holds})
        self.output.line(f"    {'ok  ' if holds else 'FAIL'} {text}", style="green" if holds else "bold red")

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self.started, 1)

    def line_of_result(self) -> None:
        """The result in one line."""
        failed = len(self.failures)
        result = "all held" if not failed else f"{failed} FAILED"
        if self.output.json:
            self.output.document({"checks": self.checks, "failed": self.failures, "seconds": self.seconds})
        self.output.line("")
        style = "bold red" if failed else "bold green"
        self.output.line(f"{self.checks} checks, {result}, in {self.seconds:.0f} s", style=style)

    def verdict(self) -> None:
        """Raises DifferenceFound when a check failed."""
        if self.failures:
            raise DifferenceFound(
                f"{len(self.failures)} of {self.checks} checks of the demo failed: {'; '.join(self.failures)}",
                hint="run it again with --keep to look at the parts",
            )
