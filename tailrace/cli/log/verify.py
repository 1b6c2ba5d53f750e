"""``tailrace log verify``: is the log what was written?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.invocation import Invocation, invocation_of
from tailrace.eventstore.errors import DifferenceFound, manual_page
from tailrace.terminal import count, size

if TYPE_CHECKING:
    from tailrace.eventstore.integrity.findings import VerificationResult


def verify(
    context: typer.Context,
    topics: Annotated[list[str] | None, typer.Argument(help="Default: all.", show_default=False)] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only the catalog, and whether files are there; reads no content.")
    ] = False,
    archives: Annotated[
        bool, typer.Option("--archives", help="Also the files that retention put into archives.")
    ] = False,
) -> int:
    """Check the log itself: every checksum, hash and sum, every file and offset. 4 when something is wrong.

    Safe while capture and upkeep run. It names what is damaged and changes nothing.
    """
    from tailrace.eventstore.model.topic import TopicId

    invocation = invocation_of(context)
    selected = [TopicId.parse(topic) for topic in topics or ()]
    with invocation.store() as store, invocation.output.progress("verifying the log") as progress:
        found = store.verify(selected, quick=quick, archives=archives, report=progress.say)
    _print_findings(invocation, found)
    return 0 if found.clean else DifferenceFound.exit_code


def _print_findings(invocation: Invocation, result: VerificationResult) -> None:
    """The findings, then what was checked."""
    output = invocation.output
    if output.json:
        output.document({**asdict(result), "clean": result.clean})
        return
    for finding in result.findings:
        output.line(f"{finding.problem.upper():<8} {finding.place}: {finding.detail}", style="bold red")
    checked = f"{count(result.topics, 'topic')}, {count(result.files, 'file')}"
    if not result.quick:
        checked += f", {size(result.bytes)} read"
    if result.unregistered:
        checked += f"; {count(result.unregistered, 'file')} that no epoch names yet, or any more"
    output.line(f"up to epoch {result.epoch:,}: {checked}")
    if result.redactions:
        output.line(
            f"{count(result.redactions, 'redaction')}: `tailrace log redactions` shows what was erased"
        )
    if result.clean:
        output.line(
            "the log is what was written" if not result.quick else "nothing is missing", style="green"
        )
        return
    output.line(f"{count(len(result.findings), 'finding')}; nothing was changed", style="bold red")
    output.line(
        "  hint: put back what is damaged or missing from a backup, then verify again; what the source still holds"
        f" can be read again: tailrace source snapshot; see {manual_page('operations/running.md', 'Restoring')}",
        style="bold red",
    )
