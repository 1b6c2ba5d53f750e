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
    kafka: Annotated[
        bool, typer.Option("--kafka", help="Show Kafka on both sides instead: what is published is captured.")
    ] = False,
) -> None:
    """Show the main job end to end on embedded servers: explained, measured and checked."""
    output = invocation_of(context).output
    if kafka:
        from tailrace.demo.kafka_story import run_kafka_demo

        run_kafka_demo(output, keep=keep)
        return
    from tailrace.demo.story import run_demo

    run_demo(output, keep=keep)
