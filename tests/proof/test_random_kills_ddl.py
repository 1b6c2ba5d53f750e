"""Promises 1 to 5 under kill -9 of capture and of Postgres while random DDL alters what random writes write."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tailrace.embedded import PostgresServer
from tests.fixtures.scale import Scale
from tests.fixtures.servers import ServerFactory
from tests.support import alterations
from tests.support.alterations import Alterer, assert_equals_locked_source, settle
from tests.support.background import in_background
from tests.support.capturing import CaptureProcess, RunningCapture, Site, assert_sound, slot_pid

_COMPARE_EVERY = 20  # kills
RESUMABLE = 6


@pytest.fixture
def server(postgres_server: ServerFactory) -> PostgresServer:
    return postgres_server()


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("trigger", [False, True], ids=["without the trigger", "with the trigger"])
def test_random_kills_under_ddl_lead_to_what_the_source_holds(
    server: PostgresServer, store_dir: Path, scale: Scale, trigger: bool
) -> None:
    alterations.prepare(server.dsn())
    site = Site.at(store_dir, server.dsn(), tables=alterations.PATTERNS)
    site.init(ddl=trigger)
    rng = random.Random(trigger)
    victims = ["capture", "source", "capture", "both"]
    left = scale.pick(smoke=2, full=100)
    while left:
        rounds = [victims[left % 4] for left in range(left, max(left - _COMPARE_EVERY, 0), -1)]
        left -= len(rounds)
        with alterations.writing(site.dsn, left), altering(site.dsn, left, trigger=trigger):
            kill(site, server, rounds, rng)
        if not trigger:
            alterations.touch(site.dsn)
        with RunningCapture(site) as capture:
            settle(capture)
            assert_equals_locked_source(capture)
            assert_sound(capture.store)


def kill(site: Site, server: PostgresServer, rounds: list[str], rng: random.Random) -> None:
    """Kill what each round names, at a random moment; what has ended is started again, as by a supervisor."""
    with ExitStack() as stack:
        capture = stack.enter_context(CaptureProcess(site))
        for victim in rounds:
            time.sleep(rng.uniform(1, 4))
            if victim != "source" and capture.running:
                capture.kill()
            if victim != "capture":
                server.kill()
                server.start()
            capture = revived(capture, stack, site)
        while slot_pid(site) is None:  # it may have met a server that was just starting
            time.sleep(0.1)
            capture = revived(capture, stack, site)
        capture.catch_up(180)
        assert capture.terminate() == 0, capture.output


def revived(capture: CaptureProcess, stack: ExitStack, site: Site) -> CaptureProcess:
    if capture.running:
        return capture
    assert capture.wait() in (-signal.SIGKILL, RESUMABLE), capture.output
    return stack.enter_context(CaptureProcess(site))


@contextmanager
def altering(dsn: str, seed: int, *, trigger: bool) -> Iterator[None]:
    """One DDL command after another beside what is done inside."""

    def alter(_: int, stop: threading.Event) -> None:
        with closing(Alterer(dsn, seed, trigger=trigger)) as alterer:
            while not stop.wait(0.2):
                alterer.some(1)

    with in_background(alter):
        yield
