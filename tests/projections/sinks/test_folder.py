"""What sinks of files have in common."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tailrace.eventstore.errors import UsageError
from tailrace.projections.sinks.contract import Sink
from tailrace.projections.sinks.folder import GenerationsFolder
from tests.projections.sinks.parquet import test_sink as test_parquet_sink
from tests.projections.sinks.search import test_sink as test_search_sink
from tests.projections.sinks.sink_data import ANNA, fill, target


@pytest.mark.parametrize("sink_at", [test_parquet_sink.sink_at, test_search_sink.sink_at])
def test_a_generation_that_is_dropped_before_its_promotion_has_the_lock_is_not_shown(
    sink_at: Callable[[Path], Sink], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_at(tmp_path)
    fill(sink, target(), [ANNA])
    promoting = GenerationsFolder.promotion_lock

    def late(folder: GenerationsFolder) -> AbstractContextManager[None]:
        monkeypatch.setattr(GenerationsFolder, "promotion_lock", promoting)
        sink_at(tmp_path).drop(target())
        return promoting(folder)

    monkeypatch.setattr(GenerationsFolder, "promotion_lock", late)
    with pytest.raises(UsageError, match="was never filled"):
        sink.promote(target(), None)
    assert sink.live(target().store, target().projection) is None
