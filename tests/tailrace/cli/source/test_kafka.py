"""A source of the kind kafka through the commands, with a real broker."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from kafka import KafkaAdminClient

from tailrace.config.load import load_settings
from tailrace.embedded import KafkaServer
from tailrace.eventstore.settings import KafkaSourceSettings, StoreSettings
from tailrace.eventstore.store import Store
from tailrace.metrics.capture import Collector
from tests.cdc.kafka.connector import Connector
from tests.cdc.kafka.test_capture import capturing, make_topic_again, read_up_to
from tests.fixtures.brokers import make_topic
from tests.support.imports import imported_in_threads
from tests.tailrace.conftest import Project

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]
CONFIGURATION = """
[sources.shop]
kind = "kafka"
brokers = ["{brokers}"]
topics = ["{prefix}.*"]
on_bad_record = "{bad}"
[sources.shop.tables."public.items"]
columns = {{ id = "integer", note = "text" }}
key = ["id"]
"""


@pytest.fixture
def connector(kafka: KafkaServer, database: str) -> Iterator[Connector]:
    name = f"p{secrets.token_hex(4)}.public.items"
    make_topic(kafka, name)
    made = Connector(database, kafka.address, name)
    yield made
    made.close()


def configure(project: Project, connector: Connector, bad: str = "stop") -> None:
    prefix = connector.topic.split(".")[0]
    project.configure(CONFIGURATION.format(brokers=connector.brokers, prefix=prefix, bad=bad))


def test_from_init_to_a_state_that_is_the_table(project: Project, connector: Connector) -> None:
    configure(project, connector)
    connector.change(("c", 1, "a"), ("c", 2, "b"))
    connector.sent.clear()
    connector.snapshot()
    planned = project.ok("init", "--dry-run").out
    assert f"{connector.topic} → shop.public.items: 4 records in 1 partition" in planned
    assert "would register it, of cluster" in planned
    assert project.run("capture", "--once").code == 7, "nothing is prepared"
    assert "register it, of cluster" in project.ok("init").out
    assert project.run("init", "--detailed-exitcode").code == 3
    assert "1 topic may be captured" in project.ok("doctor").out
    project.ok("capture", "--once")
    connector.change(("u", 1, "z"), ("d", 2, ""), ("c", 3, "ü"))
    connector.flush()
    project.ok("capture", "--once")
    (source,) = project.ok("status", "--json").documents[0]["sources"]
    assert source["state"] == "read" and source["incomplete"] == 0
    (partition,) = source["partitions"]
    assert (partition["next_offset"], partition["end"]) == (8, 8)
    assert "8 " in project.ok("status").out
    assert "kafka" in project.ok("source", "list").out
    with Store.open(StoreSettings(), root=project.folder) as store:
        found = [row for part in store.state("shop.public.items") for row in part.to_pylist()]
        assert {row["id"]: row["note"] for row in found} == connector.rows() == {1: "z", 3: "ü"}
    assert "TRUNCATE" in project.ok("doctor").out
    assert project.ok("log", "verify").code == 0
    refused = project.run("verify", "--source")
    assert refused.code == 2 and "is for sources of the kind postgres" in refused.err
    assert project.run("source", "snapshot", "shop.public.items").code == 2
    assert project.run("source", "repair").code == 2
    assert "tailrace log verify" in refused.err
    for option in ("--events", "--ddl", "--take-over"):
        wrong = project.run("init", option)
        assert wrong.code == 2 and "is for sources of the kind postgres" in wrong.err


def test_a_bad_record_is_shown_tried_again_and_given_up(project: Project, connector: Connector) -> None:
    configure(project, connector)
    connector.change(("c", 1, "a"))
    connector.send_raw(b'{"id": 2}', b"no JSON")
    project.ok("init")
    stopped = project.run("capture", "--once")
    assert (
        stopped.code == 7
        and "offset 1: its value: not a JSON object" in stopped.err
        and "on_bad_record" in stopped.err
    )
    configure(project, connector, bad="park")
    project.ok("capture", "--once")
    assert "1 record parked: tailrace source parked shop" in project.ok("status").out
    shown = project.ok("source", "parked", "--json").documents
    assert [(each["offset"], each["reason"]) for each in shown] == [
        (1, "its value: not a JSON object (at byte 0)")
    ]
    assert "no JSON" in project.ok("--show-values", "source", "parked").out
    project.ok("source", "parked", "--retry", "--no-wait")
    project.ok("capture", "--for", "3")
    assert len(project.ok("source", "parked", "--json").documents) == 1
    project.ok("source", "parked", "--discard", "--no-wait")
    project.ok("capture", "--for", "3")
    assert "nothing is parked" in project.ok("source", "parked").out


def test_metrics_say_how_far_each_partition_is_what_is_parked_and_what_came_again(
    project: Project, connector: Connector
) -> None:
    configure(project, connector, bad="park")
    connector.change(("c", 1, "a"))
    connector.restart(again=1)
    connector.send_raw(b'{"id": 2}', b"no JSON")
    project.ok("init")
    settings = load_settings(project.folder / "tailrace.toml")
    source = settings.sources["shop"]
    assert isinstance(source, KafkaSourceSettings)
    with Store.open(StoreSettings(), root=project.folder) as store:
        with capturing(store, source) as running:
            running.wait(read_up_to(store, 3))
        connector.change(("u", 1, "b"), ("c", 2, "b"))
        connector.flush()
        statuses = [running.capture.status]
        collector = Collector(store, list(settings.sources.items()), lambda: statuses)
        samples = [sample for family in collector.collect() for sample in family.samples]
    found = {sample.name: (sample.labels, sample.value) for sample in samples}
    assert found["tailrace_source_up"] == ({"source": "shop"}, 1.0)
    labels = {"source": "shop", "topic": connector.topic, "partition": "0"}
    assert found["tailrace_source_lag_records"] == (labels, 2.0)
    assert found["tailrace_source_parked_records"] == ({"source": "shop"}, 1.0)
    assert found["tailrace_capture_repeated_rows_total"] == ({"source": "shop"}, 1.0)


def test_a_topic_that_was_made_anew_stops_capture_until_it_is_read_again(
    project: Project, connector: Connector
) -> None:
    configure(project, connector)
    connector.change(("c", 1, "a"), ("c", 2, "b"))
    connector.sent.clear()
    connector.snapshot()
    project.ok("init")
    project.ok("capture", "--once")
    admin = KafkaAdminClient(bootstrap_servers=connector.brokers)
    admin.delete_topics([connector.topic])
    admin.close()
    make_topic_again(connector)
    stopped = project.run("capture", "--once")
    assert stopped.code == 7 and "was made anew" in stopped.err
    assert "was made anew" in project.run("doctor").out
    assert "tailrace source reread shop.public.items" in stopped.err
    project.ok("source", "reread", "shop.public.items", "--no-wait")
    connector.snapshot()
    connector.change(("d", 2, ""))
    connector.flush()
    project.ok("capture", "--once")
    with Store.open(StoreSettings(), root=project.folder) as store:
        found = [row for part in store.state("shop.public.items") for row in part.to_pylist()]
        assert {row["id"]: row["note"] for row in found} == connector.rows() == {1: "a"}
    assert project.ok("log", "verify").code == 0


def test_no_thread_of_a_capture_or_publication_imports_modules_that_another_may_import_too(
    project: Project, connector: Connector
) -> None:
    """Two sources and two publications, each on a thread of its own, and upkeep beside them."""
    prefix = connector.topic.split(".")[0]
    shop = CONFIGURATION.format(brokers=connector.brokers, prefix=prefix, bad="park")
    publications = "".join(
        f'[publish.{prefix}{name}]\ndestination = "bus"\ntopics = ["{name}.public.*"]\n'
        f'topic = "{prefix}-{{source}}.{{table}}"\n'
        for name in ("shop", "mirror")
    )
    project.configure(
        shop + shop.replace("sources.shop", "sources.mirror") + publications
        + f'[destinations.bus]\nkind = "kafka"\nbrokers = ["{connector.brokers}"]\n'
        + "[store.upkeep]\nevery_seconds = 1\nseal_epochs = 1\n"
    )  # fmt: skip
    connector.change(("c", 1, "a"), ("c", 2, "b"))
    connector.sent.clear()
    connector.snapshot()
    connector.send_raw(b'{"id": 2}', b"no JSON")
    connector.change(("u", 1, "z"), ("d", 2, ""))
    connector.flush()
    project.ok("init")
    assert imported_in_threads(project, "capture", "--for", "5") == []
    assert project.ok("source", "parked", "shop", "--json").documents
    assert imported_in_threads(project, "publish", "--once") == []
