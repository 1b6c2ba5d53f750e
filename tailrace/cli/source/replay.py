"""``tailrace source replay``: a recording is decoded into a store of its own, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.invocation import invocation_of
from tailrace.eventstore.errors import UsageError
from tailrace.terminal import count


def replay(
    context: typer.Context,
    recording: Annotated[
        Path, typer.Argument(help="What `tailrace capture --record` wrote.", show_default=False)
    ],
    into: Annotated[
        Path, typer.Option("--into", metavar="FOLDER", help="Where the new store goes.", show_default=False)
    ],
) -> int:
    """Decode a recording again, into a new store in FOLDER. Needs no server.

    The store holds the recorded changes under the schemas of their day, and no rows from before the recording.
    """
    from tailrace.cdc.recording.file import Recording
    from tailrace.cdc.replay import replay
    from tailrace.eventstore.settings import StoreSettings
    from tailrace.eventstore.store import Store

    output = invocation_of(context).output
    source_file = Recording(recording)
    configuration = into / "tailrace.toml"
    if configuration.exists():
        raise UsageError(f"{into} has a store already", hint="name a new folder")
    with Store.open(StoreSettings(name="replay"), create=True, root=into) as store:
        result = replay(source_file, store)
    configuration.write_text('[store]\nname = "replay"\n', encoding="utf-8")
    if output.json:
        output.document(
            {
                "source": result.source,
                "transactions": result.transactions,
                "changes": result.changes,
                "epochs": result.epochs,
                "withheld": result.withheld,
                "topics": sorted(topic.text for topic in result.topics),
            }
        )
        return 0
    output.line(
        f"{count(result.changes, 'change')} of {count(result.transactions, 'transaction')} in "
        f"{count(len(result.topics), 'topic')}",
        style="green",
    )
    if result.withheld:
        output.note(
            f"{count(result.withheld, 'message')} withheld when recorded: values that must be protected"
        )
    output.note(f"look at it in {into}: tailrace topic list, tailrace log show")
    return 0
