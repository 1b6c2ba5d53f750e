"""Promise 2: whoever reads while the source is written to sees whole transactions, over all topics, and no gap."""

from __future__ import annotations

import itertools
from pathlib import Path

import psycopg

from tests.fixtures.scale import Scale
from tests.proof.ledger import (
    SCHEMA,
    Writers,
    check_dense_offsets,
    check_nothing_lost,
    check_whole_transactions,
)
from tests.proof.rig import Rig, wait_until


def test_readers_under_load_never_see_part_of_a_transaction(
    database: str, tmp_path: Path, scale: Scale
) -> None:
    rig = Rig(tmp_path, database, options="epoch_bytes = 4096\nlinger_ms = 10")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(SCHEMA)
    rig.run("init")
    seen = 0
    with rig.running("capture") as capture, Writers(database).writing():
        wait_until(lambda: loaded(rig), "the first load is in the log")
        with rig.store() as store:
            head = first = store.head()
            after = 0 if first is None else first.epoch
            while seen < scale.pick(smoke=300, full=40_000):
                assert capture.poll() is None, rig.output("capture")
                for head in itertools.islice(store.follow(after_epoch=after, timeout=1), 10):
                    assert head.epoch == after + 1, "an epoch became visible before the one below it"
                    seen += check_whole_transactions(store, range(after + 1, head.epoch + 1))
                    after = head.epoch
        rig.wait_captured(capture)
        rig.stop(capture)
    with rig.running("capture") as capture:
        rig.wait_captured(capture)
        rig.stop(capture)
    with rig.store() as store:
        check_nothing_lost(store, database)
        check_dense_offsets(store)


def loaded(rig: Rig) -> bool:
    with rig.store() as store:
        source = store.source("shop")
    return source is not None and source.loaded
