"""Make the golden recordings anew, from a real Postgres and Debezium's engine, which Maven brings:
``python -m tests.cdc.kafka.decoding.golden.make [NAME ...]``. Look at what changed before you commit it.

For each configuration: what Debezium wrote (NAME.records.gz). With the first one: what native capture has of the same
changes (native.gz): the schemas of the tables before them, and all rows.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.cdc.postgres.connect import Address, connect
from tailrace.cdc.postgres.tables import read_tables
from tailrace.embedded import PostgresServer
from tests.cdc.kafka.decoding.golden.scenarios import CONFIGURATIONS, STATEMENTS, TABLES, Configuration
from tests.fixtures.servers import FAST_SETTINGS
from tests.support import REPOSITORY
from tests.support.capturing import RunningCapture, Site, execute, rows

GOLDEN = Path(__file__).parent
NATIVE = next(iter(CONFIGURATIONS))
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_QUIET_SECONDS = 3.0
_START_SECONDS = 240.0


def main(names: list[str]) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        PostgresServer(settings=FAST_SETTINGS, trust=True) as server,
    ):
        engine = build(Path(folder))
        for name in names or CONFIGURATIONS:
            make(name, server, engine, Path(folder) / name)


def build(folder: Path) -> list[str]:
    """The command that runs the engine."""
    pom = REPOSITORY / "tests/servers/debezium/pom.xml"
    run(
        "mvn", "-q", "-B", "-f", str(pom), _COPY, "-DincludeScope=runtime", f"-DoutputDirectory={folder}/jars"
    )
    sources = [str(GOLDEN / f"{name}.java") for name in ("Record", "InAvro")]
    run("javac", "-cp", f"{folder}/jars/*", "-d", f"{folder}/classes", *sources)
    return ["java", "-cp", f"{folder}/classes:{folder}/jars/*"]


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def make(name: str, server: PostgresServer, engine: list[str], folder: Path) -> None:
    folder.mkdir()
    execute(server.dsn(), f"CREATE DATABASE {name}")
    dsn = server.dsn(name)
    execute(dsn, *TABLES)
    address = Address.parse(dsn)
    with connect(address) as connection:
        tables = read_tables(connection, address)
    schemas = {table.text: json.loads(table.topic_schema(1).to_json()) for table in tables}
    settings = CONFIGURATIONS[name]
    if name != NATIVE:
        with debezium(name, server, settings, engine, folder) as lines:
            execute_all(dsn)
            write(GOLDEN / f"{name}.records.gz", lines())
        return
    site = Site.at(folder, dsn, name=name)
    site.init()
    with RunningCapture(site) as capture:
        capture.catch_up()
        with debezium(name, server, settings, engine, folder) as lines:
            execute_all(dsn)
            write(GOLDEN / f"{name}.records.gz", lines())
        capture.catch_up()
        found = {info.id.text: rows(capture.store, info.id) for info in capture.store.topics()}
    truth = {"schemas": schemas, "rows": found}
    write(GOLDEN / "native.gz", json.dumps(truth, default=str, sort_keys=True))


def execute_all(dsn: str) -> None:
    for statement in STATEMENTS:
        execute(dsn, statement)


def write(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(path.name, path.stat().st_size, "bytes")


@contextmanager
def debezium(
    name: str, server: PostgresServer, configuration: Configuration, engine: list[str], folder: Path
) -> Iterator[Callable[[], str]]:
    settings = {
        "name": name,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "database.hostname": "127.0.0.1",
        "database.port": str(server.port),
        "database.user": "postgres",
        "database.password": "none",
        "database.dbname": name,
        "topic.prefix": "shop",
        "plugin.name": "pgoutput",
        "slot.name": f"debezium_{name}",
        "publication.name": f"debezium_{name}",
        "publication.autocreate.mode": "filtered",
        "table.include.list": "public.*",
        "skipped.operations": "none",
        "poll.interval.ms": "50",
        **configuration.connector,
    }
    (folder / "settings").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    out, log = folder / "records", folder / "log"

    def lines() -> str:
        size = -1
        while size != (size := out.stat().st_size):
            time.sleep(_QUIET_SECONDS)
        return out.read_text()

    with log.open("w") as errors:
        process = subprocess.Popen(
            [*engine, "InAvro" if configuration.avro else "Record", str(folder / "settings"), str(out)],
            stdin=subprocess.PIPE,
            stdout=errors,
            stderr=errors,
        )
        try:
            wait_for_stream(log)
            yield lines
            if " ERROR " in log.read_text():
                raise SystemExit(log.read_text()[-5000:])
        finally:
            process.communicate()


def wait_for_stream(log: Path) -> None:
    """Until the snapshot is done: a table that changes before is not in it as it was."""
    begin = time.monotonic()
    while "Starting streaming" not in log.read_text():
        if time.monotonic() - begin > _START_SECONDS:
            raise SystemExit(f"Debezium did not start\n{log.read_text()[-5000:]}")
        time.sleep(0.1)
    time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1:])
