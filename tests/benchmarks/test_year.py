"""The forecast of a year rests on this: over a stretch that both do, it says what real upkeep leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.eventstore.flushes import Flushes, store_in
from benchmarks.eventstore.forecast import Forecast, Held, Line, Load, Sizes
from benchmarks.eventstore.layout import lay_out
from tailrace.eventstore.maintenance.files import fold, seal, tiers
from tailrace.eventstore.maintenance.rounds import upkeep_status
from tailrace.eventstore.maintenance.state_runs import due

MIB = 1 << 20
SMALL = Load(
    topics=2,
    limited=1,
    limit_bytes=45_000,
    rows_per_epoch=60,
    keys=600,
    round_epochs=7,
    keep_epochs=30,
    keep_rounds=0,
    state_bytes=35_000,
)
YEAR = Sizes(Line(5_000, 20), Line(1_000, 33), 100_000)


@pytest.mark.slow
def test_it_says_what_real_upkeep_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round by round, rows of every table and files: seals of more than one chunk, tiers up to full files, state runs
    one behind the other, a limit that is reached again and again, epochs that become files, and files merged."""
    monkeypatch.setattr(tiers, "FAN_IN", 3)
    monkeypatch.setattr(tiers, "TARGET_BYTES", 60_000)
    monkeypatch.setattr(tiers, "_SMALLEST_TIER", 8_000)
    monkeypatch.setattr(seal, "CHUNK_EPOCHS", 5)
    monkeypatch.setattr(due, "GROWTH", 0.4)
    monkeypatch.setattr(fold, "CHUNK", 8)
    done: list[Held] = []
    with store_in(tmp_path, SMALL) as store:
        flushes = Flushes(store, SMALL)
        removed = runs = 0
        for _ in range(16):
            flushes.append(SMALL.round_epochs)
            round_ = store.maintain()
            removed, runs = removed + len(round_.removed), runs + sum(run.bytes > 0 for run in round_.runs)
            done.append(flushes.held())
        assert removed >= 3 and runs >= 3
        assert store.verify().findings == ()
        sizes = flushes.sizes()
    forecast = Forecast(SMALL, sizes)
    expected = [forecast.advance(held.epochs) for held in done]
    assert [held.rows for held in expected] == [held.rows for held in done]
    for said, held in zip(expected, done, strict=True):
        assert said.bytes == pytest.approx(held.bytes, rel=0.02)


def test_rows_and_files_are_bounded_but_for_full_files() -> None:
    """However long: what a topic keeps, in full files, and a few of each size before them."""
    load = replace(
        SMALL, limit_bytes=256 * MIB, rows_per_epoch=5, keys=20_000, round_epochs=6_000, keep_epochs=100_000
    )
    load = replace(load, keep_rounds=10, state_bytes=32 * MIB)
    forecast = Forecast(load, YEAR)
    for day in range(1, 31):
        held = forecast.advance(day * 864_000)
        few = 7 * tiers.FAN_IN
        assert held.rows["epochs"] <= load.keep_epochs + fold.CHUNK + load.round_epochs
        for topic, _ in forecast.kinds:
            stored = sum(file.bytes for file in topic.files)
            assert len(topic.files) <= stored / tiers.TARGET_BYTES + few
            assert len(topic.runs) <= 8
        assert len(forecast.limited.files) <= 256 // 64 + few
        assert held.rows["epoch_files"] <= held.epochs * 33 / tiers.TARGET_BYTES + few
        assert held.rows["retired"] <= load.keep_rounds * (few + 8) * load.topics


def test_a_store_that_is_laid_out_is_as_the_forecast_ends(tmp_path: Path) -> None:
    """Its moments are found where they were."""
    load = replace(SMALL, rows_per_epoch=1, keep_epochs=1_000, round_epochs=600, keep_rounds=2)
    forecast = Forecast(load, YEAR)
    held = forecast.advance(20_000)
    assert held.rows["epoch_files"] > 0 and held.rows["retired"] > 0
    with store_in(tmp_path, load) as store:
        lay_out(store, forecast)
        shown, head = upkeep_status(store), store.head()
        assert head is not None and head.epoch == forecast.epoch
        assert (shown.epoch_rows, shown.epoch_files) == (held.rows["epochs"], held.rows["epoch_files"])
        assert (shown.files, shown.retired_files) == (held.rows["segments"], held.rows["retired"])
        for epoch in (1, 8_191, 8_192, 8_193, 16_385, forecast.epoch):
            info = store.epochs(after=epoch - 1, limit=1)[0]
            assert info.epoch == epoch
            assert store.cut(info.commit_ts).epoch == epoch
