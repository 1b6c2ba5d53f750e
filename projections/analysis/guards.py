"""Whether a projection may be refreshed incrementally: what speaks against it, in words for its author.

Three guards, each where it costs least: what is declared (always), what the plan says and what samples show (once for
each generation and version of its inputs' columns, ``samples``), and in every step an output of a key that is not
affected (``incremental``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.projections.analysis.analyse import analyse
from tailrace.projections.definition.lineage import lineage_of
from tailrace.projections.definition.model import Projection, ProjectionFailed

if TYPE_CHECKING:
    from tailrace.projections.context import ProjectionContext


def declared_against(projection: Projection) -> str | None:
    """What a projection's declaration alone says against following keys; None when nothing does."""
    lineage = lineage_of(projection)
    if not lineage.paths:
        return "no input says what it affects (affects=)"
    if not lineage.key:
        return "its inputs' affects have no column of the key in common"
    if projection.wants_now:
        return "its result depends on the time (now)"
    return None


def plan_says(ctx: ProjectionContext, projection: Projection) -> tuple[str | None, bool]:
    """What the plan of a projection's function says against following keys, None when nothing does; and whether it
    leaves out rows that have NULL for their key. Needs Spark."""
    try:
        analysis = analyse(ctx.spark, ctx.store, projection)
    except ProjectionFailed as error:
        return error.message, False
    return analysis.reason, analysis.never_null
