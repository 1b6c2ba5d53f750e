"""A broker lets in who it should, over TLS whose certificate is checked; whoever stays out is told why."""

from __future__ import annotations

import gc
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient, UserScramCredentialUpsertion

from tailrace.embedded import KafkaServer, PostgresServer
from tailrace.embedded.process import free_port
from tailrace.eventstore.errors import OperatorError, TransientError
from tailrace.eventstore.kafka import first_connection
from tailrace.eventstore.kafka.cluster import Cluster
from tailrace.eventstore.kafka.connection import client_options
from tailrace.eventstore.kafka.reader import Partition, PartitionReader
from tailrace.eventstore.settings import KafkaConnectionSettings
from tests.fixtures.proxy import Proxy
from tests.support.certificates import make_authority, make_certificate
from tests.support.installed import kafka_jars

# kafka-python leaves sockets of a TLS handshake that failed to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")

AUTHORITY = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


@dataclass(frozen=True)
class Secured:
    """A broker with TLS and passwords, and a listener that shows itself to clients of a certificate alone."""

    server: KafkaServer
    files: Path

    def settings(self, **changes: Any) -> KafkaConnectionSettings:
        given = {
            "brokers": (self.server.address,),
            "tls": True,
            "ca_file": self.files / "ca.crt",
            "sasl": "plain",
            "username": "tailrace",
            "password": self.server.password,
        }
        return KafkaConnectionSettings(**{**given, **changes})


def pem(*files: Path) -> str:
    """As one line of properties."""
    return "".join(file.read_text() for file in files).replace("\n", "\\n")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    files = tmp_path_factory.mktemp("tls")
    make_authority(files, "ca")
    make_authority(files, "stranger")
    make_certificate(files, "broker", "-addext", "subjectAltName=IP:127.0.0.1")
    make_certificate(files, "client")
    settings = {
        "listener.security.protocol.map": "CLIENT:SASL_SSL,INTERNAL:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "listener.name.client.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.client.scram-sha-256.sasl.jaas.config": SCRAM,
        "listener.name.client.scram-sha-512.sasl.jaas.config": SCRAM,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": pem(files / "broker.crt"),
        "ssl.keystore.key": pem(files / "broker.key"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": pem(files / "ca.crt"),
        "authorizer.class.name": AUTHORITY,
        "super.users": "User:tailrace;User:CN=client",
    }
    with KafkaServer(jars=kafka_jars(), settings=settings) as server:
        made = Secured(server, files)
        admin = KafkaAdminClient(**client_options(made.settings()))
        admin.create_topics({"orders": {"num_partitions": 1, "replication_factor": 1}})
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            user = UserScramCredentialUpsertion("reader", mechanism, "a password")
            assert admin.alter_user_scram_credentials([user]) == {"reader": None}
        admin.close()
        yield made
    gc.collect()


@pytest.mark.servers
def test_passwords_are_taken_over_tls(secured: Secured) -> None:
    for settings in (
        secured.settings(),
        secured.settings(sasl="scram-sha-256", username="reader", password="a password"),
        secured.settings(sasl="scram-sha-512", username="reader", password="a password"),
    ):
        with Cluster(settings) as cluster:
            assert cluster.topics() == (["orders"] if settings.sasl == "plain" else [])


@pytest.mark.servers
@pytest.mark.parametrize(
    ("changes", "says", "hint"),
    [
        ({"password": "another"}, "does not let user tailrace in by plain", "check username"),
        ({"sasl": "scram-sha-256"}, "tailrace|Authentication", "check username"),
        ({"sasl": None, "username": None, "password": None}, "lets nobody in without a password", "set sasl"),
        ({"ca_file": None}, "shows a certificate that is not right: self-signed|unable to get", "ca_file"),
        (
            {"tls": False, "ca_file": None, "allow_unencrypted_password": True},
            "speaks TLS, and tls is not set",
            "tls = true",
        ),
    ],
)
def test_who_is_not_let_in_is_told_why(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], says: str, hint: str
) -> None:
    monkeypatch.setattr("tailrace.eventstore.kafka.connection.START_SECONDS", 2.0)
    for client in (Cluster, PartitionReader):
        with pytest.raises(OperatorError, match=says) as caught:
            client(secured.settings(**changes))
        assert hint in caught.value.hint
        assert secured.server.password not in str(caught.value)


@pytest.mark.servers
def test_a_broker_that_comes_up_too_late_is_tried_again(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends connections for as long as the first try lasts, and answers when one looks into it."""
    monkeypatch.setattr("tailrace.eventstore.kafka.connection.START_SECONDS", 2.0)
    between = Proxy(secured.server.port)
    between.refusing = True
    ask = first_connection._ask

    def up(settings: KafkaConnectionSettings, broker: str) -> None:
        between.refusing = False
        ask(settings, broker)

    monkeypatch.setattr(first_connection, "_ask", up)
    try:
        with pytest.raises(TransientError, match="did not answer in time, and does now"):
            Cluster(secured.settings(brokers=(f"127.0.0.1:{between.port}",)))
    finally:
        between.close()


@pytest.mark.servers
def test_a_broker_that_does_not_speak_tls_is_said(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.eventstore.kafka.connection.START_SECONDS", 1.0)
    with pytest.raises(OperatorError, match="does not speak TLS, and tls is set"):
        Cluster(KafkaConnectionSettings(brokers=(kafka.address,), tls=True))


@pytest.mark.servers
def test_the_name_in_the_certificate_is_checked(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.eventstore.kafka.connection.START_SECONDS", 2.0)
    with pytest.raises(OperatorError, match="certificate that is not right: Hostname mismatch"):
        Cluster(secured.settings(brokers=(f"localhost:{secured.server.port}",)))


@pytest.mark.servers
def test_rights_that_are_missing_are_said(secured: Secured) -> None:
    settings = secured.settings(sasl="scram-sha-512", username="reader", password="a password")
    with Cluster(settings) as cluster:
        with pytest.raises(
            OperatorError, match="topic orders: Kafka says TopicAuthorizationFailed"
        ) as caught:
            cluster.topic("orders")
        assert "kafka-acls" in caught.value.hint
    with PartitionReader(settings) as reader, pytest.raises(OperatorError, match="has no topic orders"):
        reader.seek({Partition("orders", 0): 0})


@pytest.mark.servers
def test_a_certificate_of_ours_is_shown(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.eventstore.kafka.connection.START_SECONDS", 2.0)
    kept = dict(secured.server.settings)
    secured.server.settings["listener.security.protocol.map"] = (
        "CLIENT:SSL,INTERNAL:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT"
    )
    secured.server.settings["ssl.client.auth"] = "required"
    secured.server.restart()
    nobody: dict[str, Any] = {"sasl": None, "username": None, "password": None}
    ours = {"certificate": secured.files / "client.crt", "certificate_key": secured.files / "client.key"}
    theirs = {
        "certificate": secured.files / "stranger.crt",
        "certificate_key": secured.files / "stranger.key",
    }
    try:
        with Cluster(secured.settings(**nobody, **ours)) as cluster:
            assert cluster.topics() == ["orders"]
        for shown in ({}, theirs):
            with pytest.raises(OperatorError, match=r"does not take a TLS connection: .*alert"):
                Cluster(secured.settings(**nobody, **shown))
    finally:
        secured.server.settings = kept
        secured.server.restart()


def test_a_certificate_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    settings = KafkaConnectionSettings(brokers=("localhost:1",), tls=True, ca_file=tmp_path / "none.crt")
    with pytest.raises(OperatorError, match="ca_file cannot be used for connections to Kafka: No such file"):
        client_options(settings)


def test_nobody_at_the_address_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.eventstore.kafka.connection.START_SECONDS", 0.5)
    with pytest.raises(TransientError, match=r"no broker of Kafka can be reached: 127\.0\.0\.1:.*refused"):
        Cluster(KafkaConnectionSettings(brokers=(f"127.0.0.1:{free_port()}",)))


def test_what_is_no_broker_is_said(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.eventstore.kafka.connection.START_SECONDS", 0.5)
    with pytest.raises(OperatorError, match="does not answer as a broker of Kafka does"):
        Cluster(KafkaConnectionSettings(brokers=(f"127.0.0.1:{postgres.port}",)))


def test_silence_may_end_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.eventstore.kafka.connection.START_SECONDS", 0.5)
    monkeypatch.setattr("tailrace.eventstore.kafka.first_connection._PROBE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(TransientError, match="takes connections and does not answer"):
            Cluster(KafkaConnectionSettings(brokers=(address,)))


@pytest.mark.servers
def test_a_broker_that_answers_anybody_is_not_said_to_keep_us_out(kafka: KafkaServer) -> None:
    """It may only have had too little time, as while the cluster chooses its leaders."""
    assert first_connection._answers_anybody(KafkaConnectionSettings(brokers=(kafka.address,)), kafka.address)


@pytest.mark.parametrize("kind", [Cluster, PartitionReader])
def test_a_broker_that_is_away_leaves_no_socket_and_no_thread_behind(
    monkeypatch: pytest.MonkeyPatch, kind: Callable[[KafkaConnectionSettings], object]
) -> None:
    """Nor anything for the garbage collector: there would be more with each try."""
    monkeypatch.setattr("tailrace.eventstore.kafka.connection.START_SECONDS", 0.5)
    settings = KafkaConnectionSettings(brokers=(f"127.0.0.1:{free_port()}",))
    gc.collect()
    gc.disable()
    try:
        sockets, threads = open_sockets(), set(threading.enumerate())
        for _ in range(3):
            with pytest.raises(TransientError):
                kind(settings)
        assert open_sockets() <= sockets
        assert set(threading.enumerate()) <= threads  # one of an earlier test may have ended meanwhile
    finally:
        gc.enable()


def open_sockets() -> set[str]:
    """Each by its own number in the kernel, which no other has while it is open."""
    targets = map(target_of, os.listdir("/proc/self/fd"))
    return {target for target in targets if target.startswith("socket:")}


def target_of(descriptor: str) -> str:
    with suppress(OSError):  # that of the folder itself
        return os.readlink(f"/proc/self/fd/{descriptor}")
    return ""
