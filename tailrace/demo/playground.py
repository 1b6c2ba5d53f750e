"""``tailrace demo --keep``: everything goes on, for you to try."""

from __future__ import annotations

import signal
import time

from tailrace.demo.workspace import Workspace
from tailrace.terminal import Output

_PLAY = (
    ("tailrace status", "how far everything is; try it twice, the shop sells on"),
    ("tailrace log tail --follow", "changes as they are committed"),
    ("tailrace run", "keep the projections up to date"),
    ("tailrace rebuild customer_totals", "a new generation, promoted"),
    ("tailrace projection list", "all generations"),
    ("tailrace verify", "the sinks against the log"),
)


def wait_for_interrupt(output: Output, place: Workspace) -> None:
    """Print what to try and how to stop, then wait for Ctrl-C."""
    if output.json:
        output.document(
            {
                "config": str(place.config),
                "source": place.source,
                "mart": place.mart,
                "redis": place.redis.url,
            }
        )
    output.line("")
    output.line("Everything goes on. In another terminal:", style="bold")
    output.line(f"  export TAILRACE_CONFIG={place.config}", style="cyan")
    for command, why in _PLAY:
        output.line(f"  {command:<34} # {why}")
    psql = f"PGPASSFILE={place.passfile} {place.postgres.bin('psql')} -h 127.0.0.1 -p {place.postgres.port} -U postgres"
    output.line(f"  {psql} shop   # or mart")
    output.line(f"  edit {place.folder}/shop/projections.py   # then rebuild")
    output.line("Ctrl-C here stops the servers and removes all files.", style="bold")
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
