"""Capture of Kafka is killed at each step, its broker is killed, the connector goes back: what the log holds is the
table, and each change once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.cdc.kafka.prepare import prepare_kafka
from tailrace.embedded import KafkaServer
from tailrace.eventstore.settings import KafkaSourceSettings, StoreSettings
from tailrace.eventstore.store import Store
from tests.cdc.kafka.connector import Connector
from tests.cdc.kafka.test_capture import capturing, connector, history, read_up_to, settings_of, state
from tests.fixtures.brokers import KafkaFactory, make_topic
from tests.support.forking import Forked

__all__ = ["connector"]
pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]
PROCESS = """
import json, sys, threading
from pathlib import Path
from tailrace.cdc.kafka.capture import KafkaCapture
from tailrace.eventstore.settings import KafkaSourceSettings, StoreSettings
from tailrace.eventstore.store import Store
with Store.open(StoreSettings(inline_bytes=200), root=Path(sys.argv[1])) as store:
    settings = KafkaSourceSettings.model_validate(json.loads(sys.argv[2]))
    KafkaCapture(store, "shop", settings, stop=threading.Event()).run()
"""


@pytest.fixture
def store(store_dir: Path) -> Iterator[Store]:
    with Store.open(StoreSettings(inline_bytes=200), create=True, root=store_dir) as opened:
        yield opened


def capture_process(store: Store, settings: KafkaSourceSettings, failpoint: str = "") -> Forked:
    environment = {**os.environ, "TAILRACE_FAILPOINT": failpoint}
    given = json.dumps(settings.model_dump(mode="json", exclude_none=True))
    return Forked(
        [sys.executable, "-c", PROCESS, str(store.root), given], env=environment, stderr=subprocess.DEVNULL
    )


def messages_of(connector: Connector) -> int:
    return len(connector.sent)


@pytest.mark.parametrize(
    "failpoint",
    ["records_fetched:2", "epoch_decoded:2", "segment_written:2", "inside_commit:2", "epoch_committed:2"],
)
def test_a_capture_that_is_killed_at_a_step_loses_nothing_and_repeats_nothing(
    store: Store, connector: Connector, failpoint: str
) -> None:
    settings = settings_of(connector)
    prepare_kafka(store, "shop", settings)
    connector.change(*[("c", key, "a") for key in range(10)])
    connector.sent.clear()
    connector.snapshot()
    process = capture_process(store, settings, failpoint)
    for number in range(50):
        connector.change(("u", number % 10, f"{number}"))
        connector.flush()
        if process.poll() is not None:
            break
        time.sleep(0.1)
    assert process.wait(60) == -signal.SIGKILL
    connector.change(("d", 3, ""))
    connector.flush()
    expected = 10 + messages_of(connector)
    with capturing(store, settings) as running:
        running.wait(read_up_to(store, expected))
    assert state(store) == connector.rows()
    updates = [each for each in history(store) if each[0] == "u"]
    assert len(updates) == sum(b'"op": "u"' in (value or b"") for _, value in connector.sent)
    assert store.verify().findings == ()


def test_captures_that_are_killed_at_random_beside_a_connector_that_goes_back(
    store: Store, connector: Connector
) -> None:
    chance = random.Random(7)
    settings = settings_of(connector)
    prepare_kafka(store, "shop", settings)
    connector.change(("c", 0, "a"))
    connector.sent.clear()
    connector.snapshot()
    extra = 0
    for _ in range(6):
        process = capture_process(store, settings)
        until = time.monotonic() + chance.uniform(0.3, 2.5)
        while time.monotonic() < until:
            size = chance.randint(1, 4)
            connector.change(
                *[(chance.choice("cuud"), chance.randint(0, 9), f"{chance.random()}") for _ in range(size)]
            )
            connector.flush()
            if chance.random() < 0.2:
                again = chance.randint(1, min(20, len(connector.sent) - 1))
                connector.restart(again)
                extra += again
            time.sleep(0.02)
        process.kill()
        process.wait(60)
    with capturing(store, settings) as running:
        running.wait(read_up_to(store, 1 + messages_of(connector) + extra))
    assert state(store) == connector.rows()
    sent = [(json.loads(key)["id"], json.loads(value)["op"]) for key, value in connector.sent if value]
    for key in range(10):
        mine = [operation for of, operation in sent if of == key]
        assert [op for op, of in history(store) if of == key] == ["c"] * (key == 0) + mine
    assert store.verify().findings == ()


@pytest.mark.kafka_versions
def test_a_broker_that_is_killed_and_comes_back_is_read_on(
    store: Store, kafka_server: KafkaFactory, database: str
) -> None:
    server: KafkaServer = kafka_server(trust=True)
    make_topic(server, "p.public.items")
    connector = Connector(database, server.address, "p.public.items")
    settings = settings_of(connector)
    prepare_kafka(store, "shop", settings)
    connector.change(("c", 1, "a"))
    connector.flush()
    connector.close()
    process = capture_process(store, settings)
    wait_until(read_up_to(store, 1))
    server.kill()
    time.sleep(2)
    server.start()
    connector = Connector(database, server.address, "p.public.items")
    connector.change(("c", 2, "b"), ("u", 1, "c"))
    connector.flush()
    connector.close()
    wait_until(read_up_to(store, 3))
    assert process.poll() is None
    process.kill()
    process.wait(60)
    assert sorted(history(store)) == [("c", 1), ("c", 2), ("u", 1)]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.05)
