"""``tailrace source``: the databases that are captured."""

from __future__ import annotations

import typer

from tailrace.cli.invocation import invocation_of
from tailrace.cli.source import repair, replay, retry, snapshot
from tailrace.status import source_status
from tailrace.terminal import size

source_commands = typer.Typer(help="The databases that are captured.")
source_commands.command()(snapshot.snapshot)
source_commands.command()(repair.repair)
source_commands.command()(retry.retry)
source_commands.command()(replay.replay)


@source_commands.command("list")
def list_sources(context: typer.Context) -> None:
    """List configured sources, with what they capture and how far they are."""
    invocation = invocation_of(context)
    with invocation.store() as store:
        found = [
            (settings, source_status(store, name, settings)) for name, settings in invocation.sources(None)
        ]
    if invocation.output.json:
        for settings, source in found:
            invocation.output.document({"source": source, "kind": settings.kind, "tables": settings.tables})
        return
    rows = [
        (s.name, settings.kind, ", ".join(settings.tables), s.state, s.topics,
         "-" if s.behind_bytes is None else size(s.behind_bytes))
        for settings, s in found
    ]  # fmt: skip
    invocation.output.table(("source", "kind", "tables", "state", "topics", "server ahead by"), rows)
