"""Upkeep of a log without a store: the plans that upkeep goes by, over files that are nothing but sizes.

What ``tiers``, ``due`` and ``plan`` decide is asked of them; what follows from it (which files there are
afterwards) is done here as ``rounds.maintain`` does it, in its order. A year of rounds takes minutes, and
``tests/benchmarks/test_year.py`` holds a stretch of it against the real thing, table by table.

Every epoch has the same number of rows of every topic, and keys come round again, so of any rows the state is known:
as many rows as there are keys. That is all that is simpler here than in a store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tailrace.eventstore.maintenance.files import fold, seal, tiers
from tailrace.eventstore.maintenance.files.tiers import TierFile
from tailrace.eventstore.maintenance.retention import plan
from tailrace.eventstore.maintenance.state_runs.due import WORTH, Holdings, SealedFile, stretch
from tailrace.eventstore.metadata.log_start import LogStart
from tailrace.eventstore.metadata.state_runs import Run
from tailrace.eventstore.model.partitioning import Partitioning
from tailrace.eventstore.model.segment_ref import SegmentRef
from tailrace.eventstore.model.topic import TopicId

TOPIC = TopicId.table("shop", "public", "t")
COUNTED = ("epochs", "segments", "state_runs", "epoch_files", "retired")
"""The catalog's tables that flushes and rounds put rows into, or take them out of."""


@dataclass(frozen=True, slots=True)
class Line:
    """Bytes of a file by what it holds: on a line, but for those of which some were measured."""

    fixed: float
    each: float
    measured: Mapping[int, int] = field(default_factory=dict)

    def bytes(self, count: int) -> int:
        return self.measured.get(count) or max(1, round(self.fixed + self.each * count))


@dataclass(frozen=True, slots=True)
class Sizes:
    """``segment``: by rows, of files of the log and of state runs; ``epochs``: by epochs; ``blob``: of an epoch that is
    not sealed, over all topics."""

    segment: Line
    epochs: Line
    blob: int

    @property
    def sealed_at_once(self) -> int:
        """Epochs that one file of a topic is made of at most."""
        return min(seal.CHUNK_EPOCHS, -(-seal.CHUNK_BYTES // self.blob))


@dataclass(frozen=True, slots=True)
class Load:
    """What is written, and how it is kept. Of ``topics`` the first ``limited`` ones keep ``limit_bytes`` each; a file
    that was replaced stays for ``keep_rounds``; new bytes of a topic are worth a state run from ``state_bytes`` on."""

    topics: int
    limited: int
    limit_bytes: int
    rows_per_epoch: int
    keys: int
    round_epochs: int
    keep_epochs: int
    keep_rounds: int
    state_bytes: int


@dataclass(frozen=True, slots=True)
class Held:
    """What there is after so many epochs: rows by table (``COUNTED``), and the files' bytes."""

    epochs: int
    rows: dict[str, int]
    bytes: int

    @property
    def files(self) -> int:
        """Of every kind, those that wait to be removed among them."""
        return sum(count for name, count in self.rows.items() if name != "epochs")


@dataclass(slots=True)
class Topic:
    """One topic's files, in its order."""

    load: Load
    sizes: Sizes
    limit_bytes: int | None
    files: list[TierFile] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    looks: tuple[int, ...] = ()
    start: int = 0

    def round(self, first: int, last: int) -> list[int]:
        """Epochs ``first`` to ``last`` were appended. Gives the bytes of each file that was replaced."""
        gone = []
        for begin in range(first, last + 1, self.sizes.sealed_at_once):
            epochs = min(self.sizes.sealed_at_once, last + 1 - begin)
            self.files.append(self._file((begin - 1) * self.load.rows_per_epoch, epochs))
        self.files, replaced = merged(self.files, self.sizes.segment)
        gone += [file.bytes for file in replaced]
        gone += self._retain()
        gone += self._compact()
        return gone

    def last_epoch(self, file: TierFile) -> int:
        return file.end_row // self.load.rows_per_epoch

    def first_epoch(self, file: TierFile) -> int:
        return file.first_row // self.load.rows_per_epoch + 1

    def _file(self, first_row: int, epochs: int) -> TierFile:
        rows = epochs * self.load.rows_per_epoch
        return TierFile("", 1, first_row, rows, self.sizes.segment.bytes(rows))

    def _retain(self) -> Iterator[int]:
        if self.limit_bytes is None:
            return
        extents = [
            plan.Extent(self.first_epoch(file), self.last_epoch(file), file.bytes) for file in self.files
        ]
        cut = plan.cutoff_by_size(extents, self.limit_bytes)
        going = [extent for extent in extents if extent.first_epoch <= cut]
        former = sum(run.bytes for run in self.runs if run.epoch == self.start)
        if (
            cut <= self.start
            or not going
            or not plan.is_worthwhile(sum(each.bytes for each in going), former)
        ):
            return
        yield from (extent.bytes for extent in going)
        yield from (run.bytes for run in self.runs if run.epoch <= cut)
        self.files = self.files[len(going) :]
        self.runs = [self._run(0, cut), *(run for run in self.runs if run.epoch > cut)]
        self.start = cut

    def _compact(self) -> Iterator[int]:
        held = Holdings(
            LogStart(self.start, (), ()),
            self.looks,
            [SealedFile(self.last_epoch(file), file.rows, file.bytes) for file in self.files],
            self.runs,
        )
        if not self.load.state_bytes:
            return
        due = stretch(TOPIC, held, Partitioning.of(1), self.load.state_bytes, bag=False)
        if due is None:
            return
        self.looks = tuple(epoch for epoch in self.looks if epoch <= due.after)
        run = self._run(due.after, due.epoch)
        if run.refs[0].rows > WORTH * due.rows:
            self.looks = (*self.looks, due.epoch)
            return
        gone = [
            each for each in self.runs if due.after < each.epoch <= due.epoch and each.epoch != self.start
        ]
        yield from (each.bytes for each in gone)
        self.runs = sorted(
            [*(each for each in self.runs if each not in gone), run], key=lambda each: each.epoch
        )

    def _run(self, after: int, epoch: int) -> Run:
        """One file: few keys."""
        rows = min((epoch - after) * self.load.rows_per_epoch, self.load.keys)
        size = self.sizes.segment.bytes(rows)
        return Run(after, epoch, (SegmentRef(TOPIC, 1, after + 1, epoch, rows, size, ()),))


class Forecast:
    """A log that grows by ``advance``. Topics of one kind are alike, so one of each is looked at."""

    def __init__(self, load: Load, sizes: Sizes) -> None:
        self.load = load
        self.sizes = sizes
        self.limited = Topic(load, sizes, load.limit_bytes)
        self.whole = Topic(load, sizes, None)
        self.folded: list[TierFile] = []
        self.epoch = 0
        self._round = 0
        self._retired: deque[tuple[int, int, int]] = deque()  # round, files, bytes

    @property
    def kinds(self) -> list[tuple[Topic, int]]:
        """Each kind of topics, and how many there are."""
        return [(self.limited, self.load.limited), (self.whole, self.load.topics - self.load.limited)]

    @property
    def folded_upto(self) -> int:
        return self.folded[-1].end_row if self.folded else 0

    def advance(self, epochs: int) -> Held:
        """Go on, round by round, until there are so many epochs; what is less than a round is left out."""
        while self.epoch + self.load.round_epochs <= epochs:
            self._advance()
        return self.held()

    def _advance(self) -> None:
        first, self.epoch = self.epoch + 1, self.epoch + self.load.round_epochs
        self._round += 1
        for topic, count in self.kinds:
            gone = topic.round(first, self.epoch) if count else []
            self._retire(len(gone) * count, sum(gone) * count)
        while self.epoch - self.load.keep_epochs - self.folded_upto >= fold.CHUNK:
            size = self.sizes.epochs.bytes(fold.CHUNK)
            self.folded.append(TierFile("", 1, self.folded_upto, fold.CHUNK, size))
        self.folded, replaced = merged(self.folded, self.sizes.epochs)
        self._retire(len(replaced), sum(file.bytes for file in replaced))
        while self._retired and self._retired[0][0] <= self._round - self.load.keep_rounds:
            self._retired.popleft()

    def _retire(self, files: int, size: int) -> None:
        if files:
            self._retired.append((self._round, files, size))

    def held(self) -> Held:
        rows = {
            "epochs": self.epoch - self.folded_upto,
            "segments": sum(len(topic.files) * count for topic, count in self.kinds),
            "state_runs": sum(len(topic.runs) * count for topic, count in self.kinds),
            "epoch_files": len(self.folded),
            "retired": sum(files for _, files, _ in self._retired),
        }
        stored = sum(
            (sum(file.bytes for file in topic.files) + sum(run.bytes for run in topic.runs)) * count
            for topic, count in self.kinds
        )
        stored += sum(file.bytes for file in self.folded) + sum(size for *_, size in self._retired)
        return Held(self.epoch, rows, stored)


def merged(files: Sequence[TierFile], line: Line) -> tuple[list[TierFile], list[TierFile]]:
    """The files after all is merged that is planned to be, and those that others replaced."""
    left, gone = list(files), []
    while groups := tiers.plan(left):
        made: dict[int, TierFile | None] = {}
        for group in groups:
            rows = sum(file.rows for file in group)
            made |= dict.fromkeys(file.first_row for file in group)
            made[group[0].first_row] = TierFile("", 1, group[0].first_row, rows, line.bytes(rows))
            gone += group
        left = [kept for file in left if (kept := made.get(file.first_row, file)) is not None]
    return left, gone
