"""``tailrace source``: the databases that are captured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tailrace.cli.invocation import invocation_of
from tailrace.cli.source import kafka, repair, replay, retry, snapshot
from tailrace.status import source_status
from tailrace.terminal import size

if TYPE_CHECKING:
    from tailrace.eventstore.settings import SourceSettings

source_commands = typer.Typer(help="The databases that are captured.")
source_commands.command()(snapshot.snapshot)
source_commands.command()(repair.repair)
source_commands.command()(retry.retry)
source_commands.command()(replay.replay)
source_commands.command()(kafka.parked)
source_commands.command()(kafka.reread)


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
            invocation.output.document({"source": source, "kind": settings.kind, **_patterns(settings)})
        return
    rows = [
        (s.name, settings.kind, ", ".join(*_patterns(settings).values()), s.state, s.topics,
         "-" if s.behind_bytes is None else size(s.behind_bytes))
        for settings, s in found
    ]  # fmt: skip
    invocation.output.table(("source", "kind", "captures", "state", "topics", "server ahead by"), rows)


def _patterns(settings: SourceSettings) -> dict[str, tuple[str, ...]]:
    """What a source captures, under the name of its setting."""
    if settings.kind == "kafka":
        return {"topics": (*settings.topics, *settings.plain)}
    return {"tables": settings.tables}
