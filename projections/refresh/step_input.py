"""What a step of a generation is computed of."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.eventstore.model.position import Cut
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Projection
from tailrace.projections.generations.generation import Generation
from tailrace.projections.generations.result_input import results_at


@dataclass(frozen=True, slots=True)
class StepInput:
    """A generation, the definition it is refreshed by, and the position that its next step leads to."""

    ctx: ProjectionContext
    projection: Projection
    generation: Generation
    cut: Cut

    def results(self) -> dict[str, int]:
        """The generation of each result of another projection that is read at the position."""
        return results_at(
            self.ctx.store, self.projection, self.cut, self.ctx.computed_inputs(self.generation.pin)
        )

    @property
    def follows_log(self) -> bool:
        """False for a pinned generation and for a preview: each has one step alone."""
        return self.generation.pin is None and self.generation.preview is None
