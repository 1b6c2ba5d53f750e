"""How a comparison of a sink with the log is printed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tailrace.cli.invocation import Invocation
from tailrace.cli.values import print_hidden_note, shown_part
from tailrace.eventstore import disclosure
from tailrace.terminal import count

if TYPE_CHECKING:
    from tailrace.projections.lifecycle.verify import Comparison, DifferentRow


def print_comparison(invocation: Invocation, comparison: Comparison) -> None:
    """One sink beside the log."""
    output = invocation.output
    if output.json:
        output.document(comparison_document(comparison))
        return
    name = f"{comparison.projection} g{comparison.generation}"
    sample = "" if comparison.seed is None else f" in a sample (--seed {comparison.seed})"
    sample += " by Sail" if comparison.engine == "sail" else ""
    if comparison.equal:
        rows = count(comparison.rows, "row") + (
            f", {comparison.expired:,} of them expired" if comparison.expired else ""
        )
        output.line(f"{name}: equals the log at epoch {comparison.epoch:,}{sample}, {rows}", style="green")
        return
    output.line(
        f"{name}: DIFFERS from the log at epoch {comparison.epoch:,}{sample}: {count(comparison.different, 'row')} with"
        f" other values, {comparison.only_in_log:,} missing in the sink, {comparison.only_in_sink:,} only in the sink",
        style="bold red",
    )
    print_samples(invocation, comparison.samples)
    if comparison.partial:
        output.line(
            f"  {count(comparison.partial, 'row')} of its partial results, by which it is refreshed, are not those of"
            f" the log: tailrace rebuild {comparison.projection} begins without them"
        )
    output.line(
        f"  hint: find out who else writes to the sink; tailrace rebuild {comparison.projection} makes it right"
    )


def comparison_document(comparison: Comparison) -> dict[str, object]:
    """One sink beside the log, for programs."""
    return {
        "projection": comparison.projection, "generation": comparison.generation, "epoch": comparison.epoch,
        "engine": comparison.engine, "rows": comparison.rows, "equal": comparison.equal,
        "only_in_log": comparison.only_in_log, "only_in_sink": comparison.only_in_sink,
        "different": comparison.different,
        "partial": comparison.partial, "seed": comparison.seed, "expired": comparison.expired,
        "samples": sample_documents(comparison.samples),
    }  # fmt: skip


def print_samples(invocation: Invocation, samples: Sequence[DifferentRow]) -> None:
    """Rows that differ, or how to see them."""
    for row in samples if disclosure.values_are_shown() else ():
        invocation.output.line(f"  {row.kind}: {row.key}")
        invocation.output.line(f"    expected: {_values(row.expected)}")
        invocation.output.line(f"    actual:   {_values(row.actual)}")
    print_hidden_note(invocation, "rows")


def _values(version: str | None) -> str:
    """A version of a row as a line."""
    if version is None:
        return "no row"
    values = json.loads(version)
    texts = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in values.items()
    }
    return ", ".join(f"{name}={text}" for name, text in texts.items()) or "a row of its key alone"


def sample_documents(samples: Sequence[DifferentRow]) -> list[dict[str, str | None]]:
    """Rows that differ, for programs."""
    return [
        {
            "kind": row.kind,
            "key": shown_part(row.key),
            "expected": shown_part(row.expected),
            "actual": shown_part(row.actual),
        }
        for row in samples
    ]
