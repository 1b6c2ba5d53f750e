"""What a step of a generation is computed of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from tailrace.eventstore.metadata.projection_steps import DerivedRun
from tailrace.eventstore.model.position import Cut
from tailrace.eventstore.state.input import DECODED
from tailrace.projections.analysis.followed import followed
from tailrace.projections.compute.engine import Engine, EngineName, SailEngine, SparkEngine, SparkOverFiles
from tailrace.projections.context import ProjectionContext
from tailrace.projections.definition.model import Input, Projection, Result
from tailrace.projections.generations.generation import Generation
from tailrace.projections.generations.key_set import KeySet
from tailrace.projections.generations.result_input import results_at


@dataclass(frozen=True, slots=True)
class RowsOfKeys:
    """All ``rows`` of a result that have these ``keys``, which are those that may be others than at epoch ``since``."""

    keys: KeySet
    rows: pa.Table
    since: int


@dataclass(frozen=True, slots=True)
class Partial:
    """Partial results of a definition at a position: ``over`` reads them, of these ``generations``, and gives the
    definition's rows, ``on`` which engine; where it only ``picks`` columns, none is needed. Their files have so many
    ``stored_bytes``. For this step so many ``keys`` were computed anew (None: all), which took ``seconds``.
    ``changed``: those that are others than at the step before, where the rows of the definition follow from these
    alone. ``give_up``, with the reason, has the next steps do without."""

    over: Projection
    generations: Mapping[str, int]
    stored_bytes: int
    keys: int | None
    seconds: float
    on: EngineName
    picks: Mapping[str, str]
    changed: RowsOfKeys | None
    give_up: Callable[[str], None]

    def is_small(self, most: int) -> bool:
        """Whether they take less memory than ``most`` bytes."""
        return self.stored_bytes * DECODED < most


@dataclass
class Asked:
    """What the catalog said of a generation when it was first asked, for all that is made of one step."""

    held: Generation | None = None
    last: tuple[DerivedRun | None] | None = None


@dataclass(frozen=True)
class StepInput:
    """A generation, the definition it is refreshed by, the position that its next step leads to, and what computes
    it: ``on`` which engine, and whether that reads the inputs from files of this machine, which projections share.
    ``here``: whether this process takes all rows of the result, without tasks.
    ``partial``: the partial results that it is computed of, where it is. ``read_by``: where these are partial results,
    the step over them."""

    ctx: ProjectionContext
    definition: Projection
    generation: Generation
    cut: Cut
    on: EngineName = "spark"
    from_files: bool = False
    here: bool = False
    partial: Partial | None = None
    read_by: StepInput | None = field(default=None, repr=False, compare=False)
    asked: Asked = field(default_factory=Asked, repr=False, compare=False)

    @cached_property
    def engine(self) -> Engine:
        if self.on == "sail":
            return SailEngine(self.ctx)
        return SparkOverFiles(self.ctx) if self.from_files else SparkEngine(self.ctx)

    @cached_property
    def projection(self) -> Projection:
        """The definition with what its inputs affect by the columns that they have when this is first asked."""
        return followed(self.ctx.store, self.definition)

    def note_in_vain(self) -> None:
        """Its keys were followed in vain, and are left out of the next refreshes. Not those of sums: these may follow
        the next changes whatever these were."""
        if self.definition.additive is None:
            self.ctx.in_vain.note(self.generation.projection)

    @property
    def label(self) -> str:
        """What it computes, for people: partial results have no name that they gave."""
        over = self.read_by
        return self.definition.name if over is None else f"partial results of {over.definition.name}"

    @property
    def held(self) -> Generation:
        """The generation as the catalog has it when this is first asked, with what was found out about it."""
        if self.asked.held is None:
            self.asked.held = self.ctx.generation(self.generation.projection, self.generation.number)
        return self.asked.held

    @property
    def last(self) -> DerivedRun | None:
        """The step before this one, as the catalog has it when this is first asked: another driver's is met by the
        commit."""
        if self.asked.last is None:
            self.asked.last = (self.ctx.store.steps.last(self.generation.projection, self.generation.number),)
        return self.asked.last[0]

    def results(self) -> dict[str, int]:
        """The generation of each result of another projection that is read at the position."""
        return results_at(
            self.ctx.store, self.definition, self.cut, self.ctx.computed_inputs(self.generation.pin)
        )

    @property
    def follows_log(self) -> bool:
        """False for a pinned generation and for a preview: each has one step alone."""
        return self.generation.pin is None and self.generation.preview is None


def source_of(source: Input) -> str:
    """The topic of an input, or the projection whose result it is, as plans name what changed."""
    return f"projection {source.projection}" if isinstance(source, Result) else source.topic_id.text
