"""A program of a user's is killed at each step that it passes, and no other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tailrace.eventstore.errors import UsageError
from tailrace.testing import crash_points, killed_at
from tests.eventstore.shop import batch, writer
from tests.fixtures.stores import StoreFactory, one_catalog

CONSUMER = """
import sys
from pathlib import Path
from tailrace import Store
from tailrace.eventstore.settings import StoreSettings
with Store.open(StoreSettings(catalog=sys.argv[1], segments=Path("segments")), root=Path(sys.argv[2])) as store:
    group = store.group("g", ["shop.public.orders"], start="earliest")
    with group.join("pod", batch_rows=3) as member, open(sys.argv[3], "a") as file:
        for batch in member.batches(0):
            print(*(change.offset for change in batch.changes()), file=file, flush=True)
            batch.commit()
"""


@one_catalog
def test_a_program_is_killed_at_each_step_that_it_passes_and_goes_on_where_it_was(
    new_store: StoreFactory, catalog_url: str, store_dir: Path, tmp_path: Path
) -> None:
    store = new_store()
    capture = writer(store)
    done = tmp_path / "done"
    argv = [sys.executable, "-c", CONSUMER, catalog_url, str(store_dir), str(done)]
    killed = []
    for lsn, point in enumerate(crash_points("consumer"), 1):
        capture.append(batch(lsn, orders=[("c", number) for number in range(16)]))
        killed += [point] if killed_at(point, argv) else []
    assert killed == ["group_joined", "partitions_shared", "batch_given", "position_committed"]
    assert not killed_at("position_committed", argv, passes=1000)  # to its end
    assert sum(each.lag for each in store.group("g").progress()) == 0


def test_a_program_that_fails_by_itself_is_told_apart() -> None:
    with pytest.raises(AssertionError, match="no such thing"):
        killed_at("batch_given", [sys.executable, "-c", "raise SystemExit('no such thing')"])


def test_steps_and_points_that_there_are_not_are_refused() -> None:
    with pytest.raises(UsageError, match="no steps of 'lunch'"):
        crash_points("lunch")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no fail point"):
        killed_at("lunch", [sys.executable, "-c", ""])
