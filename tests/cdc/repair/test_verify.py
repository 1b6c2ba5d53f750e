"""verify --source finds every kind of difference, names it, and finds none where there is none."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cdc.repair.digests import DigestBuilder, compare, keys_of
from tailrace.cdc.repair.position import Patience
from tailrace.eventstore.errors import TransientError, UsageError
from tailrace.eventstore.maintenance.retire import retire
from tailrace.eventstore.model.info import DROPPED
from tailrace.eventstore.model.topic import TopicId
from tests.support.capturing import SOURCE, RunningCapture, Site, execute, query, table, wait_until

ROWS = st.dictionaries(st.text(max_size=3), st.none() | st.text(max_size=3), max_size=30)


@given(ROWS, ROWS, st.integers(1, 7))
def test_digests_tell_exactly_what_a_dictionary_would(
    left: dict[str, str | None], right: dict[str, str | None], chunk: int
) -> None:
    def digests(rows: dict[str, str | None]) -> DigestBuilder:
        builder = DigestBuilder([0])
        items = list(rows.items())
        for start in range(0, len(items), chunk):
            part = items[start : start + chunk]
            builder.add(
                [pa.array([key for key, _ in part], pa.string()), pa.array([v for _, v in part], pa.string())]
            )
        return builder

    found = compare(digests(left).finish(), digests(right).finish())
    texts = [pa.array(sorted({*left, *right}), pa.string())]

    def names(hashes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> set[str | None]:
        return {key for (key,) in keys_of(texts, [0], hashes.tolist()).values()}

    assert names(found.left) == left.keys() - right.keys()
    assert names(found.right) == right.keys() - left.keys()
    assert names(found.different) == {key for key in left.keys() & right.keys() if left[key] != right[key]}


@pytest.fixture
def site(database: str, store_dir: Path) -> Site:
    execute(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "CREATE TABLE u (id int PRIMARY KEY)",
        "INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 100) i",
    )
    prepared = Site.at(store_dir, database)
    prepared.init()
    return prepared


@pytest.mark.versions(since=15)
def test_differences_are_counted_and_named(site: Site) -> None:
    """Changes hidden from the WAL of the publication, leaving no trace in it, are what verify is for."""
    execute(
        site.dsn,
        "DROP PUBLICATION acme_shop",
        "CREATE PUBLICATION acme_shop FOR TABLES IN SCHEMA public",
        "CREATE SCHEMA hidden",
    )
    with RunningCapture(site) as capture:
        capture.catch_up()
        execute(
            site.dsn,
            "BEGIN; ALTER TABLE t SET SCHEMA hidden; DELETE FROM hidden.t WHERE id <= 3;"
            " UPDATE hidden.t SET v = 'other' WHERE id IN (10, 11); INSERT INTO hidden.t VALUES (1000, 'hidden');"
            " ALTER TABLE hidden.t SET SCHEMA public; COMMIT",
        )
        (found,) = site.verify(table("t"))
        assert not found.equal
        assert (found.source_rows, found.log_rows) == (98, 100)
        assert (found.only_in_source, found.only_in_log, found.different) == (1, 3, 2)
        assert found.source_samples == (("1000",),)
        assert found.log_samples == (("1",), ("2",), ("3",))
        assert found.different_samples == (("10",), ("11",))


def test_a_column_without_a_change_yet_is_reported_not_compared(site: Site) -> None:
    with RunningCapture(site) as capture:
        capture.catch_up()
        execute(site.dsn, "ALTER TABLE t ADD COLUMN w int DEFAULT 5")
        (found,) = site.verify(table("t"))
        assert found.equal and found.only_in_source_columns == ("w",)
        execute(site.dsn, "UPDATE t SET v = 'x' WHERE id = 1")
        capture.catch_up()
        (found,) = site.verify(table("t"))
        assert found.equal and found.only_in_source_columns == ()
        execute(site.dsn, "ALTER TABLE t DROP COLUMN w")
        (found,) = site.verify(table("t"))
        assert found.equal and found.only_in_log_columns == ("w",)


def test_without_a_capture_it_says_so_and_leaves_no_slot(site: Site) -> None:
    with RunningCapture(site) as capture:
        capture.catch_up()
    with pytest.raises(TransientError, match="no capture runs") as refused:
        site.verify(patience=Patience(10_000.0, start=0.0))  # it does not wait for the log
    assert "start `tailrace capture`" in refused.value.hint
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    wait_until(lambda: query(site.dsn, slots) == [("acme_shop",)])  # a temporary one goes with its process


def test_a_capture_that_is_started_beside_it_is_waited_for(site: Site) -> None:
    with RunningCapture(site) as capture:
        capture.catch_up()
    execute(site.dsn, "INSERT INTO t VALUES (101, 'beside')")
    with ExitStack() as started:
        said: list[str] = []

        def say(text: str) -> None:
            if not said:
                started.enter_context(RunningCapture(site))
            said.append(text)

        (found,) = site.verify(table("t"), patience=Patience(120.0, start=120.0, say=say))
    assert found.equal and found.source_rows == 101
    assert said and "no process captures shop: waiting for one" in said[0]


def test_a_topic_that_cannot_be_compared_is_named(site: Site) -> None:
    with RunningCapture(site) as capture:
        capture.catch_up()
        with pytest.raises(UsageError, match="no topic"):
            site.verify(table("nope"))
        execute(site.dsn, "SELECT pg_logical_emit_message(true, 'a', 'b')")
        capture.catch_up()
        with pytest.raises(UsageError, match="not a table"):
            site.verify(TopicId.messages(SOURCE))
        execute(site.dsn, "DROP TABLE u")
        (found,) = site.verify(table("u"))
        assert not found.equal and found.skipped
        capture.catch_up()
        wait_until(lambda: capture.store.topic(table("u")).reason == DROPPED)
        retire(capture.store, table("u"))
        assert [each.topic for each in site.verify()] == [table("t")], "nobody waits for a retired topic"
        (found,) = site.verify(table("u"))
        assert "retired" in found.skipped
