"""``tailrace log verify``: is the log what was written?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.invocation import Invocation, invocation_of
from tailrace.eventstore.errors import DifferenceFound, UsageError, manual_page
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
    head: Annotated[
        str | None,
        typer.Option(
            "--head", metavar="EPOCH:HASH", help="Also that this epoch, kept elsewhere, is unchanged."
        ),
    ] = None,
) -> int:
    """Check the log itself: every checksum, hash and sum, every file and offset. 4 when something is wrong.

    Safe while capture and upkeep run. It names what is damaged and changes nothing.
    """
    from tailrace.eventstore.model.topic import TopicId

    invocation = invocation_of(context)
    selected = [TopicId.parse(topic) for topic in topics or ()]
    kept = None if head is None else _parse_head(head)
    with invocation.store() as store, invocation.output.progress("verifying the log") as progress:
        found = store.verify(selected, quick=quick, archives=archives, head=kept, report=progress.say)
    _print_findings(invocation, found)
    return 0 if found.clean else DifferenceFound.exit_code


def _parse_head(text: str) -> tuple[int, str]:
    epoch, _, digest = text.partition(":")
    if not (epoch.isascii() and epoch.isdigit() and len(digest) == 64):
        raise UsageError(
            f"{text!r} is no head of a log", hint="write EPOCH:HASH, as `tailrace log verify` prints it"
        )
    return int(epoch), digest


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
    output.line(f"head {result.epoch}:{result.hash}")
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
