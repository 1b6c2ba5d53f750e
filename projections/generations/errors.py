"""Why a generation that is built or promoted is not shown to readers."""

from __future__ import annotations

from tailrace.eventstore.errors import OperatorError, TransientError
from tailrace.eventstore.metadata.generations import Behind
from tailrace.projections.generations.generation import Generation
from tailrace.projections.sinks.contract import HeldByReaders


class NotShown(TransientError):
    """The catalog has promoted a generation, and readers who hold the sink's pointer keep it at ``shown``."""

    def __init__(self, generation: Generation, shown: int | None, held: HeldByReaders) -> None:
        super().__init__(
            f"{generation} is promoted, but readers still see {f'generation {shown}' if shown else 'none'}:"
            f" {held.message}",
            hint=f"{held.hint}; the next tailrace run, or tailrace projection promote {generation.projection}, then"
            " shows it; tailrace projection rollback takes it back",
        )
        self.shown = shown


class NotShowable(OperatorError):
    """The catalog has promoted a generation, and the sink refuses to show it in place of ``shown``."""

    def __init__(self, generation: Generation, shown: int | None, refused: OperatorError) -> None:
        name = generation.projection
        super().__init__(
            f"{generation} is promoted, but readers still see {f'generation {shown}' if shown else 'none'}:"
            f" {refused.message}",
            hint=f"{refused.hint}; the next tailrace run, or tailrace projection promote {name}, then shows it;"
            " tailrace projection rollback takes it back",
        )
        self.shown = shown


class NotLevel(TransientError):
    """A generation is built and waits: each time it had caught up, the live one had gone on."""

    def __init__(self, generation: Generation, rounds: int, behind: Behind) -> None:
        name = generation.projection
        super().__init__(
            f"{generation} is built but not promoted: it was brought up to date {rounds} times, and each time the live"
            f" generation had been refreshed further meanwhile; now: {behind.message}",
            hint=f"tailrace rebuild {name} continues; stop the run of the earlier definition (tailrace projection"
            f" runs {name} shows it) if that is faster each time, or pass --stale-ok",
        )
        self.generation = generation.number
