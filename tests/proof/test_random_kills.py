"""Promises 1 to 4 and 7 under kill -9 of everything: nothing lost, nothing twice, every sink provably right."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from tailrace.embedded import PostgresServer
from tests.fixtures.scale import Scale
from tests.fixtures.servers import ServerFactory
from tests.proof.ledger import (
    SCHEMA,
    Writers,
    check_dense_offsets,
    check_nothing_lost,
    check_whole_transactions,
)
from tests.proof.rig import Rig, wait_until
from tests.proof.victims import Victims

PROJECTION = """
from pyspark.sql import DataFrame, functions as F

from tailrace.projections import PostgresTable, State, projection


@projection(
    key="tx",
    sink=PostgresTable("mart", "totals"),
    ledger=State("shop.public.ledger", affects="tx"),
)
def totals(ledger: DataFrame) -> DataFrame:
    return ledger.groupBy("tx").agg(F.sum("amount").alias("amount"), F.count("*").alias("legs"))
"""

REFRESHED_AND_VERIFIED = """
import sys
from tailrace.cli.main import run

for words in (["run", "--once"], ["verify", "totals"]):
    if code := run(["--config", sys.argv[1], *words]):
        sys.exit(code)
"""  # in one process: Spark starts once


@pytest.fixture
def servers(postgres_server: ServerFactory) -> tuple[PostgresServer, PostgresServer]:
    return postgres_server(), postgres_server()


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_random_kills_lose_nothing_and_repeat_nothing(
    servers: tuple[PostgresServer, PostgresServer], tmp_path: Path, scale: Scale
) -> None:
    source, mart = servers
    (tmp_path / "ledger_projections.py").write_text(PROJECTION)
    rig = Rig(
        tmp_path,
        source.dsn(),
        options="epoch_bytes = 16384\nlinger_ms = 20",
        extra=(
            f'[sinks.mart]\nkind = "postgres"\ndsn = "{mart.dsn()}"\n\n'
            '[projections]\nmodules = ["ledger_projections"]\n\n[spark]\nmaster = "local[1]"\nshuffle_partitions = 2\n'
        ),
    )
    with psycopg.connect(source.dsn(), autocommit=True) as connection:
        connection.execute(SCHEMA)
    rig.run("init")
    rig.run("capture", "--until-idle")
    rng = random.Random(scale.pick(smoke=5, full=200))
    order = ["capture", "source", "run", "mart", "capture"]
    with ExitStack() as stack:
        with Writers(source.dsn(), pause=0.02).writing():
            commands = {name: rig.command(name) for name in ("capture", "run")}
            victims = Victims(rig, commands, {"source": source, "mart": mart}, stack)
            for round_ in range(scale.pick(smoke=3, full=200)):
                time.sleep(rng.uniform(0.5, scale.pick(smoke=1, full=6)))
                victims.kill(order[round_] if round_ < len(order) else rng.choice(order))
        wait_until(lambda: captured_all(rig, victims), "the log has everything", seconds=180)
        victims.stop("capture")
        victims.stop("run")
    rig.python(REFRESHED_AND_VERIFIED, str(tmp_path / "tailrace.toml"))
    with rig.store() as store:
        head = store.head()
        assert head is not None
        assert check_whole_transactions(store, range(1, head.epoch + 1)) > 50
        check_nothing_lost(store, source.dsn())
        check_dense_offsets(store)


def captured_all(rig: Rig, victims: Victims) -> bool:
    victims.revive()
    with rig.store() as store:
        state = store.source("shop")
    return state is not None and state.through_lsn >= rig.position()
