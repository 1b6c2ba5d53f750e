"""Values of rows in results: hidden unless the command is given ``--show-values``."""

from __future__ import annotations

from tailrace.cli.invocation import Invocation
from tailrace.eventstore import disclosure


def shown_part(part: str | None) -> str | None:
    """A part of a key, or what stands for it where values are hidden."""
    return disclosure.hide_text(part) if part is not None else None


def print_hidden_note(invocation: Invocation, what: str = "keys") -> None:
    """How to see the values that were left out; nothing where they are shown."""
    if not disclosure.values_are_shown():
        shown = "some of these rows" if what == "rows" else f"the {what} of some of these rows"
        invocation.output.line(f"  {shown}: run it again with --show-values")
