"""Promises 1 to 5, 7 and 9 for everybody at once: capture, three groups of consumers, upkeep with retention and a
projection beside each other, each killed again and again; every group is given every event, in order."""

from __future__ import annotations

import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from sqlalchemy import select

from tailrace.config.load import load_settings
from tailrace.projections import load_projections
from tailrace.projections.context import ProjectionContext
from tailrace.projections.lifecycle.catch_up import refresh
from tailrace.projections.lifecycle.verify import verify
from tests.fixtures.scale import Scale
from tests.fixtures.servers import ServerFactory
from tests.proof.counting import ACCOUNTS, Ints, changing, counted, follow_on, prepare
from tests.proof.rig import KILLED, STEP_SECONDS, Rig, wait_until
from tests.proof.roles import HEAD, address_of, balances, effects_in
from tests.proof.victims import Victims

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESUMABLE = 6  # a server was away, or a database busy
CONFIGURATION = """
[store.upkeep]
every_seconds = 0
keep_seconds = 0
keep_epochs = 1000

[topics."shop.public.accounts"]
retention = "8KiB"

[sinks.mart]
kind = "postgres"
dsn = "{mart}"

[projections]
modules = ["soak_projections"]

[spark]
master = "local[1]"
shuffle_partitions = 2
"""
PROJECTION = """
from pyspark.sql import DataFrame, functions as F

from tailrace.projections import PostgresTable, State, projection


@projection(
    key="branch",
    sink=PostgresTable("mart", "branches"),
    accounts=State("shop.public.accounts", affects="branch"),
)
def branches(accounts: DataFrame) -> DataFrame:
    return accounts.groupBy("branch").agg(F.sum("n").alias("n"), F.count("*").alias("accounts"))
"""
GROUPS = {"audit": ("audit.one", "audit.two"), "mirror": ("mirror.one",), "books": ("books.one",)}


class Observer:
    """What consumers say that they were given, in the order in which they say it, group by group."""

    def __init__(self, accounts: int) -> None:
        self.seen = {group: np.full(accounts, -1, np.int64) for group in GROUPS}
        self._next: Counter[tuple[str, int]] = Counter()

    @contextmanager
    def listening(self, folder: Path) -> Iterator[None]:
        """Raises at the end what was wrong first."""
        stop, wrong = threading.Event(), list[Exception]()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            told.bind(address_of(folder))
            told.settimeout(0.2)

            def listen() -> None:
                while not stop.is_set():
                    try:
                        self._take(told.recv(1 << 20))
                    except TimeoutError:
                        continue
                    except Exception as error:  # noqa: BLE001 - raised by the test's own thread
                        wrong.append(error)

            thread = threading.Thread(target=listen)
            thread.start()
            try:
                yield
            finally:
                stop.set()
                thread.join()
        if wrong:
            raise wrong[0]

    def _take(self, message: bytes) -> None:
        """Behind what the group had been given of the partition, or again from some earlier place; never a gap."""
        name, partition, first = HEAD.unpack_from(message)
        group = name.rstrip(b"\0").decode()
        accounts, numbers = np.frombuffer(message, np.int64, offset=HEAD.size).reshape(2, -1)
        following = self._next[group, partition]
        assert first <= following, f"{group}: offset {first} of partition {partition} behind {following - 1}"
        known = following - first
        self._next[group, partition] = max(following, first + len(accounts))
        follow_on(self.seen[group], accounts[known:], numbers[known:])


@pytest.mark.timeout(7200)
def test_every_group_is_given_every_event_in_order_whoever_is_killed(
    postgres_server: ServerFactory,
    database: str,
    tmp_path: Path,
    scale: Scale,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = postgres_server()
    accounts, rounds, events = scale.pick(smoke=(400, 6, 12_000), full=(20_000, 200, 10_000_000))
    prepare(source.dsn(), accounts)
    rig = Rig(
        tmp_path,
        source.dsn(),
        options=f"epoch_bytes = {scale.pick(smoke=64, full=256) << 10}\nlinger_ms = 20",
        extra=CONFIGURATION.format(mart=database),
    )
    (tmp_path / "soak_projections.py").write_text(PROJECTION)
    rig.run("init")
    rig.run("capture", "--until-idle")
    with rig.store() as store:
        for group in GROUPS:
            store.group(group, topics=[ACCOUNTS.text], start="earliest")
    commands = {"capture": rig.command("capture"), "upkeep": role("upkeep", rig, "-")}
    commands |= {name: role("record", rig, name) for group in ("audit", "mirror") for name in GROUPS[group]}
    commands |= {name: role("effects", rig, name) for name in GROUPS["books"]}
    if scale is Scale.FULL:
        rig.run("rebuild", "branches")
        commands["run"] = rig.command("run")
    observer, rng = Observer(accounts), random.Random(rounds)
    with observer.listening(tmp_path), ExitStack() as stack:
        victims = Victims(rig, commands, {"source": source}, stack)
        order = ["capture", "audit.one", "books.one", "upkeep", "mirror.one", "audit.two"]
        for number in range(rounds):
            with changing(source.dsn(), accounts, events // rounds, seed=number):
                time.sleep(rng.uniform(0.1, scale.pick(smoke=0.5, full=3)))
                victims.kill(order[number] if number < len(order) else rng.choice([*commands, "source"]))
        patience = scale.pick(smoke=4 * STEP_SECONDS, full=3600)
        wait_until(lambda: captured(rig, victims), "the log has everything", patience)
        wait_until(lambda: through(rig, victims), "every group is through", patience)
        rig.run("verify", "--source")
        stopped = {name: victims.stop(name) for name in list(victims.processes)}
    assert set(stopped.values()) == {0}, stopped
    assert {code for _, code in victims.ended} <= {KILLED, RESUMABLE}, victims.ended
    assert {name for name, _ in victims.ended} >= set(order)

    truth = counted(source.dsn())
    assert sum(truth) >= events
    for group in ("audit", "mirror"):
        assert observer.seen[group].tolist() == truth, group
    assert booked(tmp_path).tolist() == truth
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = load_settings(tmp_path / "tailrace.toml")
    with rig.store() as store:
        assert store.log_start(ACCOUNTS).epoch > 0, "retention removed nothing"
        assert store.verify().findings == ()
        context = ProjectionContext(store, settings, load_projections(["soak_projections"], root=tmp_path))
        assert [outcome.error for outcome in refresh(context)] == [None]
        assert verify(context, "branches").equal


def role(kind: str, rig: Rig, name: str) -> list[str]:
    return [sys.executable, "-m", "tests.proof.roles", kind, str(rig.folder), name]


def captured(rig: Rig, victims: Victims) -> bool:
    """Whether all that the source has committed by now is in the log."""
    victims.revive()
    with rig.store() as store:
        state = store.source("shop")
    return state is not None and state.through_lsn >= rig.position()


def through(rig: Rig, victims: Victims) -> bool:
    victims.revive()
    with rig.store() as store:
        return not any(each.lag for group in GROUPS for each in store.group(group).progress())


def booked(folder: Path) -> Ints:
    """What the exactly-once group has in its database, by account."""
    engine = effects_in(folder)
    with engine.connect() as connection:
        found = connection.execute(select(balances.c.n).order_by(balances.c.account))
        numbers = np.array(list(found.scalars()), np.int64)
    engine.dispose()
    return numbers
