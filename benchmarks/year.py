"""A store with a year's rows: 10 flushes a second, each with rows of 100 topics, upkeep as a running capture does it.

Two parts. **Run**: epochs are written straight into the catalog, as sealing leaves them (a row per epoch; per topic a
small file for each round), and real upkeep runs after each round: merge, fold, removal of what was replaced. Small
files are links to one, and minutes of flushes are written in less than a second; still only the first days of a year
fit into a benchmark. **By structure**: the rest is the same plan (``tiers.plan``) over the sizes that the run has
measured, without files. Both count the same things, so where they overlap they can be compared.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from sqlalchemy import func, insert, select, update

from benchmarks.options import Options, Size, median, parse
from benchmarks.results import table, write_section
from eventstore import chain, index, segment, tables
from eventstore.keys import hash_columns
from eventstore.log import Store
from eventstore.maintain import fold, tiers
from eventstore.maintain.rounds import maintain, standing
from eventstore.model import PartitionRange, PreparedSegment, TopicId
from eventstore.schema import Column, TopicSchema, change_schema
from eventstore.settings import StoreSettings, UpkeepSettings
from eventstore.storage import LocalStorage
from eventstore.times import to_micros

TOPICS = 100
PER_SECOND = 10
ROUND_EPOCHS = 4096  # a round each seven minutes
DAYS = (7, 30, 91, 182)
SCHEMA = TopicSchema(
    1, (Column(1, "id", 20, type_name="bigint", key=True), Column(2, "note", 25, type_name="text"))
)
BEGAN = datetime(2025, 1, 1, tzinfo=UTC)
LOOKS = 9

SIZES = (
    Size("epochs", 1_500_000, 50_000, "epochs of the part that is run"),
    Size("points", 6, 3, "points of its curve"),
    Size("days", 365, 365, "days of the part that is not run"),
)


@dataclass(frozen=True, slots=True)
class Point:
    """A store after so many epochs. Times are medians, in milliseconds; None where nothing was run."""

    epochs: int
    rows: int
    catalog_bytes: int | None
    segment_files: int
    epoch_files: int
    round_ms: float | None = None
    open_ms: float | None = None
    status_ms: float | None = None
    by_epoch_ms: float | None = None
    by_lsn_ms: float | None = None
    by_time_ms: float | None = None

    def cells(self, kind: str) -> tuple[str, ...]:
        def shown(value: float | None) -> str:
            return "" if value is None else f"{value:,.1f}"

        days = self.epochs / PER_SECOND / 86_400
        return (
            kind, f"{days:,.2f}", f"{self.epochs:,}", f"{self.rows:,}",
            "" if self.catalog_bytes is None else f"{self.catalog_bytes / (1 << 20):,.0f}",
            f"{self.segment_files:,}", f"{self.epoch_files:,}",
            *map(shown, (self.round_ms, self.open_ms, self.status_ms)),
            *map(shown, (self.by_epoch_ms, self.by_lsn_ms, self.by_time_ms)),
        )  # fmt: skip


HEAD = (
    "part", "days", "epochs", "catalog rows", "catalog MiB", "segment files", "epoch files", "a round ms", "open ms",
    "status ms", "as of epoch ms", "as of LSN ms", "as of time ms",
)  # fmt: skip


class Generator:
    """Writes epochs into a store as a capture and sealing leave them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.epoch = 0
        self.hash = ""
        store.register_source("shop", slot="s", publication="p", system_id="1")
        names = [TopicId.table("shop", "public", f"t{number}") for number in range(TOPICS)]
        for name in names:
            store.register_topic(name, SCHEMA, reason="")
        with store.catalog.read() as connection:
            self.ids = list(connection.scalars(select(tables.topics.c.id).order_by(tables.topics.c.id)))
        self.topics = index.topics_text(self.ids)
        self.file = self._file(names[0])
        self.ranges: Sequence[tuple[int, int]] = self.file.counts

    def _file(self, topic: TopicId) -> PreparedSegment:
        """One round's rows of one topic; every other file is a link to it."""
        keys = [random.randrange(100_000) for _ in range(ROUND_EPOCHS)]
        key = pa.StructArray.from_arrays([pa.array(keys, pa.int64())], fields=[SCHEMA.columns[0].field])
        notes = pa.array([f"note {number % 17}" for number in keys])
        after = pa.StructArray.from_arrays(
            [pa.array(keys, pa.int64()), notes], fields=[column.field for column in SCHEMA.columns]
        )
        given = {
            "_hash": hash_columns([pa.array([str(number) for number in keys])]),
            "_op": pa.array(["u"] * ROUND_EPOCHS),
            "_lsn": pa.array(range(ROUND_EPOCHS)),
            "_txn": pa.array(range(ROUND_EPOCHS)),
            "_ordinal": pa.array([0] * ROUND_EPOCHS),
            "_commit_ts": pa.array([micros(number) for number in range(ROUND_EPOCHS)]),
            "key": key,
            "after": after,
            "_before": pa.array(["none"] * ROUND_EPOCHS),
        }
        columns = [
            given[field.name].cast(field.type) if field.name in given else pa.nulls(ROUND_EPOCHS, field.type)
            for field in change_schema(SCHEMA)
        ]
        rows = pa.Table.from_arrays(columns, schema=change_schema(SCHEMA))
        return segment.write_segment(
            self.store.storage, topic, 1, rows, self.store.settings.partitions, "template/0"
        )

    def go_on(self, epochs: int) -> None:
        """Whole rounds, at least so many epochs."""
        for _ in range(-(-epochs // ROUND_EPOCHS)):
            self._round()

    def _round(self) -> None:
        first, last = self.epoch + 1, self.epoch + ROUND_EPOCHS
        files = [self._segment(topic, last) for topic in self.ids]
        with self.store.catalog.write() as connection:
            connection.execute(
                insert(tables.epochs), [self._epoch(epoch) for epoch in range(first, last + 1)]
            )
            connection.execute(insert(tables.segments), files)
            connection.execute(update(tables.log_head).values(epoch=last, hash=self.hash))
            position = {
                "commit_lsn": lsn(last),
                "end_lsn": lsn(last) + 1,
                "through_lsn": lsn(last) + 1,
                "loaded": True,
            }
            connection.execute(update(tables.sources).values(position))
        self.epoch = last

    def _epoch(self, epoch: int) -> dict[str, object]:
        at, when = lsn(epoch), micros(epoch)
        values: dict[str, object] = {
            "epoch": epoch, "append_id": f"{epoch:032x}", "source": "shop", "incarnation": 1, "commit_lsn": at,
            "end_lsn": at + 1, "first_lsn": at, "last_lsn": at, "commit_ts": when, "first_ts": when, "last_ts": when,
            "transactions": 1, "rows": TOPICS, "content": os.urandom(32).hex(), "topics": self.topics, "parts": "[]",
            "blob_bytes": None,
        }  # fmt: skip
        self.hash = chain.epoch_hash(self.hash, values)
        return {**values, "hash": self.hash}

    def _segment(self, topic: int, epoch: int) -> dict[str, object]:
        assert isinstance(self.store.storage, LocalStorage)
        root = self.store.storage.root
        path = f"log/shop/{topic}/t1-{epoch:032x}.parquet"
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        os.link(root / self.file.path, root / path)
        rounds = epoch // ROUND_EPOCHS - 1
        ranges = [PartitionRange(partition, rounds * rows, rows) for partition, rows in self.ranges]
        return {
            "path": path, "topic_id": topic, "version": 1, "first_epoch": epoch, "last_epoch": epoch,
            "first_lsn": lsn(epoch), "last_lsn": lsn(epoch), "first_row": rounds * ROUND_EPOCHS, "rows": ROUND_EPOCHS,
            "bytes": self.file.bytes, "checksum": self.file.checksum, "ranges": index.ranges_to_json(ranges),
            "sealed": False,
        }  # fmt: skip


def lsn(epoch: int) -> int:
    return epoch * 1000


def micros(epoch: int) -> int:
    return (to_micros(BEGAN) or 0) + epoch * 1_000_000 // PER_SECOND


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


def measured(store: Store, reopen: Callable[[], Store], epochs: int, round_ms: float) -> Point:
    looked_at = random.Random(epochs)

    def looks(as_of: Callable[[int], str | int | datetime]) -> float:
        return median([timed(lambda: store.cut(as_of(looked_at.randrange(1, epochs)))) for _ in range(LOOKS)])

    shown = standing(store)
    with store.catalog.read() as connection:
        counted = (tables.epochs, tables.segments, tables.epoch_files, tables.retired)
        rows = sum(connection.scalar(select(func.count()).select_from(each)) or 0 for each in counted)
    assert store.catalog.path is not None
    return Point(
        epochs=epochs,
        rows=rows,
        catalog_bytes=store.catalog.path.stat().st_size,
        segment_files=shown.files,
        epoch_files=shown.epoch_files,
        round_ms=round_ms,
        open_ms=median([timed(lambda: reopen().close()) for _ in range(LOOKS)]),
        status_ms=median(
            [timed(lambda: (store.head(), store.topics(), standing(store))) for _ in range(LOOKS)]
        ),
        by_epoch_ms=looks(lambda epoch: epoch),
        by_lsn_ms=looks(lambda epoch: f"0/{lsn(epoch):X}"),
        by_time_ms=looks(lambda epoch: BEGAN + timedelta(microseconds=micros(epoch) - micros(0))),
    )


def run(epochs: int, points: int, folder: Path) -> tuple[list[Point], Sizes]:
    """The part with real files. Gives its curve and what files came to."""
    settings = StoreSettings(upkeep=UpkeepSettings(keep_seconds=0))
    curve = []
    with Store.open(settings, create=True, root=folder) as store:
        generator = Generator(store)
        for point in range(1, points + 1):
            rounds: list[float] = []
            while generator.epoch < epochs * point // points:
                generator.go_on(ROUND_EPOCHS)
                rounds.append(timed(lambda: maintain(store)))
            curve.append(
                measured(store, lambda: Store.open(settings, root=folder), generator.epoch, median(rounds))
            )
            print(" | ".join(curve[-1].cells("run")), flush=True)
        with store.catalog.read() as connection:
            files = tables.segments.c
            largest = select(files.bytes, files.rows).order_by(files.bytes.desc()).limit(1)
            merged = connection.execute(largest).one()
            folded = connection.execute(
                select(tables.epoch_files).order_by(tables.epoch_files.c.bytes.desc()).limit(1)
            ).one_or_none()
        per_epoch = (
            folded.bytes / (folded.last_epoch - folded.first_epoch + 1) if folded is not None else 50.0
        )
        return curve, Sizes(generator.file.bytes, merged.bytes / merged.rows, per_epoch)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes: of a small file, of a row in a merged one, of an epoch in a file of epochs."""

    small_file: int
    merged_row: float
    folded_epoch: float


def merged_by_plan(files: list[tiers.File], bytes_per_row: float) -> list[tiers.File]:
    while groups := tiers.plan(files):
        merged: dict[int, tiers.File | None] = {}
        for group in groups:
            rows = sum(file.rows for file in group)
            one = tiers.File("", 1, group[0].first_row, rows, int(rows * bytes_per_row))
            merged |= {id(file): one if file is group[0] else None for file in group}
        files = [kept for file in files if (kept := merged.get(id(file), file)) is not None]
    return files


def by_structure(sizes: Sizes, at: Sequence[int]) -> Iterator[Point]:
    """The same plan over sizes alone, for one topic (all are alike) and for the epochs."""
    keep = UpkeepSettings().keep_epochs
    topic: list[tiers.File] = []
    folded: list[tiers.File] = []
    epoch = last_folded = 0
    for end in at:
        while epoch + ROUND_EPOCHS <= end:
            first_row, epoch = epoch, epoch + ROUND_EPOCHS
            topic.append(tiers.File("", 1, first_row, ROUND_EPOCHS, sizes.small_file))
            topic = merged_by_plan(topic, sizes.merged_row)
            while epoch - keep - last_folded >= fold.CHUNK:
                size = int(fold.CHUNK * sizes.folded_epoch)
                folded.append(tiers.File("", 1, last_folded, fold.CHUNK, size))
                last_folded += fold.CHUNK
            folded = merged_by_plan(folded, sizes.folded_epoch)
        files = TOPICS * len(topic)
        yield Point(epoch, epoch - last_folded + files + len(folded), None, files, len(folded))


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("year", __doc__, SIZES, arguments)
    with tempfile.TemporaryDirectory(prefix="tailrace-year-") as folder:
        curve, sizes = run(options["epochs"], options["points"], Path(folder))
    days = [day for day in DAYS if day < options["days"]] + [options["days"]]
    ends = [point.epochs for point in curve] + [day * 86_400 * PER_SECOND for day in days]
    expected = list(by_structure(sizes, ends))
    publish(options, curve, expected, sizes)


def publish(options: Options, curve: Sequence[Point], expected: Sequence[Point], sizes: Sizes) -> None:
    rows = [point.cells("run") for point in curve]
    rows += [point.cells("by structure") for point in expected[len(curve) - 1 :]]
    largest = expected[-1]
    text = f"""{PER_SECOND} flushes a second, each an epoch with a row of each of {TOPICS} topics.

**run**: epochs are written straight into a SQLite catalog as sealing leaves them, per {ROUND_EPOCHS:,} epochs a file of
each topic; then the real upkeep merges, folds and removes (nothing is kept for readers of before). **by structure**:
not run; the same plan over the sizes that the run measured ({sizes.small_file:,} bytes a small file,
{sizes.merged_row:.1f} a row of a merged one, {sizes.folded_epoch:.1f} an epoch in a file). The last row of the run
stands twice, so that the two can be compared. Catalog rows are those of epochs, segments, epoch files and retired
files. After {largest.epochs // PER_SECOND // 86_400} days: {largest.rows:,} rows,
{largest.segment_files:,} files of {TOPICS} topics, {largest.epoch_files:,}
files of {largest.epochs:,} epochs.

{table(HEAD, rows)}"""
    packages = ("pyarrow", "sqlalchemy")
    write_section(
        "year", "A year of a log", text, command=options.command, packages=packages, path=options.to
    )


if __name__ == "__main__":
    main()
