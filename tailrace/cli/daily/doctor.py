"""``tailrace doctor``: the checks of ``tailrace.doctor.doctor`` as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

from tailrace.cli.invocation import invocation_of
from tailrace.eventstore.errors import OperatorError, TailraceError
from tailrace.terminal import Output

if TYPE_CHECKING:
    from tailrace.config.load import Configuration
    from tailrace.doctor.check import Check


STYLES: Mapping[str, str] = {"ok": "", "warn": "yellow", "fail": "bold red"}


def doctor(context: typer.Context) -> int:
    """Check what init, capture and run will need, and say what to do."""
    from tailrace.doctor.doctor import examine

    invocation = invocation_of(context)
    configuration: Configuration | TailraceError
    try:
        configuration = invocation.configuration
    except TailraceError as error:
        configuration = error
    checks: list[Check] = []
    with invocation.output.progress("checking") as progress:
        for check in examine(configuration):
            checks.append(check)
            progress.watch(check.subject)
    failed = sum(check.verdict == "fail" for check in checks)
    warned = sum(check.verdict == "warn" for check in checks)
    if invocation.output.json:
        invocation.output.document({"checks": checks, "failed": failed, "warned": warned})
    else:
        _print(invocation.output, checks)
        invocation.output.line(f"{len(checks)} checks: {failed} failed, {warned} to look at")
    return OperatorError.exit_code if failed else 0


def _print(output: Output, checks: list[Check]) -> None:
    width = max(len(check.subject) for check in checks)
    for check in checks:
        output.line(
            f"{check.verdict:<4}  {check.subject:<{width}}  {check.found}", style=STYLES[check.verdict]
        )
        if check.remedy:
            output.line(f"{'':<4}  {'':<{width}}  → {check.remedy}")
