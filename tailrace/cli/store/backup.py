"""``tailrace store backup`` and ``store hold``: copies of the log, made while everything runs."""

from __future__ import annotations

import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.invocation import invocation_of
from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.terminal import count, size


def backup(
    context: typer.Context,
    folder: Annotated[
        Path, typer.Argument(help="Where the copy goes; an earlier copy there is brought up to date.")
    ],
) -> None:
    """Copy the log into a folder: catalog, groups and every file that they need, while capture and upkeep run.

    For a catalog on Postgres use `store hold`.
    """
    from tailrace.eventstore.maintenance.move.backup import backup

    invocation = invocation_of(context)
    with invocation.store() as store, invocation.output.progress("backup") as progress:
        done = backup(store, folder, report=progress.say)
    if invocation.output.json:
        invocation.output.document({"folder": str(folder), **asdict(done)})
        return
    invocation.output.line(
        f"{folder} holds the log up to epoch {done.epoch:,}: {count(done.files, 'file')}, of which"
        f" {done.copied:,} ({size(done.bytes)}) were copied now",
        style="green",
    )


def hold(
    context: typer.Context,
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND…", help="A program that copies the catalog, then the segments."),
    ],
) -> None:
    """Run a command; until it ends, no file that the catalog names is removed."""
    invocation = invocation_of(context)
    with invocation.store() as store, store.pinned("store hold"):
        store.catalog.require_writable()  # elsewhere upkeep would not know of it
        try:
            code = subprocess.run(command, check=False).returncode
        except OSError as error:
            raise UsageError(
                f"{command[0]} cannot be run: {error.strerror}", hint="write store hold -- COMMAND ARGUMENT…"
            ) from None
    if code:
        raise OperatorError(
            f"{command[0]} ended with exit code {code}", hint="its copy is incomplete; see its output"
        )
