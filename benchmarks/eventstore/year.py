"""A year of a log: 10 flushes a second, each with a row of every topic. What of it stays in catalog and folder?

315 million epochs are too many to append in a benchmark, so there are three parts, each of which rests on the one
before. **Done**: real epochs are appended and kept in order by real upkeep, a round a minute of the log's time.
**Forecast**: the plans that upkeep goes by, over files that are sizes only (``forecast.py`` beside this), those that
were measured; beside what was done, and then to the end. **Laid out**: a store with the catalog and the files of epochs
that the forecast ends with; opening it, its status and finding a moment in it are measured.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from benchmarks.eventstore.flushes import PER_SECOND, Flushes, lsn_of, settings_of, store_in, time_of
from benchmarks.eventstore.forecast import COUNTED, Forecast, Held, Load, Sizes
from benchmarks.eventstore.layout import lay_out
from benchmarks.options import Options, Size, median, parse
from benchmarks.results import table, write_section
from tailrace.eventstore.maintenance.rounds import upkeep_status
from tailrace.eventstore.model.position import format_lsn
from tailrace.eventstore.settings import UpkeepSettings
from tailrace.eventstore.store import Store

DAY = 86_400 * PER_SECOND
DAYS = (1, 7, 30, 91, 182)
LOOKS = 25
USUAL = UpkeepSettings()
ROUND_EPOCHS = int(USUAL.every_seconds) * PER_SECOND

SIZES = (
    Size("topics", 100, 10, "topics; half of them keep --limit, half keep all"),
    Size("epochs", 6_000, 1_800, "epochs that are appended and kept in order"),
    Size("points", 4, 2, "points at which the forecast is held against them"),
    Size("days", 365, 37, "days of the forecast, at whose end a store is laid out"),
    Size("limit", 256, 256, "MiB that a topic of the first half keeps"),
    Size("keys", 20_000, 20_000, "keys of a topic; they are updated in turn"),
)


def load_of(options: Options) -> Load:
    return Load(
        topics=options["topics"],
        limited=options["topics"] // 2,
        limit_bytes=options["limit"] << 20,
        rows_per_epoch=1,
        keys=options["keys"],
        round_epochs=ROUND_EPOCHS,
        keep_epochs=USUAL.keep_epochs,
        keep_rounds=round(USUAL.keep_seconds / USUAL.every_seconds),
        state_bytes=USUAL.state_bytes,
    )


def done(load: Load, epochs: int, points: int, folder: Path) -> tuple[list[tuple[Held, float]], Sizes]:
    """Append and maintain. What there was at each point, with a round's median milliseconds; and the files' sizes."""
    found = []
    with store_in(folder, load) as store:
        flushes = Flushes(store, load)
        for point in range(1, points + 1):
            rounds: list[float] = []
            while not rounds or flushes.epoch + load.round_epochs <= epochs * point // points:
                flushes.append(load.round_epochs)
                rounds.append(timed(store.maintain))
                held = flushes.held()
            found.append((held, median(rounds)))
            print(f"appended {flushes.epoch:,} epochs: {found[-1][0].rows}", flush=True)
        return found, flushes.sizes()


def timed(action: Callable[[], object]) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


def measured(folder: Path, forecast: Forecast) -> tuple[list[tuple[str, float]], int]:
    """Lay the store out and look at it: each look with its median milliseconds; and the catalog's bytes."""
    settings = settings_of(forecast.load)
    with store_in(folder, forecast.load) as store:
        lay_out(store, forecast)
    with Store.open(settings, root=folder) as store:
        looks = [
            ("open", several(lambda: Store.open(settings, root=folder).close())),
            ("status: head, sources, topics, upkeep", several(lambda: look_at(store))),
            ("as of an epoch", moments(store, forecast.epoch, lambda epoch: epoch)),
            ("as of an LSN", moments(store, forecast.epoch, lambda epoch: format_lsn(lsn_of(epoch)))),
            ("as of a time", moments(store, forecast.epoch, time_of)),
        ]
        assert store.catalog.path is not None
        return looks, store.catalog.path.stat().st_size


def look_at(store: Store) -> None:
    store.head()
    store.sources()
    store.topics()
    upkeep_status(store)


def moments(store: Store, head: int, as_of: Callable[[int], str | int | datetime]) -> float:
    """To find moments anywhere in the log."""
    places = random.Random(head)
    return several(lambda: store.cut(as_of(places.randint(1, head))))


def several(action: Callable[[], object]) -> float:
    return median([timed(action) for _ in range(LOOKS)])


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse("eventstore.year", __doc__, SIZES, arguments)
    load = load_of(options)
    with tempfile.TemporaryDirectory(prefix="tailrace-year-") as folder:
        stretch = replace(load, keep_rounds=0, keep_epochs=max(1, options["epochs"] // 4))
        real, sizes = done(stretch, options["epochs"], options["points"], Path(folder))
    beside = Forecast(stretch, sizes)
    pairs = [(held, beside.advance(held.epochs), ms) for held, ms in real]
    forecast = Forecast(load, sizes)
    days = [day for day in DAYS if day < options["days"]] + [options["days"]]
    curve = [forecast.advance(day * DAY) for day in days]
    with tempfile.TemporaryDirectory(prefix="tailrace-year-") as folder:
        looks, catalog = measured(Path(folder), forecast)
    publish(options, pairs, curve, looks, catalog, sizes)


def cells(held: Held) -> list[str]:
    counts = [f"{held.rows[name]:,}" for name in COUNTED]
    return [f"{held.epochs:,}", *counts, f"{held.files:,}", f"{held.bytes / (1 << 20):,.0f}"]


def publish(
    options: Options,
    pairs: Sequence[tuple[Held, Held, float]],
    curve: Sequence[Held],
    looks: Sequence[tuple[str, float]],
    catalog: int,
    sizes: Sizes,
) -> None:
    head = ("epochs", *(name.replace("_", " ") for name in COUNTED), "files", "MiB")
    compared = []
    for held, expected, ms in pairs:
        compared += [["done", *cells(held), f"{ms:,.0f}"], ["forecast", *cells(expected), ""]]
    end, line, minutes = curve[-1], sizes.segment, USUAL.keep_seconds / 60
    topics, limit = options["topics"], options["limit"]
    text = f"""{PER_SECOND} flushes a second, each an epoch with a row of each of {topics} topics; half of them keep
{limit} MiB, half keep all. A round of upkeep each {ROUND_EPOCHS} epochs. Rows are those of the catalog's tables that
flushes and upkeep change; files are all in the store's folder, MiB theirs. What grows without a bound are the bytes
of topics that keep all, a file each 64 to 128 MiB, and the hashes of epochs.

**Done and forecast.** Real epochs and real upkeep, a round's median time, and what the plans alone say. (Here files
that were replaced go at once and a quarter of the epochs stays in the catalog, so that the rest becomes files.)

{table(("", *head, "a round ms"), compared)}

**To the end**, by forecast, with the usual settings and the sizes measured above ({line.each:.1f} bytes a row,
{line.fixed:,.0f} a file besides; {sizes.epochs.each:.1f} an epoch in a file of epochs). Replaced files stay for
{minutes:.0f} minutes.

{table(("days", *head), [[f"{held.epochs / DAY:,.0f}", *cells(held)] for held in curve])}

**A store of {end.epochs:,} epochs**, laid out as the forecast ends: a catalog of {catalog >> 20:,} MiB; every epoch
is there, files of rows are named only. Medians of {LOOKS}; moments are anywhere in it.

{table(("", "ms"), [[what, f"{ms:,.1f}"] for what, ms in looks])}"""
    write_section(
        "year",
        "A year of a log",
        text,
        command=options.command,
        packages=("pyarrow", "sqlalchemy"),
        path=options.to,
    )


if __name__ == "__main__":
    main()
