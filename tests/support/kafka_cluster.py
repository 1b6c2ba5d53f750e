"""Three brokers that are one cluster. Each is broker and controller (KRaft), and every topic has three replicas."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from kafka.errors import KafkaError

from tailrace.embedded import KafkaServer
from tailrace.embedded.process import free_port, wait_until
from tailrace.embedded.server import write_secret

NODES = (1, 2, 3)
_STARTED, _SECONDS = "Kafka Server started", 240
_REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    # A node that waits for its turn on a busy machine is not taken for dead so soon.
    "broker.session.timeout.ms": "9000",
}


class Node(KafkaServer):
    """One of them. It is taken for started at once: it cannot be before the others are."""

    def __init__(self, jars: Path, number: int, ports: Sequence[Sequence[int]], cluster: str) -> None:
        names = zip(("CLIENT", "INTERNAL", "CONTROLLER"), ports[number - 1], strict=True)
        super().__init__(
            settings={
                **_REPLICATED,
                "node.id": str(number),
                "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in names),
                "controller.quorum.voters": ",".join(
                    f"{node}@127.0.0.1:{ports[node - 1][-1]}" for node in NODES
                ),
            },
            port=ports[number - 1][0],
            jars=jars,
            trust=True,
        )
        self._cluster = cluster
        self._seen = 0

    def _cluster_id(self) -> str:
        return self._cluster

    @contextmanager
    def _secret_file(self, path: Path, text: str) -> Iterator[None]:
        """It stays, as nobody waits until it is read; there is no password in it."""
        path.unlink(missing_ok=True)
        write_secret(path, text, self._owner())
        yield

    def _ready(self, log_start: int) -> bool:
        self._seen = log_start
        return True

    def serves(self) -> bool:
        """Whether its last start has come to its end."""
        assert self.running, self.log.read_text()[-3000:]
        return _STARTED in self.log.read_bytes()[self._seen :].decode(errors="replace")


class KafkaCluster:
    def __init__(self, jars: Path) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        ports = [[free_port() for _ in range(3)] for _ in NODES]
        self._stack = ExitStack()
        self.nodes = {number: Node(jars, number, ports, cluster) for number in NODES}

    def __enter__(self) -> Self:
        with self._stack as stack:
            for node in self.nodes.values():
                stack.enter_context(node)
            for node in self.nodes.values():
                assert wait_until(node.serves, _SECONDS), "a node of the cluster did not start"
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def brokers(self) -> list[str]:
        return [node.address for node in self.nodes.values()]

    def start(self, number: int) -> None:
        node = self.nodes[number].start()
        assert wait_until(node.serves, _SECONDS), "a node of the cluster did not come back"

    def make_topic(self, name: str, partitions: int = 1) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.brokers)
        try:
            admin.create_topics([NewTopic(name, partitions, 3)])
        finally:
            admin.close()

    def leader(self, topic: str, partition: int = 0) -> int:
        """The number of the node that leads a partition, once all replicas of all topics are in step: any node may go,
        and two are left of each."""
        found: list[int] = []

        def settled() -> bool:
            with suppress(KafkaError, OSError):
                admin = KafkaAdminClient(bootstrap_servers=self.brokers)
                try:
                    described = admin.describe_topics(admin.list_topics())
                finally:
                    admin.close()
                every = {
                    (each["name"], one["partition_index"]): one
                    for each in described
                    for one in each["partitions"]
                }
                settled = all(len(one["isr_nodes"]) == len(NODES) for one in every.values())
                found[:] = [every[topic, partition]["leader_id"]] if settled else []
            return bool(found)

        assert wait_until(settled, _SECONDS), "a partition has no leader, or a replica is not in step"
        return found[0]
