"""Appending to the log: Arrow in, committed and durable, beside pyarrow writing the same rows to Parquet.

The rows are those that capture makes of a backlog (``benchmarks.cdc.decode``), in its epochs. Ours is
``SourceWriter.append``: sort by partition, Parquet, fsync, the catalog's commit. Theirs is
``pyarrow.parquet.write_table`` of the same tables with the same compression to one file an epoch, without and with
fsync. Rounds take turns.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.cdc.decode import SCHEMA, TOPIC, frames, gather
from benchmarks.options import Size, median, parse
from benchmarks.results import table, write_section
from tailrace.cdc.columnar.decode import BlockDecoder
from tailrace.cdc.policy.policies import Policies
from tailrace.eventstore.log.sources import register_source, register_topic
from tailrace.eventstore.log.writer import SourceWriter
from tailrace.eventstore.model.epoch import EpochBatch, TopicRows
from tailrace.eventstore.model.schema import TopicSchema
from tailrace.eventstore.model.time import from_micros
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store

Keep = Callable[[pa.Table], None]
Way = Callable[[Path], AbstractContextManager[Keep]]
"""Opens a folder; what it gives keeps an epoch's rows there."""


def epochs(changes: int) -> list[pa.Table]:
    decoder = BlockDecoder("shop", {TOPIC: SCHEMA}, lambda relation: None, Policies())
    return [part.rows for block in gather(list(frames(changes))) for part in decoder.decode(block).rows]


def split(rows: pa.Table, size: int) -> list[pa.Table]:
    return [rows.slice(first, size) for first in range(0, rows.num_rows, size)]


def writer_of(store: Store, topics: Mapping[TopicId, TopicSchema]) -> SourceWriter:
    """The writer of a new source with these topics."""
    register_source(store.catalog, "shop", slot="s", publication="p", system_id="1")
    for topic, schema in topics.items():
        register_topic(store, topic, schema)
    return store.take_over("shop")


@contextmanager
def appended(folder: Path) -> Iterator[Keep]:
    settings = StoreSettings(catalog="sqlite:///catalog.db", segments=Path("segments"))
    with Store.open(settings, create=True, root=folder) as store:
        writer = writer_of(store, {TOPIC: SCHEMA})

        def keep(rows: pa.Table) -> None:
            lsn = int(rows["_lsn"][rows.num_rows - 1].as_py())
            part = TopicRows(TOPIC, SCHEMA.version, rows)
            writer.append(EpochBatch("shop", lsn, lsn + 1, lsn + 1, from_micros(lsn), 1, [part]))

        yield keep


@contextmanager
def written(folder: Path, *, sync: bool) -> Iterator[Keep]:
    numbers = count()

    def keep(rows: pa.Table) -> None:
        with open(folder / f"{next(numbers)}.parquet", "wb") as file:
            pq.write_table(rows, file, compression="zstd")
            if sync:
                file.flush()
                os.fsync(file.fileno())

    yield keep


BASE = "pyarrow, fsync"
WAYS: Mapping[str, Way] = {
    "pyarrow, no fsync": partial(written, sync=False),
    BASE: partial(written, sync=True),
    "tailrace append": appended,
}
_HEAD = ["rows an epoch, way", "rows/s", "MB/s of Arrow", "ratio", "ms an epoch", "bytes a row"]


def run(way: Way, given: Sequence[pa.Table]) -> tuple[float, int]:
    """Seconds, and bytes on disk."""
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name:
        folder = Path(name)
        with way(folder) as keep:
            started = time.perf_counter()
            for rows in given:
                keep(rows)
            seconds = time.perf_counter() - started
        return seconds, sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def measure(given: Sequence[pa.Table], rounds: int, title: str) -> list[list[str]]:
    """A line per way. ``ratio`` is its speed by that of pyarrow with fsync in the same round, the median of rounds."""
    rows, size = sum(each.num_rows for each in given), sum(each.nbytes for each in given)
    runs: dict[str, list[tuple[float, int]]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, way in WAYS.items():
            runs[name].append(run(way, given))
    lines = []
    for name, done in runs.items():
        took = median([seconds for seconds, _ in done])
        ratio = median([base / ours for (base, _), (ours, _) in zip(runs[BASE], done, strict=True)])
        lines.append(
            [
                f"{title}: {name}",
                f"{rows / took:,.0f}",
                f"{size / took / 1e6:,.1f}",
                f"{ratio:.2f}",
                f"{took / len(given) * 1e3:,.1f}",
                f"{done[-1][1] / rows:,.1f}",
            ]
        )
    return lines


SIZES = (
    Size("changes", 2_000_000, 50_000, "changes in capture's own epochs"),
    Size("small", 2_000, 200, "epochs of five changes"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("eventstore.append", __doc__, SIZES, arguments)
    large = epochs(options["changes"])
    small = split(epochs(5 * options["small"])[0], 5)
    largest = max(rows.num_rows for rows in large)
    lines = [
        *measure(large, options.repeat, f"up to {largest:,}"),
        *measure(small, options.repeat, "5"),
    ]
    body = (
        f"{options['changes']:,} changes of seven columns in {len(large)} epochs, and {len(small):,} epochs of five. "
        "Ours is committed and durable after each epoch, sorted by partition, with offsets, checksums and key hashes; "
        "small epochs go into the catalog. Bytes are of all files, the catalog's and its journal's included. "
        f"Medians of {options.repeat} rounds, by turns.\n\n" + table(_HEAD, lines)
    )
    write_section(
        "append",
        "Appending",
        body,
        command=options.command,
        packages=["pyarrow", "sqlalchemy"],
        path=options.to,
    )


if __name__ == "__main__":
    main()
