"""From ``argv`` to an exit code: 0 done, 1 bug, 2 usage, 3 nothing to do (asked for), 4 difference found, 5 fenced,
6 resumable, 7 operator must act, 130 interrupted."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from types import FrameType

from tailrace.cli import log_handler
from tailrace.cli.errors import INTERRUPTED, Edge
from tailrace.cli.invocation import hoist_global_options
from tailrace.eventstore.disclosure import show_values
from tailrace.terminal import Output


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command (default: that of this process), report its errors, return the exit code."""
    ordered = hoist_global_options(sys.argv[1:] if arguments is None else arguments)
    output = Output(json="--json" in ordered)
    signal.signal(signal.SIGTERM, _terminate)
    edge = Edge(output, verbose="--verbose" in ordered)
    with log_handler.restore_handlers(), show_values("--show-values" in ordered), edge:
        from tailrace.cli.app import app

        code = app(args=ordered, prog_name="tailrace", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # the parser returns Ctrl-C as a code
            raise KeyboardInterrupt
        edge.code = code if isinstance(code, int) else 0
    return edge.code


def _terminate(number: int, frame: FrameType | None) -> None:
    """Leave through every ``finally``: embedded servers, Spark and temporary folders go with us."""
    raise SystemExit(128 + number)
