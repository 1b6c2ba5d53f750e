"""``tailrace log archives``: where rows are that retention took out of the log."""

from __future__ import annotations

from typing import Annotated

import typer

from tailrace.cli.invocation import invocation_of
from tailrace.terminal import count, size


def archives(
    context: typer.Context,
    topics: Annotated[list[str] | None, typer.Argument(help="Default: all.", show_default=False)] = None,
    gone: Annotated[
        str | None,
        typer.Option(
            "--gone",
            metavar="ARCHIVE",
            help="Forget an archive that no longer exists, with its files and unfinished copies.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """List the archives that retention copied rows to, with unfinished copies.

    Upkeep removes unfinished copies once their archive is in reach, whether or not settings still name it.
    """
    from tailrace.eventstore.maintenance.retention.archives import archives, forget

    invocation = invocation_of(context)
    output = invocation.output
    with invocation.store() as store:
        if gone is not None:
            invocation.confirm(f"forget everything that was archived in {gone}")
            known = forget(store, gone)
            output.line(
                f"forgot {count(known.files, 'file')} ({count(known.rows, 'row')}) and"
                f" {count(known.unfinished, 'unfinished file')} in {known.place}, of {', '.join(known.topics)}"
            )
            if output.json:
                output.document(known)
            return
        found = archives(store, [store.topic(name).id for name in topics or ()])
    if output.json:
        for each in found:
            output.document(each)
        return
    if not found:
        output.line("nothing was archived")
        return
    rows = [
        (
            each.place,
            ", ".join(each.topics),
            f"{each.files:,}",
            f"{each.rows:,}",
            size(each.bytes),
            each.unfinished,
        )
        for each in found
    ]
    output.table(("archive", "topics", "files", "rows", "bytes", "unfinished"), rows)
