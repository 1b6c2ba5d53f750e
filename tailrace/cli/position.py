"""A position of the log as it is given on the command line."""

from __future__ import annotations

from typing import overload

from tailrace.cli.invocation import Invocation
from tailrace.eventstore.errors import UsageError


@overload
def fixed(invocation: Invocation, option: str, text: str) -> str: ...
@overload
def fixed(invocation: Invocation, option: str, text: None) -> None: ...
def fixed(invocation: Invocation, option: str, text: str | None) -> str | None:
    """The position in a form that does not depend on now, nor on a zone. What was assumed for that is said. What is no
    position of the log stays as it is."""
    from tailrace.eventstore.log.as_of import absolute

    if text is None:
        return None
    try:
        found = absolute(text)
    except UsageError:
        return text
    if found != text.strip():
        invocation.output.note(f"{option} {text} is taken as {found} (UTC)")
    return found
