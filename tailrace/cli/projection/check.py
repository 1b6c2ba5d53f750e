"""How ``tailrace projection check`` tells what it found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.cli.invocation import Invocation

if TYPE_CHECKING:
    from tailrace.projections.analysis.check import CheckReport
    from tailrace.projections.definition.findings import DefinitionFinding
    from tailrace.projections.refresh.plan import Plan


def print_report(invocation: Invocation, examined: CheckReport, planned: Plan | None) -> None:
    """One projection. ``planned`` is what its next refresh would do."""
    if invocation.output.json:
        invocation.output.document(_document(examined, planned))
        return
    output = invocation.output
    mark, style = ("ok  ", "") if examined.ok else ("fail", "bold red")
    where = f" ({examined.place})" if examined.place != examined.projection else ""
    output.line(f"{mark}  {examined.projection}{where}{_verdict(examined)}", style=style)
    for finding in examined.findings:
        output.line(f"  {finding.level}  {_with_place(finding, examined)}", style=_STYLES[finding.level])
        _print_hint(invocation, finding)
    if examined.incremental is False:
        output.line("  each refresh computes everything, because")
        for finding in examined.reasons:
            output.line(f"    - {_with_place(finding, examined)}")
            _print_hint(invocation, finding)
    for note in examined.notes:
        output.line(f"  note  {note}")
    for remark in examined.remarks:
        output.line(f"  note  sink: {remark}")
    if planned is not None:
        output.line(f"  next refresh: {planned.kind}: {planned.reason}")


_STYLES = {"fail": "red", "warn": "yellow"}


def _verdict(examined: CheckReport) -> str:
    if examined.incremental is None:
        return ""
    if not examined.incremental:
        return ": full"
    whole = " or ".join(examined.whole)
    return f": incremental, but full when {whole} changes (no affects=)" if whole else ": incremental"


def _with_place(finding: DefinitionFinding, examined: CheckReport) -> str:
    """With its place, where that is not the projection's own."""
    return finding.what if finding.place == examined.place else f"{finding.place}: {finding.what}"


def _print_hint(invocation: Invocation, finding: DefinitionFinding) -> None:
    if finding.hint:
        invocation.output.line(f"        → {finding.hint}")


def _document(examined: CheckReport, planned: Plan | None) -> dict[str, object]:
    verdict = {True: "incremental", False: "full", None: None}[examined.incremental]
    return {
        "projection": examined.projection,
        "place": examined.place,
        "ok": examined.ok,
        "findings": [_finding_document(finding) for finding in examined.findings],
        "verdict": verdict,
        "reasons": [_finding_document(finding) for finding in examined.reasons],
        "full_when_changed": list(examined.whole),
        "remarks": list(examined.remarks),
        "notes": list(examined.notes),
        "next": None if planned is None else {"kind": planned.kind, "reason": planned.reason},
    }


def _finding_document(finding: DefinitionFinding) -> dict[str, object]:
    return {
        "level": finding.level,
        "what": finding.what,
        "hint": finding.hint,
        "place": finding.place,
        "input": finding.input or None,
        "column": finding.column or None,
    }
