"""From ``argv`` to an exit code: 0 done, 1 bug, 2 usage, 3 nothing to do (asked for), 4 difference found, 5 fenced,
6 resumable, 7 operator must act, 130 interrupted."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from types import FrameType

from tailrace.cli import log_handler
from tailrace.cli.errors import INTERRUPTED, Edge
from tailrace.eventstore.disclosure import showing
from tailrace.terminal import Output

# Global options may stand anywhere on the line: `tailrace status --json` is what people type.
_FLAGS = {"--json", "--show-values", "--verbose", "--yes"}
_VALUES = {"--config", "--env"}


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command (default: that of this process), report its errors, return the exit code."""
    ordered = hoisted(sys.argv[1:] if arguments is None else arguments)
    output = Output(json="--json" in ordered)
    signal.signal(signal.SIGTERM, _terminated)
    edge = Edge(output, verbose="--verbose" in ordered)
    with log_handler.restored(), showing("--show-values" in ordered), edge:
        from tailrace.cli.app import app

        code = app(args=ordered, prog_name="tailrace", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # the parser returns Ctrl-C as a code
            raise KeyboardInterrupt
        edge.code = code if isinstance(code, int) else 0
    return edge.code


def _terminated(number: int, frame: FrameType | None) -> None:
    """Leave through every ``finally``: embedded servers, Spark and temporary folders go with us."""
    raise SystemExit(128 + number)


def hoisted(arguments: Sequence[str]) -> list[str]:
    """``arguments`` with the global options moved to the front. Nothing behind ``--`` is touched."""
    front: list[str] = []
    rest: list[str] = []
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if word == "--":
            rest += arguments[at:]
            break
        if word in _FLAGS or (word.partition("=")[0] in _VALUES and "=" in word):
            front.append(word)
        elif word in _VALUES:
            front += arguments[at : at + 2]
            at += 1
        else:
            rest.append(word)
        at += 1
    return front + rest
