"""``tailrace verify``: sinks against the log, or one of both against the source."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.daily.verify_against_source import verify_against_source
from tailrace.cli.daily.verify_output import print_comparison
from tailrace.cli.daily.verify_source import verify_sources
from tailrace.cli.errors import report, worst_code
from tailrace.cli.invocation import Invocation, invocation_of
from tailrace.cli.projection.context import MasterOption, projection_context, select_projections
from tailrace.eventstore.errors import DifferenceFound, TailraceError, UsageError

if TYPE_CHECKING:
    from tailrace.projections.compute.engine import EngineName


def verify(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Projections, or topics with --source. Default: all.", show_default=False),
    ] = None,
    source: Annotated[
        bool, typer.Option("--source", help="Compare topics with the source's tables.")
    ] = False,
    against_source: Annotated[
        bool,
        typer.Option(
            "--against-source",
            help="Also compare projections in SQL with their own queries, run in the source.",
        ),
    ] = False,
    sample: Annotated[
        int | None,
        typer.Option("--sample", min=1, metavar="N", help="Compare about N random keys of each projection."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, help="Take the same sample as the run that printed this seed."),
    ] = None,
    witness: Annotated[
        bool,
        typer.Option(
            "--witness", help="Also compare with rows that Sail computes, so that Spark is not its own proof."
        ),
    ] = False,
    master: MasterOption = None,
) -> int:
    """Prove that sinks equal the log; with --source, that the log equals its source; with --against-source, that a
    projection means what its query means in the source. 4 when they differ."""
    invocation = invocation_of(context)
    if source and against_source:
        raise UsageError(
            "--source is about topics, --against-source about projections", hint="run one after the other"
        )
    if (source or against_source) and (sample or seed is not None or witness):
        raise UsageError(
            "--sample, --seed and --witness are for a sink beside the log",
            hint="leave them out, or --source and --against-source",
        )
    if seed is not None and not sample:
        raise UsageError("--seed says which sample, not how large", hint="add --sample N")
    if source:
        return verify_sources(invocation, names)
    if against_source:
        return verify_against_source(invocation, names, master)
    return verify_projections(invocation, names, sample, seed, master, witness=witness)


def verify_projections(
    invocation: Invocation,
    names: list[str] | None,
    sample: int | None = None,
    seed: int | None = None,
    master: str | None = None,
    *,
    witness: bool = False,
) -> int:
    """Recompute each projection in full and compare both ways, with a ``witness`` by both engines; the exit code. One
    that cannot be compared does not stop the others, and a difference decides the exit code before an error."""
    engines: list[EngineName] = ["spark", "sail"] if witness else ["spark"]
    from tailrace.projections.lifecycle import verify

    codes = {0}
    with projection_context(invocation, "verify", master=master) as projections:
        wanted = select_projections(invocation, projections, names)
        codes.add(wanted.report(invocation))
        for name, engine in product(wanted.names, engines):
            try:
                comparison = verify.verify(projections, name, sample=sample, seed=seed, on=engine)
            except TailraceError as error:
                codes.add(report(error, invocation.output, verbose=invocation.verbose))
                continue
            print_comparison(invocation, comparison)
            if not comparison.equal:
                codes.add(DifferenceFound.exit_code)
    return DifferenceFound.exit_code if DifferenceFound.exit_code in codes else worst_code(codes)
