"""``tailrace store``: the log as a whole."""

from __future__ import annotations

from typing import Annotated

import typer

from tailrace.cli.init import catalog_label
from tailrace.cli.invocation import NOTHING_TO_DO, of
from tailrace.cli.output import when

app = typer.Typer(help="The log as a whole.")


@app.command()
def info(context: typer.Context) -> None:
    """Show where the log lives and how far it goes."""
    invocation = of(context)
    with invocation.store() as store:
        head = store.head()
        document = {
            "store": invocation.settings.store.name,
            "log_id": store.log_id,
            "catalog": catalog_label(invocation),
            "segments": str(invocation.settings.store.segments),
            "topics": len(store.topics()),
            "epoch": head.epoch if head else 0,
            "commit_ts": head.commit_ts if head else None,
        }
    if invocation.output.json:
        invocation.output.document(document)
        return
    document["commit_ts"] = when(head.commit_ts) if head else None
    invocation.output.table(("", ""), [(name, str(value)) for name, value in document.items()])


@app.command()
def seal(
    context: typer.Context,
    up_to: Annotated[
        int | None, typer.Option("--up-to", metavar="EPOCH", help="Default: the newest.")
    ] = None,
    detailed_exitcode: Annotated[
        bool, typer.Option("--detailed-exitcode", help="3 when there was nothing to seal.")
    ] = False,
) -> int:
    """Turn many small epochs into Parquet files per topic."""
    invocation = of(context)
    with invocation.store() as store, invocation.output.progress("sealing"):
        count = store.seal(up_to)
    invocation.output.line(f"sealed {count:,} epochs" if count else "nothing to seal")
    if invocation.output.json:
        invocation.output.document({"sealed_epochs": count})
    return NOTHING_TO_DO if detailed_exitcode and not count else 0


@app.command()
def collect(context: typer.Context) -> None:
    """Remove files that ended captures and loads left unregistered."""
    invocation = of(context)
    with invocation.store() as store, invocation.output.progress("collecting"):
        count = store.collect_orphans()
    invocation.output.line(f"removed {count:,} orphaned files")
    if invocation.output.json:
        invocation.output.document({"removed_files": count})
