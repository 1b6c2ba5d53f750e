"""A consumer that is killed at any step: at least once without a gap, and with effects of its own exactly once."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tailrace.eventstore import failpoints
from tailrace.eventstore.store import Store
from tests.eventstore.shop import ORDERS, batch, writer
from tests.eventstore.subscriptions.test_group import all_rows
from tests.fixtures.stores import StoreFactory, one_catalog
from tests.support import forking

LOGS = """
import sys
from pathlib import Path
from tailrace.eventstore.store import Store
from tailrace.eventstore.settings import StoreSettings
with Store.open(StoreSettings(catalog=sys.argv[1], segments=Path("segments")), root=Path(sys.argv[2])) as store:
    with store.group("g").join("pod", batch_rows=3) as member, open(sys.argv[3], "a") as file:
        for batch in member.batches(0):
            for change in batch.changes():
                file.write(f"{change.topic} {change.partition} {change.offset}\\n")
            file.flush()
            batch.commit()
"""
WRITES = """
import sys
from pathlib import Path
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from tailrace.eventstore.store import Store
from tailrace.eventstore.settings import StoreSettings
engine = create_engine(sys.argv[3])
with Store.open(StoreSettings(catalog=sys.argv[1], segments=Path("segments")), root=Path(sys.argv[2])) as store:
    with store.group("g").join("pod", effects=engine, batch_rows=3) as member:
        for batch in member.batches(0):
            with Session(engine) as session, session.begin():
                for change in batch.changes():
                    session.execute(text(f"INSERT INTO seen VALUES ({change.partition}, {change.offset})"))
                batch.commit(session)
"""
COMMON = ["group_joined", "partitions_shared", "batch_given:2"]


def consume(
    program: str, store: Store, catalog_url: str, store_dir: Path, place: str, point: str = ""
) -> None:
    """All there is; or until killed at a fail point, before which something is written so that it comes by."""
    argv = [sys.executable, "-c", program, catalog_url, str(store_dir), place]
    done = forking.run(argv, env={**os.environ, failpoints.VARIABLE: point}, timeout=60)
    assert done.returncode == (-signal.SIGKILL if point else 0), f"{point}: {done.stderr}"


def fill(store: Store) -> None:
    capture = store.take_over("shop") if store.source("shop") else writer(store)
    state = store.source("shop")
    first = state.commit_lsn + 1 if state else 1
    for lsn in range(first, first + 2):
        capture.append(batch(lsn, orders=[("c", lsn * 20 + i) for i in range(16)]))


@one_catalog
def test_killed_at_any_step_it_gets_everything_in_order_and_what_was_not_committed_again(
    new_store: StoreFactory, catalog_url: str, store_dir: Path
) -> None:
    store = new_store()
    fill(store)
    group = store.group("g", ["shop.public.orders"], start="earliest")
    log = store_dir / "seen.txt"
    for point in [*COMMON, "position_committed:2"]:
        consume(LOGS, store, catalog_url, store_dir, str(log), point)
        fill(store)
    consume(LOGS, store, catalog_url, store_dir, str(log))
    assert sum(each.lag for each in group.progress()) == 0
    found: dict[int, list[int]] = defaultdict(list)
    for line in log.read_text().splitlines():
        _, partition, offset = line.split()
        found[int(partition)].append(int(offset))
    assert {(ORDERS.text, p, offset) for p, offsets in found.items() for offset in offsets} == set(
        all_rows(store, ORDERS.text)
    )
    for offsets in found.values():  # back to the last commit, never a gap
        assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(offsets))


@pytest.mark.parametrize("catalog_url", ["postgres"], indirect=True)
def test_killed_at_any_step_its_effects_are_there_exactly_once(
    new_store: StoreFactory, catalog_url: str, store_dir: Path, tmp_path: Path
) -> None:
    store = new_store()
    fill(store)
    group = store.group("g", ["shop.public.orders"], start="earliest")
    effects = f"sqlite:///{tmp_path / 'effects.db'}"
    engine = create_engine(effects)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE seen (partition int, event_offset int)"))
    for point in [*COMMON, "partition_taken:2", "effects_found:2"]:
        consume(WRITES, store, catalog_url, store_dir, effects, point)
        fill(store)
    consume(WRITES, store, catalog_url, store_dir, effects)
    assert sum(each.lag for each in group.progress()) == 0
    with engine.connect() as connection:
        found = Counter((ORDERS.text, *row) for row in connection.execute(text("SELECT * FROM seen")))
    engine.dispose()
    assert found == all_rows(store, ORDERS.text)
