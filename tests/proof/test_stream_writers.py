"""Many writers of the same streams, killed at random: the log has what the source has, each stream without a gap, in
the order of commits; a transaction that idles delays nobody."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace import Stream, append
from tailrace.eventstore.streams.database.event_tables import install
from tailrace.testing.plugin import FollowingLog
from tests.fixtures.scale import Scale
from tests.proof.stream_writer import Wrote
from tests.support import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def log(database: str, tmp_path: Path) -> Iterator[FollowingLog]:
    install(database)
    following = FollowingLog(database, tmp_path)
    yield following
    following.close()


def test_versions_are_dense_and_the_log_is_the_source_in_the_order_of_commits(
    log: FollowingLog, scale: Scale
) -> None:
    writers, kills = scale.pick(smoke=6, full=32), scale.pick(smoke=10, full=400)
    log.catch_up()  # only a new slot waits for the transactions there are
    with ExitStack() as stack:
        idle = stack.enter_context(psycopg.connect(log.dsn))
        append(
            idle, Stream("proof_stream", "idle"), [Wrote(writer="idle", number=0, size=1)]
        )  # and never commits
        running = [started(log.dsn, f"w{number}") for number in range(writers)]
        stack.callback(kill, running)
        for number in range(kills):
            time.sleep(random.uniform(0.05, 0.3))
            at = random.randrange(writers)
            running[at].kill()
            running[at].wait()
            running[at] = started(log.dsn, f"w{at}-{number}")
            if number % 5 == 0:
                log.catch_up()  # whatever idles
        kill(running)
        idle.rollback()
    log.catch_up()
    with psycopg.connect(log.dsn) as connection:
        source = connection.execute("SELECT stream, version, event_id::text FROM tailrace.events").fetchall()
        heads = connection.execute("SELECT stream, version FROM tailrace.streams").fetchall()
    there = in_log(log)
    assert len(source) > writers
    assert sorted(each[:3] for each in there) == sorted(source)
    streams: dict[str, list[int]] = defaultdict(list)
    for stream, version, *_ in sorted(there, key=lambda each: each[3:]):
        streams[stream].append(version)
    assert all(versions == list(range(1, len(versions) + 1)) for versions in streams.values())
    assert {stream: len(versions) for stream, versions in streams.items()} == {
        stream: version for stream, version in heads if version
    }


def kill(running: Sequence[subprocess.Popen[bytes]]) -> None:
    for each in running:
        each.kill()
        each.wait()


def started(dsn: str, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tests.proof.stream_writer", dsn, name], cwd=REPOSITORY)


def in_log(log: FollowingLog) -> list[tuple[Any, ...]]:
    """Stream, version, id; and where its commit stands in the WAL, and it in that."""
    found = []
    for rows in log.store.tail(["test.proof_stream"], start="earliest", timeout=0):
        after = rows.rows["after"].combine_chunks()
        columns = [after.field(name).to_pylist() for name in ("stream", "version", "event_id")]
        places = [rows.rows[name].to_pylist() for name in ("_lsn", "_ordinal")]
        found += list(zip(*columns, *places, strict=True))
    return found
