"""``tailrace demo``: see ``tailrace.demo``."""

from __future__ import annotations

from typing import Annotated

import typer

from tailrace.cli.invocation import invocation_of


def demo(
    context: typer.Context,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running to play with, until Ctrl-C.")
    ] = False,
) -> None:
    """Show the main job end to end on embedded servers: explained, measured and checked."""
    from tailrace.demo.story import run_demo

    run_demo(invocation_of(context).output, keep=keep)
