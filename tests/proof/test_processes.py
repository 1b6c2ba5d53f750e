"""A process manager that is killed at any moment does everything once: commands, timers, and nothing after its end."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tailrace import Stream, append, load_all
from tailrace.eventstore.streams.database.event_tables import install
from tailrace.testing.plugin import FollowingLog
from tests.fixtures.scale import Scale
from tests.proof.process_program import Asked, Done
from tests.support import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
INSTANCES = 5


@pytest.fixture
def log(database: str, tmp_path: Path) -> Iterator[FollowingLog]:
    install(database)
    following = FollowingLog(database, tmp_path)
    yield following
    following.close()


def test_killed_at_any_moment_it_does_everything_once(log: FollowingLog, scale: Scale) -> None:
    rounds = scale.pick(smoke=4, full=100)
    argv = [sys.executable, "-m", "tests.proof.process_program", str(log.store.root), log.dsn]
    asked: Counter[str] = Counter()
    with psycopg.connect(log.dsn, autocommit=True) as connection:
        for round_ in range(rounds):
            for id in map(str, range(INSTANCES)):
                for _ in range(10):
                    append(connection, Stream("proof_start", id), [Asked(id=id, number=asked[id])])
                    asked[id] += 1
            log.catch_up()
            running = subprocess.Popen(argv, cwd=REPOSITORY)
            time.sleep(random.uniform(0.5, 2.5))
            if round_ < rounds - 1:
                running.kill()
            assert running.wait(120) == (0 if round_ == rounds - 1 else -9)
        done: dict[str, list[str]] = {}
        for each in load_all(connection, "proof_work"):
            assert isinstance(each.data, Done)
            done.setdefault(each.stream.id, []).append(each.data.what)
        left = connection.execute("SELECT count(*) FROM tailrace.timers").fetchone()
    assert left == (0,)
    for id, count in asked.items():
        wanted = [f"asked {number}" for number in range(count)]
        assert [what for what in done[id] if what.startswith("asked")] == wanted  # in order, too
        assert sorted(what for what in done[id] if what.startswith("timer")) == sorted(
            f"timer {number}" for number in range(count)
        )
    assert log.store.group("process-proof_process").parked() == []


def test_an_instance_that_fails_is_parked_by_itself_and_one_that_ended_is_left_alone(
    log: FollowingLog,
) -> None:
    argv = [sys.executable, "-m", "tests.proof.process_program", str(log.store.root), log.dsn]
    with psycopg.connect(log.dsn, autocommit=True) as connection:
        for id, last in (("a", False), ("b", True), ("c", False)):
            append(connection, Stream("proof_start", id), [Asked(id=id, number=0, last=last)])
            append(connection, Stream("proof_start", id), [Asked(id=id, number=1)])
        connection.execute(
            "INSERT INTO tailrace.streams VALUES ('proof_work', 'a', 9)"
        )  # its command always conflicts
        log.catch_up()
        subprocess.run(argv, cwd=REPOSITORY, check=True, timeout=300)
        done = [(each.stream.id, each.data.what) for each in load_all(connection, "proof_work")]
    assert sorted(done) == [
        ("b", "asked 0"),
        ("c", "asked 0"), ("c", "asked 1"), ("c", "timer 0"), ("c", "timer 1"),
    ]  # fmt: skip
    parked = log.store.group("process-proof_process").parked()
    assert {each.key for each in parked} == {'{"stream": "a"}'} and len(parked) == 2
