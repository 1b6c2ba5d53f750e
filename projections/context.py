"""What all work on projections needs: the store, the settings, the definitions, and Spark.

The first use of ``spark`` starts it. Planning, applying, promoting and collecting start no JVM.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from tailrace.eventstore.errors import OperatorError, TailraceError, UsageError
from tailrace.eventstore.metadata.generations import GenerationInfo
from tailrace.eventstore.metadata.projection_steps import StepsExtent
from tailrace.eventstore.model.info import EpochInfo
from tailrace.eventstore.model.position import Fence
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.segment.kept_answers import KeptAnswers
from tailrace.projections.definition.findings import did_you_mean
from tailrace.projections.definition.fingerprint import fingerprint
from tailrace.projections.definition.load import BrokenProject
from tailrace.projections.definition.model import Projection, Stage
from tailrace.projections.generations.generation import Generation, Pin
from tailrace.projections.round.builds import Builds
from tailrace.projections.round.files import RoundFiles
from tailrace.projections.round.kept_rows import KeptRows
from tailrace.projections.round.kept_sums import KeptSums
from tailrace.projections.round.plans import KeptPlans
from tailrace.projections.sinks.contract import Sink, Target
from tailrace.projections.sinks.open import open_sink
from tailrace.projections.sinks.record import SinkClasses
from tailrace.projections.sinks.specs import SinkSpec
from tailrace.projections.spark.connect import connect_session
from tailrace.projections.spark.masters import is_connect, parallelism_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.eventstore.settings import Settings
    from tailrace.eventstore.store import Store


class Report(Protocol):
    """Shows progress: ``done`` of ``total`` (None: unknown) ``unit`` of a step of one projection's work."""

    def __call__(self, step: str, done: int, total: int | None, unit: str) -> None: ...


class InVain:
    """Projections whose affected keys had rows of too much memory, or took longer to be found than everything took to
    be computed. Their keys are not followed in the next refreshes: nine, and twice as many each time that it was in
    vain again."""

    FIRST, MOST = 9, 1000

    def __init__(self) -> None:
        self._left: dict[str, int] = {}
        self._waited: dict[str, int] = {}

    def is_to_be_left_out(self, name: str) -> bool:
        """Whether keys are not followed in this refresh, which is counted."""
        left = self._left.get(name, 0)
        self._left[name] = max(left - 1, 0)
        return left > 0

    def note(self, name: str) -> None:
        """It was in vain."""
        before = self._waited.get(name)
        self._waited[name] = self.FIRST if before is None else min(2 * before, self.MOST)
        self._left[name] = self._waited[name]


_Seen = TypeVar("_Seen")


class Believed(Generic[_Seen]):
    """What was seen of generations in their sinks, each for half a minute by ``clock``; of a projection only what was
    seen last, as another generation may have taken its place."""

    SECONDS = 30.0

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[int, _Seen, float]] = {}

    def note(self, generation: Generation, seen: _Seen) -> None:
        self._seen[generation.projection] = generation.number, seen, self._clock()

    def forget(self, generation: Generation) -> None:
        self._seen.pop(generation.projection, None)

    def get(self, generation: Generation) -> _Seen | None:
        """None for what was not seen, or too long ago."""
        number, seen, at = self._seen.get(generation.projection, (0, None, 0.0))
        return seen if number == generation.number and self._clock() - at < self.SECONDS else None


@dataclass(slots=True)
class WitnessTime:
    """Seconds that looks of a second engine may take (``saved``), and what the next one is taken to cost: at first the
    start of Spark."""

    saved: float = 0.0
    cost: float = 10.0


def report_nothing(step: str, done: int, total: int | None, unit: str) -> None:
    """Reports nothing."""


class ProjectionContext:
    """One process's view of its projections. ``projections`` lacks those whose code is gone or broken (``broken`` says
    which): their generations can still be promoted, rolled back and dropped. ``clock``, in seconds, measures steps.
    ``take_over``: what other stores have in the sinks may be replaced and dropped."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        projections: Mapping[str, Projection],
        *,
        broken: BrokenProject = BrokenProject(),  # noqa: B008 it is immutable
        report: Report = report_nothing,
        clock: Callable[[], float] = time.monotonic,
        take_over: bool = False,
    ) -> None:
        self.store = store
        self.settings = settings
        self.projections = dict(projections)
        self.broken = broken
        self.report = report
        self.clock = clock
        self.take_over = take_over
        # By projection the generations whose applied steps are all on record, as far as this process knows.
        self.on_record: dict[str, set[int]] = {}
        self.in_vain = InVain()
        # By the names of partial results; None where there are none.
        self.stages: dict[str, Stage | None] = {}
        self.witness_time = WitnessTime()
        self.builds = Builds()
        self.round_files = RoundFiles()
        self.kept_plans = KeptPlans()
        self.kept_rows = KeptRows(
            settings.projections.kept_rows_bytes, settings.projections.incremental_bytes
        )
        self.kept_sums = KeptSums(settings.projections.incremental_bytes, clock)
        self.round_rows = KeptAnswers(settings.projections.incremental_bytes)
        self._spark: SparkSession | None = None
        self._fingerprints: dict[str, str] = {}
        # By projection and generation what was counted of its steps when they were last counted, and those since.
        self.held_steps: dict[tuple[str, int], StepsExtent] = {}
        # What sinks were seen to hold: that readers see a generation, and its fence.
        self.shown = Believed[bool](clock)
        self.fences = Believed[Fence](clock)
        self._generations: dict[tuple[str, int], tuple[GenerationInfo, Generation]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The store is the caller's; the Spark session is the process's and ends with it."""

    @property
    def spark(self) -> SparkSession:
        """The warm session in a JVM, started by the first use (5 to 12 s), and again after that has ended."""
        from tailrace.projections.spark.session import forget_lost, is_lost, open_session

        if self._spark is not None and is_lost():
            forget_lost()
            self._spark = None
        if self._spark is None:
            self.report("starting Spark", 0, None, "")
            self._spark = open_session(self.settings)
        return self._spark

    @property
    def computing_session(self) -> SparkSession:
        """What computes: that session, or one at a server of Spark Connect."""
        return connect_session(self.settings) if is_connect(self.master) else self.spark

    @property
    def master(self) -> str:
        """Where tasks run."""
        from tailrace.projections.spark.session import master

        return master(self.settings)

    @property
    def parallelism(self) -> int:
        """How many units of work inputs are cut into."""
        return parallelism_of(self.master, self.settings.spark.shuffle_partitions)

    def projection(self, name: str) -> Projection:
        """The loaded definition. Raises UsageError when there is none, with similar names, or when it is broken, with
        what is wrong."""
        found = self.projections.get(name)
        if found is None:
            if (error := self.broken.definitions.get(name)) is not None:
                raise error
            known = ", ".join(sorted(self.projections)) or "none; set projections.modules"
            raise UsageError(
                f"no projection {name!r} is defined",
                hint=did_you_mean(name, self.projections) or f"defined are: {known}",
            )
        return found

    def fingerprint(self, name: str) -> str | None:
        """The fingerprint of the loaded definition; None when there is none."""
        if name not in self._fingerprints and name in self.projections:
            self._fingerprints[name] = fingerprint(self.projections[name])
        return self._fingerprints.get(name)

    def generations(self, name: str) -> list[Generation]:
        return [self._parsed(info) for info in self.store.derived.generations(name)]

    def _parsed(self, info: GenerationInfo) -> Generation:
        known = self._generations.get((info.projection, info.generation))
        if known is None or known[0] != info:
            known = info, Generation.of(info)
            self._generations[info.projection, info.generation] = known
        return known[1]

    def generation(self, name: str, number: int) -> Generation:
        """Raises UsageError when it does not exist, or not any more."""
        for generation in self.generations(name):
            if generation.number == number:
                return generation
        known = ", ".join(str(generation.number) for generation in self.generations(name)) or "none"
        raise UsageError(f"projection {name!r} has no generation {number}", hint=f"there are: {known}")

    def check_known(self, name: str) -> None:
        """Raises UsageError, with similar names, for a projection without a generation or a definition."""
        if name in self.projections or name in self.broken.definitions or self.generations(name):
            return
        known = sorted({*self.projections, *self.store.derived.projections()})
        raise UsageError(
            f"there is no projection {name!r}",
            hint=did_you_mean(name, known) or f"known: {', '.join(known) or 'none'}",
        )

    def end_build(self, name: str) -> None:
        """A projection was built, or could not be: after the last one their inputs are not read from files again."""
        if self.builds.end(name):
            self.round_files.forget_all()

    def live(self, name: str) -> Generation | None:
        return self.generations_and_live(name)[1]

    def generations_and_live(self, name: str) -> tuple[list[Generation], Generation | None]:
        """All generations of a projection, and the live one, which is one of them. Raises UsageError when it is not."""
        infos, number = self.store.derived.generations_and_live(name)
        found = [self._parsed(info) for info in infos]
        if number is None:
            return found, None
        live = next((generation for generation in found if generation.number == number), None)
        return found, live or self.generation(name, number)

    def is_frozen(self, generation: Generation) -> bool:
        """Whether no loaded definition matches it. Then this process may not refresh it."""
        made_by = {generation.projection: generation.fingerprint}
        if generation.pin:
            made_by |= generation.pin.computed_inputs
        return any(self.fingerprint(name) != known for name, known in made_by.items())

    def frozen_reason(self, generation: Generation) -> str:
        """In words, why no loaded definition matches it."""
        name = generation.projection
        if name in self.projections:
            return f"its definition changed; tailrace rebuild {name}"
        if (error := self.broken.definitions.get(name)) is not None:
            return f"its definition cannot be loaded: {_first_line(error)}"
        if modules := self.broken.modules.values():  # one of them may be what defines it
            return f"no module that loads defines it; {'; '.join(map(_first_line, modules))}"
        return "no loaded module defines it; readers keep what it shows"

    def computed_inputs(self, pin: Pin | None) -> dict[str, Projection]:
        """The definitions of projections whose results are computed together with a pinned generation. Raises
        UsageError when one is not loaded."""
        return {name: self.projection(name) for name in pin.computed_inputs} if pin else {}

    def spec(self, generation: Generation) -> SinkSpec:
        """Raises NoSink when the class of a user's own sink is not found."""
        loaded = (each.sink for each in self.projections.values())
        return generation.sink(SinkClasses.of(self.settings.projections.sinks_from, loaded))

    def sink(self, generation: Generation) -> Sink:
        return open_sink(self.spec(generation), self.settings)

    def target(self, generation: Generation) -> Target:
        return generation.target(self.settings.store.name, self.store.log_id)

    def fence(self, generation: Generation) -> Fence | None:
        """The fence that the sink holds of the generation."""
        return self.sink(generation).fence(self.target(generation))

    def epoch(self, number: int) -> EpochInfo:
        """Raises UsageError when the log has no such epoch."""
        found = self.store.epoch(number)
        if found is None:
            raise UsageError(f"epoch {number} is not in the log", hint="its history there is gone")
        return found

    def topics(self, projection: Projection) -> tuple[TopicId, ...]:
        """The topics that a projection reads, directly or by way of other loaded ones."""
        found = dict.fromkeys(projection.topics)
        for name in projection.reads:
            if name in self.projections:
                found |= dict.fromkeys(self.topics(self.projections[name]))
        return tuple(found)

    def check_fence(self, generation: Generation, fence: Fence) -> None:
        """Raises OperatorError when the sink's content is not of this log at the fence's epoch: the catalog was
        restored, or the log is another one."""
        known = self.store.epoch(fence.epoch)
        if fence.log_id != self.store.log_id:
            why = f"log {fence.log_id}, this is log {self.store.log_id}"
        elif known is None:
            why = f"epoch {fence.epoch}, which this log does not have"
        elif known.hash != fence.epoch_hash:
            why = f"another epoch {fence.epoch} than this log's"
        else:
            return
        raise OperatorError(
            f"the sink holds {generation} from {why}",
            hint=f"the catalog or the sink was restored apart from the other: tailrace rebuild {generation.projection}",
        )


def _first_line(error: TailraceError) -> str:
    return error.message.partition("\n")[0]
