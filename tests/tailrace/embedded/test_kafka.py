"""The embedded Kafka keeps what was acknowledged over stops and crashes, and is its starter's alone."""

from __future__ import annotations

import itertools
import os
import socket
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import KafkaError

from tailrace.embedded import KafkaServer
from tailrace.embedded.process import free_port
from tailrace.eventstore.errors import OperatorError
from tests.fixtures.brokers import KafkaFactory, TopicFactory
from tests.support.installed import kafka_jars
from tests.tailrace.embedded.test_access import require_unseen

needs_kafka = pytest.mark.servers


def write(topic: str, values: list[bytes], **login: Any) -> None:
    producer = KafkaProducer(acks="all", **login)
    try:
        for sent in [producer.send(topic, value) for value in values]:
            sent.get(30)
    finally:
        producer.close()


def read(topic: str, count: int, **login: Any) -> list[bytes]:
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=30_000, **login)
    try:
        return [record.value for record in itertools.islice(consumer, count)]
    finally:
        consumer.close()


@needs_kafka
def test_what_is_written_can_be_read(kafka: KafkaServer, new_topic: TopicFactory) -> None:
    topic = new_topic()
    write(topic, [b"one", b"two"], bootstrap_servers=kafka.address)
    assert read(topic, 2, bootstrap_servers=kafka.address) == [b"one", b"two"]


@needs_kafka
@pytest.mark.timeout(600)
def test_what_was_acknowledged_survives_every_way_to_stop_and_nobody_else_sees_it(
    kafka_server: KafkaFactory,
) -> None:
    server = kafka_server()
    login = {
        "bootstrap_servers": server.address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "tailrace",
        "sasl_plain_password": server.password,
    }
    admin = KafkaAdminClient(**login)
    admin.create_topics([NewTopic("kept", 1, 1)])
    admin.close()
    assert os.stat(f"/proc/{server.pid}").st_uid != 0
    require_unseen(server.password, server)
    for stranger in ({**login, "sasl_plain_password": "0" * 48}, {"bootstrap_servers": server.address}):
        with pytest.raises(KafkaError):
            KafkaAdminClient(**stranger, bootstrap_timeout_ms=3_000)
    for way, end in ((b"stop", server.stop), (b"kill", server.kill)):
        write("kept", [way], **login)
        end()
        assert not server.running
        assert f"127.0.0.1:{server.start().port}" == login["bootstrap_servers"]
    assert read("kept", 2, **login) == [b"stop", b"kill"]
    require_unseen(server.password, server)


@needs_kafka
def test_a_port_that_is_taken_meanwhile_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        offers = itertools.chain([taken], iter(free_port, None))
        monkeypatch.setattr("tailrace.embedded.server.free_port", lambda: next(offers))
        with KafkaServer(jars=kafka_jars(), trust=True) as server:
            assert server.port != taken


@needs_kafka
def test_a_setting_that_the_broker_refuses_is_shown_in_its_words() -> None:
    server = KafkaServer(jars=kafka_jars(), settings={"num.io.threads": "none"})
    with pytest.raises(OperatorError, match=r"num\.io\.threads"):
        server.start()
    server.close()
