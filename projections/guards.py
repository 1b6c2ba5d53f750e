"""Whether a projection may be refreshed incrementally: what speaks against it, in words for its author."""

from __future__ import annotations

from typing import TYPE_CHECKING

from projections.lineage import lineage_of
from projections.model import Projection

if TYPE_CHECKING:
    from projections.context import ProjectionContext
    from projections.generation import Generation


def incremental_verdict(ctx: ProjectionContext, projection: Projection, generation: Generation) -> str | None:
    """The reason why every refresh of a generation has to compute all of it; None when there is none.

    Starts no Spark.
    """
    return declared_against(projection)


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
