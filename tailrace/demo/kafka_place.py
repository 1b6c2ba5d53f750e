"""Where the demo of Kafka plays: Postgres, a broker, and a configuration that leads from the one through the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import psycopg

from tailrace.demo.commands import CommandFolder, shop_file
from tailrace.embedded import KafkaServer, PostgresServer
from tailrace.embedded.kafka import USER
from tailrace.embedded.process import GuardProcess
from tailrace.embedded.server import write_secret

TABLES = ("customers", "products", "orders")
_CONFIG = """\
[store]
name = "demo"

[sources.shop]
dsn = "{source}"

[destinations.broker]
kind = "kafka"
{cluster}

[publish.out]
destination = "broker"
topics = ["shop.public.*"]
topic = "shop.{{schema}}.{{table}}"  # as Debezium calls them
partitions = 1

[sources.back]
kind = "kafka"
{cluster}
topics = ["shop.public.*"]
catalog_dsn = "{source}"           # says the columns' types, as these records have no schema
without_snapshot = "complete"      # all rows of the tables are in the topics

[sources.back.connector]           # how `tailrace publish` writes
decimal_handling_mode = "string"
interval_handling_mode = "string"
"""
_CLUSTER = """\
brokers = ["{address}"]
sasl = "plain"
username = "{user}"
password = "${{file:{password}}}"
allow_unencrypted_password = true  # nobody listens on this machine's own network"""


@dataclass(kw_only=True)
class KafkaPlace(CommandFolder):
    """``source``: DSN of the shop's database."""

    postgres: PostgresServer
    kafka: KafkaServer

    @property
    def source(self) -> str:
        return self.postgres.dsn("shop")


@contextmanager
def kafka_place() -> Iterator[KafkaPlace]:
    """Servers started, database and files made; all gone afterwards, however it ends. Raises OperatorError without the
    jars of Kafka."""
    with ExitStack() as stack:
        folder = GuardProcess.current().folder()
        stack.callback(lambda: GuardProcess.current().remove(folder))
        # First, as its jars may be missing. fsync stays on: processes are killed, and nothing is lost.
        kafka = stack.enter_context(KafkaServer())
        postgres = stack.enter_context(PostgresServer())
        made = KafkaPlace(folder, postgres=postgres, kafka=kafka)
        with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE shop")
        with psycopg.connect(made.source) as connection:
            connection.execute(shop_file("schema.sql").encode())
        password = folder / "kafka-password"
        write_secret(password, kafka.password)
        cluster = _CLUSTER.format(address=kafka.address, user=USER, password=password)
        made.config.write_text(_CONFIG.format(source=made.source, cluster=cluster), encoding="utf-8")
        stack.callback(made.stop)
        yield made
