"""``tailrace verify --against-source``: projections against their own queries, run in the source."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from tailrace.cli.daily.verify_output import (
    comparison_document,
    print_comparison,
    print_samples,
    sample_documents,
)
from tailrace.cli.errors import report, worst_code
from tailrace.cli.invocation import Invocation
from tailrace.cli.projection.context import projection_context, select_projections
from tailrace.eventstore.errors import DifferenceFound, TailraceError, UsageError
from tailrace.eventstore.model.position import format_lsn
from tailrace.terminal import count

if TYPE_CHECKING:
    from tailrace.cdc.repair.source_query import SourceAtLog
    from tailrace.eventstore.model.topic import TopicId
    from tailrace.projections.context import ProjectionContext
    from tailrace.projections.lifecycle.against_source import SourceComparison
    from tailrace.projections.lifecycle.verify import Comparison


def verify_against_source(invocation: Invocation, names: list[str] | None, master: str | None) -> int:
    """Compare each projection with its query in the source, and its sink with the log; the exit code. Without names,
    those that cannot be compared so are told. One that fails does not stop the others, and a difference decides the
    exit code before an error."""
    from tailrace.projections.lifecycle import verify
    from tailrace.projections.lifecycle.against_source import NotComparable, compare_with_source, source_of

    codes = {0}
    with projection_context(invocation, "verify --against-source", master=master) as projections:
        wanted = select_projections(invocation, projections, names)
        codes.add(wanted.report(invocation))
        compared = 0
        for name in wanted.names:
            try:
                source_of(projections, projections.projection(name))
                sink = verify.verify(projections, name)
                found = compare_with_source(projections, name, partial(_open, invocation, projections, name))
            except NotComparable as error:
                if names:
                    codes.add(report(error, invocation.output, verbose=invocation.verbose))
                else:
                    invocation.output.note(f"not compared: {error.message}", style="yellow")
                continue
            except TailraceError as error:
                codes.add(report(error, invocation.output, verbose=invocation.verbose))
                compared += 1
                continue
            compared += 1
            _print(invocation, found, sink)
            if not (found.equal and sink.equal):
                codes.add(DifferenceFound.exit_code)
        if not names and not compared and not wanted.errors:
            raise UsageError(
                "no projection can be compared with its query in the source", hint="see `tailrace verify`"
            )
    return DifferenceFound.exit_code if DifferenceFound.exit_code in codes else worst_code(codes)


def _open(
    invocation: Invocation,
    projections: ProjectionContext,
    projection: str,
    name: str,
    topics: Sequence[TopicId],
    time_zone: str,
) -> AbstractContextManager[SourceAtLog]:
    from tailrace.cdc.repair.position import Patience
    from tailrace.cdc.repair.source_query import source_at_log

    _, settings = invocation.postgres_source(name, "a comparison with the source")
    patience = Patience(say=lambda text: projections.report(text, 0, None, ""))
    what = f"the query of projection {projection!r}"
    return source_at_log(projections.store, name, settings, topics, what, patience, time_zone)


def _print(invocation: Invocation, found: SourceComparison, sink: Comparison) -> None:
    output = invocation.output
    if output.json:
        document = {
            "projection": found.projection, "generation": found.generation, "source": found.source,
            "lsn": format_lsn(found.lsn), "epoch": found.epoch, "rows": found.rows,
            "equal": found.equal and sink.equal, "only_in_source": found.only_in_source,
            "only_in_projection": found.only_in_projection, "different": found.different,
            "samples": sample_documents(found.samples), "sink": comparison_document(sink),
        }  # fmt: skip
        output.document(document)
        return
    name = f"{found.projection} g{found.generation}"
    where = f"its query in {found.source} at {format_lsn(found.lsn)}"
    if found.equal:
        output.line(f"{name}: equals {where}, {count(found.rows, 'row')}", style="green")
    else:
        output.line(
            f"{name}: DIFFERS from {where}: {count(found.different, 'row')} with other values,"
            f" {found.only_in_source:,} only in the source, {found.only_in_projection:,} only in the projection",
            style="bold red",
        )
        print_samples(invocation, found.samples)
        output.line(
            "  hint: the query means something else there: mend it with the help of tailrace projection check; if"
            " `tailrace verify --source` finds differences, too, the log is not what the source is"
        )
    print_comparison(invocation, sink)
