"""How ``tailrace projection check`` tells what it found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.cli.invocation import Invocation

if TYPE_CHECKING:
    from tailrace.projections.analysis.check import CheckReport
    from tailrace.projections.definition.findings import DefinitionFinding
    from tailrace.projections.generations.generation import Parity
    from tailrace.projections.refresh.plan import Plan


def print_report(
    invocation: Invocation, examined: CheckReport, planned: Plan | None, parity: Parity | None = None
) -> None:
    """One projection. ``planned`` is what its next refresh would do, ``parity`` whether Sail gives the rows of its live
    generation as Spark does (None: they were not compared)."""
    if invocation.output.json:
        invocation.output.document(_document(examined, planned, parity))
        return
    output = invocation.output
    mark, style = ("ok  ", "") if examined.ok else ("fail", "bold red")
    where = f" ({examined.place})" if examined.place != examined.projection else ""
    output.line(f"{mark}  {examined.projection}{where}{describe_verdict(examined)}", style=style)
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
    if parity is not None:
        output.line(f"  engine: {parity.words}")
    if planned is not None:
        output.line(f"  next refresh: {planned.kind}: {describe_reason(planned)}")


_STYLES = {"fail": "red", "warn": "yellow"}


def describe_verdict(examined: CheckReport) -> str:
    """How a projection is refreshed, as said behind its name."""
    if examined.incremental is None:
        return ""
    if not examined.incremental:
        return ": full"
    whole = f"{' or '.join(examined.whole)} changes (no affects=)" if examined.whole else ""
    if examined.subqueries:
        moving = f"the value of {' or '.join(examined.subqueries)} changes"
        return f": full when {' or '.join(filter(None, (whole, moving)))}, incremental otherwise"
    return f": incremental, but full when {whole}" if whole else ": incremental"


def describe_reason(planned: Plan) -> str:
    """Why a refresh would do so, and what only the rows will show."""
    from tailrace.projections.refresh.plan import Incremental

    subqueries = planned.subqueries if isinstance(planned, Incremental) else ()
    condition = f"; full when the value of {' or '.join(subqueries)} changed too" if subqueries else ""
    return f"{planned.reason}{condition}"


def _with_place(finding: DefinitionFinding, examined: CheckReport) -> str:
    """With its place, where that is not the projection's own."""
    return finding.what if finding.place == examined.place else f"{finding.place}: {finding.what}"


def _print_hint(invocation: Invocation, finding: DefinitionFinding) -> None:
    if finding.hint:
        invocation.output.line(f"        → {finding.hint}")


def _document(examined: CheckReport, planned: Plan | None, parity: Parity | None) -> dict[str, object]:
    verdict = {True: "incremental", False: "full", None: None}[examined.incremental]
    return {
        "projection": examined.projection,
        "place": examined.place,
        "ok": examined.ok,
        "findings": [_finding_document(finding) for finding in examined.findings],
        "verdict": verdict,
        "reasons": [_finding_document(finding) for finding in examined.reasons],
        "full_when_changed": list(examined.whole),
        "full_when_value_changed": list(examined.subqueries),
        "remarks": list(examined.remarks),
        "notes": list(examined.notes),
        "parity": parity,
        "next": None if planned is None else {"kind": planned.kind, "reason": describe_reason(planned)},
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
